// Attention whose keys are divided among several tiles. Each tile writes the softmax of its part; a second
// launch joins the parts.
#pragma once

#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// How many parts the keys of a track are divided into, and memory of the executor for the results of the
/// parts. The call's launches write and read that memory. One part needs no memory.
struct split_keys {
  std::uint32_t parts = 1;  ///< parts of a track's keys; 1: attention in one launch
  span<float> memory;       ///< split_floats() floats, in memory that launches can write
};

/// Floats of split_keys::memory for calls of up to `sequences` sequences with up to `queries` queries each;
/// the largest number where they are too many to count.
inline std::size_t split_floats(shape const& s, std::uint32_t parts, std::uint32_t sequences,
                                std::uint32_t queries) {
  std::size_t floats = parts < 2 ? 0 : parts;
  for (std::uint32_t n : {sequences, s.query_heads(), queries, s.value_dim + 2})
    floats = saturated_product(floats, std::size_t{n});
  return floats;
}

/// The results of the parts, per part and query row: highest logit, sum of weights (0: nothing was seen),
/// weighted values.
struct partial_rows {
  float* data;
  std::uint32_t count, sequences, heads, queries, value_dim;

  /// Entries of each part of a track whose first `seen` entries are seen: whole blocks if there are several
  /// parts.
  KVMELD_HD std::uint32_t share_of(std::uint32_t seen, std::uint32_t block) const {
    return count == 1 ? seen : ceil_div(ceil_div(seen, block), count) * block;
  }
  KVMELD_HD float* row(std::uint32_t part, block_of_rows const& b, std::uint32_t r) const {
    std::size_t const head = (std::size_t{part} * sequences + b.member) * heads + b.head_of(r);
    return data + (head * queries + b.query_of(r)) * (value_dim + 2);
  }
  template <class Team>
  KVMELD_HD void write(Team const& team, std::uint32_t part, block_of_rows const& b,
                       softmax_state const& state) const {
    for (std::uint32_t r = 0; r < b.rows; ++r) {
      float* const to = row(part, b, r);
      float const* const total = state.total + std::size_t{r} * value_dim;
      team.for_each(value_dim, [&](std::uint32_t c) { to[2 + c] = total[c]; });
      if (team.lane() != 0) continue;
      to[0] = state.highest[r];
      to[1] = state.seen[r] != 0 ? state.sum[r] : 0.0f;
    }
  }
};

/// Joins the parts of each query row in their order, then finishes like attention in one part. The highest
/// logit of all parts is found first, so that each part is rescaled once, independently of the others.
template <class Q, class Out> struct join_parts_phase : attend_rows<Q, Out> {
  shape extent;
  partial_rows parts;

  /// A tile is a query of a query head: a KV head has few rows, and each of them waits for its parts.
  std::uint32_t tiles(shape const&) const {
    return this->source.batch.max_queries() * extent.queries_per_kv_head;
  }
  std::size_t scratch_bytes(int) const {
    return softmax_scratch(1, extent.value_dim) + 2 * scratch_size(parts.count * sizeof(float));
  }
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const group = extent.queries_per_kv_head, number = t.index / group;
    std::uint32_t const member = this->source.row_of(t.item);
    std::uint32_t const queries = this->source.batch.queries(member);
    if (number >= queries) return;
    block_of_rows const b{member, queries, number, 1, t.where.kv_head * group + t.index % group, 1};
    std::uint32_t const dv = extent.value_dim;
    softmax_state const state(team, 1, dv);
    float* const factor = team.template scratch<float>(parts.count);  // first the highest logit of the part
    float* const sum = team.template scratch<float>(parts.count);
    team.for_each(parts.count, [&](std::uint32_t part) {
      float const* const from = parts.row(part, b, 0);
      factor[part] = from[0];
      sum[part] = from[1];
    });
    team.sync();
    if (team.lane() == 0) join_sums(factor, sum, state);
    team.sync();
    team.for_each(dv, [&](std::uint32_t c) {
      float total = 0.0f;
      for (std::uint32_t part = 0; part < parts.count; part += at_once) {
        float x[at_once];
        for (std::uint32_t j = 0; j < at_once; ++j)
          x[j] = part + j < parts.count ? parts.row(part + j, b, 0)[2 + c] : 0.0f;
        for (std::uint32_t j = 0; j < at_once; ++j) {
          if (part + j < parts.count && sum[part + j] != 0.0f) total += x[j] * factor[part + j];
        }
      }
      state.total[c] = total;
    });
    team.sync();
    this->finish(team, b, dv, state);
  }

private:
  static constexpr std::uint32_t at_once = 16;  ///< parts that a lane reads before it adds them

  /// Computes the maximum and the sum of the row over all parts. Turns the highest logits of the parts into
  /// factors. One lane.
  KVMELD_HD void join_sums(float* highest_of, float const* sum_of, softmax_state const& state) const {
    bool any = false;
    float highest = 0.0f, all = 0.0f;
    for (std::uint32_t part = 0; part < parts.count; ++part) {
      if (sum_of[part] == 0.0f) continue;
      highest = any ? max_of(highest, highest_of[part]) : highest_of[part];
      any = true;
    }
    for (std::uint32_t part = 0; part < parts.count; ++part) {
      float const factor = sum_of[part] == 0.0f ? 0.0f : std::exp(highest_of[part] - highest);
      if (sum_of[part] != 0.0f) all += sum_of[part] * factor;
      highest_of[part] = factor;
    }
    state.highest[0] = highest;
    state.sum[0] = all;
    state.seen[0] = any ? 1 : 0;
  }
};

namespace detail {

inline std::string split_problem(split_keys const& split, query_batch const& batch, shape const& s) {
  if (split.parts == 0) return refusal("attention::attend", "split.parts", 0, "at least 1");
  std::size_t const wanted = split_floats(s, split.parts, batch.size(), batch.max_queries());
  if (split.memory.size() >= wanted) return {};
  return refusal("attention::attend", "number of floats of split.memory", split.memory.size(), "at least ",
                 wanted, ", for ", split.parts, " parts");
}

}  // namespace detail
}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
