// SPDX-License-Identifier: Apache-2.0
// How much the tokens around an entry look at it, those behind it and those before it: the attention half of
// Compactor.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/pooling.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Non-causal attention inside chunks (Chari and Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache
/// Compression with Approximate Leverage Scores", 2025): N_i = |v_i| times the sum over the queries of the
/// chunk of entry i of their softmax over the entries of that chunk, averaged over the query heads of the KV
/// head, and pooled along the slots. Chunks are `chunk` slots from slot `sinks` on, empty slots of padded
/// caches included. As in the authors' kvpress, the first `sinks` slots belong to no chunk; they score 0, so
/// let the selector pin them.
///
/// Wants to be shown the queries of whole prompts; log-sum-exps may be empty. A query sees what its chunk
/// holds when it is observed: if a call ends within a chunk, its queries there miss the entries of later
/// calls. What several calls give is added up. One call for a prompt, or calls that end where a chunk ends,
/// give the paper's sums. The scale of logits is that of `params`, 1 / sqrt(key_dim) by default; kvpress 0.5
/// takes 1.
///
/// When entries merge, their sums add. Cost per query head and query: 2 d `chunk` operations for d key
/// channels. Scratch while observing: chunk (d + 16 queries_per_kv_head) floats.
struct chunk_attention {
  std::uint32_t chunk = 256;                              ///< slots of a chunk, 1 to 4096
  std::uint32_t sinks = 8;                                ///< first slots, which belong to no chunk
  kvmeld::pooling pooling{3, pooling_mode::zero_padded};  ///< pooling of the scores, along the slots

  static constexpr char const* name = "chunk_attention";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::chunk_attention, channel_rule::sum, 0.0f});
    return c;
  }

  /// A mean over heads and a sum over rows, of a softmax per chunk.
  KVMELD_HD attention_fold fold() const { return {head_fold::mean, row_fold::sum, chunk, sinks}; }
  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length(), apart = min_of(n, sinks);
    float* const reach = view.room();
    team.for_each(n, [&](std::uint32_t i) { reach[i] = 0.0f; });
    team.sync();
    rows.values.norms(team, [&](slot_t s, float norm) { reach[s] = view.channel(0, s) * norm; });
    team.for_each(n, [&](std::uint32_t i) {
      auto const at = [&](std::uint32_t s) { return reach[apart + s]; };
      out[i] = i < apart ? 0.0f : pooling.at(i - apart, n - apart, at);
    });
    team.sync();
  }

  void tell_kept(kept_facts& to) const {
    to.add("chunk", chunk);
    to.add("sinks", sinks);
  }
  std::string problem() const {
    if (chunk == 0 || chunk > 4096) {
      return refusal("policy", "score::chunk_attention.chunk", chunk, "1 to 4096");
    }
    return pooling.problem();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
