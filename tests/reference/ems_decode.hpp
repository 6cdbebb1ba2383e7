// EMS while a sequence grows: append a token, attend, observe, and every `interval` tokens compress.
// The paper compresses after each token (interval 1; appendix A, decoding stage).
#pragma once

#include "shared_attention.hpp"

namespace reference {

struct ems_token {
  row key, value;
  matrix queries;  // one per query head of this KV head, rotated already
};

struct ems_decoded {
  ems_state after;
  std::vector<matrix> outputs;           // [token][query head]
  std::vector<std::vector<double>> lse;  // [token][query head]
  double score_margin = no_gap, similarity_margin = no_gap;
  std::size_t near_rounding = 0, compressions = 0;
};

// A token's position is one more than the largest so far.
inline void ems_append(ems_state& state, row const& key, row const& value) {
  long next = 0;
  for (ems_slot const& slot : state.slots) next = std::max(next, slot.position + 1);
  for (ems_member const& member : state.members) next = std::max(next, member.position + 1);
  ems_slot slot;
  slot.key = key;
  slot.value = value;
  slot.position = next;
  state.slots.push_back(slot);
}

inline row mean_row(matrix const& rows) {
  row mean(rows.front().size(), 0.0);
  for (row const& r : rows)
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += r[c] / static_cast<double>(rows.size());
  return mean;
}

inline ems_decoded ems_decode(ems_state state, std::vector<ems_token> const& tokens,
                              ems_options const& options, std::size_t interval = 1,
                              attention_options const& attention = {}, rotary_options const& rotary = {},
                              store_function const& store = store_exactly) {
  ems_decoded result;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    ems_append(state, tokens[t].key, tokens[t].value);
    attention_result const seen =
        attend_shared(tokens[t].queries, state, attention, rotary, options.collapsed);
    result.outputs.push_back(seen.output);
    result.lse.push_back(seen.lse);
    ems_observe_row(state, mean_row(seen.probability), options.window);
    if ((t + 1) % interval != 0) continue;
    ems_outcome const compressed = ems_compress(state, options, store);
    state = compressed.after;
    result.score_margin = std::min(result.score_margin, compressed.score_margin);
    result.similarity_margin = std::min(result.similarity_margin, compressed.similarity_margin);
    result.near_rounding += compressed.near_rounding;
    ++result.compressions;
  }
  result.after = state;
  return result;
}

}  // namespace reference
