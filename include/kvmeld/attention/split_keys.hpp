// SPDX-License-Identifier: Apache-2.0
// Attention whose keys are divided among several tiles. Each tile writes the softmax of its part; a second
// launch joins the parts.
#pragma once

#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// How the keys of a call's tracks are divided among tiles, and memory of the executor for the results of the
/// parts. The call's launches write and read that memory. One part needs no memory.
///
/// A call may have `parts` parts for each track of its batch, which is a KV head of a listed sequence. All
/// parts have the same number of entries, so that long tracks get more of them than short ones. That number
/// is a multiple of 64, and the smallest with which these parts are enough. Numbers that fill up a list lend
/// their parts to the others. A device is busy with about two parts for each multiprocessor: `parts` is then
/// 2 x multiprocessors / tracks. If lengths differ much, give `parts` at least 2: otherwise the longest track
/// holds up the others. With a window, parts are cut from the slots that it may show: the last window +
/// queries - 1 of a track. The first part has the window's sinks besides. (Where tracks have empty slots or
/// share entries, parts are cut from the whole track.)
struct split_keys {
  std::uint32_t parts = 1;  ///< parts per track, on average; 1: attention in one launch
  /// split_floats() floats, in memory that launches can write. Calls on one stream may share it.
  span<float> memory;
  /// A part has at least so many entries, unless its track ends. If parts * min_entries reaches the capacity,
  /// all parts have this number, rounded up to a multiple of 64.
  std::uint32_t min_entries = 128;
};

/// Floats of split_keys::memory for calls of up to `sequences` sequences with up to `queries` queries each;
/// the largest number where they are too many to count. Computes on the host; does not wait.
inline std::size_t split_floats(shape const& s, std::uint32_t parts, std::uint32_t sequences,
                                std::uint32_t queries) {
  if (parts < 2) return 0;
  std::size_t rows = parts;
  for (std::uint32_t n : {sequences, s.query_heads(), queries, s.value_dim + 2})
    rows = saturated_product(rows, std::size_t{n});
  return saturated_sum(rows, saturated_product(2 * std::size_t{sequences}, std::size_t{s.kv_heads}));
}

/// Items of a call: the parts of its tracks. Which track a part belongs to is known on the executor only, so
/// that a tile finds its track itself (partial_rows::find).
struct part_source {
  batch_source batch;   ///< the tracks
  std::uint32_t parts;  ///< per track, on average

  /// Number of parts, of which some may be without work.
  std::uint32_t items() const { return batch.items() * parts; }
  /// The track of an item if nothing is split.
  KVMELD_HD track where(std::uint32_t item) const { return batch.where(item / parts); }
  /// Whether the item only fills up a recorded list, if nothing is split.
  KVMELD_HD bool idle(std::uint32_t item) const { return parts == 1 && batch.idle(item); }
};

/// What a tile works on: a part of a track of the batch.
struct key_part {
  track where;           ///< the track
  std::uint32_t item;    ///< the track's number in the batch
  std::uint32_t number;  ///< among the parts of the call
  std::uint32_t index;   ///< among the parts of the track
  std::uint32_t count;   ///< parts of the track; 0: the tile has no work
  std::uint32_t share;   ///< entries of a part
  slot_t first;          ///< no window shows the slots of the track before it, except sinks
  /// The first slot of the part. Part 0 begins with the sinks.
  KVMELD_HD slot_t begin() const { return index == 0 ? 0 : first + index * share; }
  /// The end of the part for a query that sees the first `seen` slots of the track.
  KVMELD_HD slot_t end(std::uint32_t seen) const { return min_of(seen, first + (index + 1) * share); }
};

/// The results of the parts, per part and query row: highest logit, sum of weights (0: nothing was seen),
/// weighted values. Behind them, for each track: the number of its first part, and how many parts it has.
struct partial_rows {
  static constexpr std::uint32_t block = 64;  ///< entries of a part are a multiple of this
  float* data;
  std::uint32_t count;   ///< parts per track on average; 1: nothing is split
  std::uint32_t least;   ///< blocks that a part has at least
  std::uint32_t tracks;  ///< of the batch
  std::uint32_t group, queries, value_dim;
  std::uint32_t reach = 0;  ///< slots at the end of a track that a window may show; 0: there is no window

  /// The first slot of a track that a window may show, rounded down to a block. Positions ascend strictly.
  KVMELD_HD slot_t first_shown(std::uint32_t length) const {
    return reach == 0 || length <= reach ? 0 : (length - reach) / block * block;
  }
  /// More parts than this no track has.
  std::uint32_t most_of_track(std::uint32_t capacity) const {
    return min_of(tracks * count, ceil_div(ceil_div(capacity, block), least));
  }
  KVMELD_HD float* row(std::uint32_t number, std::uint32_t head_of_group, std::uint32_t query) const {
    std::size_t const head = std::size_t{number} * group + head_of_group;
    return data + (head * queries + query) * (value_dim + 2);
  }
  /// The first part of a track; for element 1, how many parts there are. In bits of floats.
  KVMELD_HD float* parts_of(std::uint32_t item) const { return row(tracks * count, 0, 0) + 2 * item; }

  static constexpr std::size_t find_scratch() { return scratch_size(2 * sizeof(std::uint32_t)); }
  /// The part that tile `t` of a call works on. Every tile computes the entries of a part from the lengths of
  /// all tracks, which saves a launch. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD key_part find(Team const& team, batch_source const& batch, ledger_ref const& ledger,
                          tile const& t) const {
    auto const length_of = [&](track where) { return ledger.length[where.index]; };
    if (count == 1) {
      std::uint32_t const length = length_of(t.where);
      return {t.where, t.item, t.item, 0, 1, length, first_shown(length)};
    }
    auto const count_of = [&](std::uint32_t item, std::uint32_t blocks) {
      if (batch.idle(item)) return 0u;
      std::uint32_t const length = length_of(batch.where(item));
      return max_of(1u, ceil_div(ceil_div(length - first_shown(length), block), blocks));
    };
    auto const all_parts = [&](std::uint32_t blocks) {
      std::uint32_t all = 0;
      for (std::uint32_t i = team.lane(); i < tracks; i += team.lanes()) all += count_of(i, blocks);
      return team.reduce(all, op_sum{});
    };
    // With n blocks in all tracks, parts of n / (parts - tracks) blocks are few enough.
    std::uint32_t const most = tracks * count, blocks = all_parts(1);
    std::uint32_t low = max_of(least, ceil_div(blocks, most));
    std::uint32_t high = max_of(low, ceil_div(blocks, most - tracks));
    while (low < high) {
      std::uint32_t const middle = low + (high - low) / 2;
      if (all_parts(middle) <= most)
        high = middle;
      else
        low = middle + 1;
    }
    std::uint32_t* const found = team.template scratch<std::uint32_t>(2);
    std::uint32_t const there = scan_values(
        team, tracks, [&](std::uint32_t i) { return count_of(i, low); },
        [&](std::uint32_t i, std::uint32_t before) {
          if (t.item < before || t.item - before >= count_of(i, low)) return;
          found[0] = i;
          found[1] = before;
        });
    if (t.item >= there) return {t.where, t.item, t.item, 0, 0, 0, 0};
    std::uint32_t const item = found[0], first = found[1];
    track const where = batch.where(item);
    return {
        where, item, t.item, t.item - first, count_of(item, low), low * block, first_shown(length_of(where))};
  }

  /// Writes the results of a part: `channels` channels from `first` on, and with the first ones the rest.
  /// Collective.
  template <class Team>
  KVMELD_HD void write(Team const& team, key_part const& part, block_of_rows const& b, std::uint32_t channels,
                       softmax_state const& state, std::uint32_t first = 0) const {
    for (std::uint32_t r = 0; r < b.rows; ++r) {
      float* const to = row(part.number, r % group, b.query_of(r));
      float const* const total = state.total + std::size_t{r} * channels;
      team.for_each(channels, [&](std::uint32_t c) { to[2 + first + c] = total[c]; });
      if (team.lane() != 0 || first != 0) continue;
      to[0] = state.highest[r];
      to[1] = state.seen[r] != 0 ? state.sum[r] : 0.0f;
    }
  }
  /// Notes where a track's parts lie, if this is tile 0 of the track's first part and keys are split. One
  /// lane.
  KVMELD_HD void note(key_part const& part, std::uint32_t tile_of_part) const {
    if (count == 1 || part.index != 0 || tile_of_part != 0) return;
    parts_of(part.item)[0] = bits_float(part.number);
    parts_of(part.item)[1] = bits_float(part.count);
  }
};

/// Joins the parts of each query row in their order, then finishes like attention in one part. The highest
/// logit of all parts is found first, so that each part is rescaled once, independently of the others. Tracks
/// with one part have their outputs already.
template <class Q, class Out> struct join_parts_phase : attend_rows<Q, Out> {
  shape extent;
  partial_rows parts;

  /// A tile is a query of a query head: a KV head has few rows, and each of them waits for its parts.
  std::uint32_t tiles(shape const&) const {
    return this->source.batch.max_queries() * extent.queries_per_kv_head;
  }
  std::size_t scratch_bytes(int) const {
    std::uint32_t const most = parts.most_of_track(extent.capacity);
    return softmax_scratch(1, extent.value_dim) + 2 * scratch_size(most * sizeof(float)) +
           scratch_size(ceil_div(most, at_once) * sizeof(float));
  }
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const group = extent.queries_per_kv_head, number = t.index / group;
    std::uint32_t const member = this->source.row_of(t.item);
    std::uint32_t const queries = this->source.batch.queries(member);
    if (number >= queries) return;
    std::uint32_t const first = float_bits(parts.parts_of(t.item)[0]);
    std::uint32_t const count = float_bits(parts.parts_of(t.item)[1]);
    if (count == 1) return;
    std::uint32_t const head = t.index % group;
    block_of_rows const b{member, queries, number, 1, t.where.kv_head * group + head, 1};
    std::uint32_t const dv = extent.value_dim;
    auto const row = [&](std::uint32_t part) { return parts.row(first + part, head, number); };
    softmax_state const state(team, 1, dv);
    float* const factor = team.template scratch<float>(count);  // first the highest logit of the part
    float* const sum = team.template scratch<float>(count);
    float* const sums = team.template scratch<float>(ceil_div(count, at_once));
    std::uint32_t highest = 0, seen = 0;
    team.for_each(count, [&](std::uint32_t part) {
      float const* const from = row(part);
      factor[part] = from[0];
      sum[part] = from[1];
      if (sum[part] == 0.0f) return;
      highest = max_of(highest, order_key(from[0]));
      seen = 1;
    });
    highest = team.reduce(highest, op_max{});
    seen = team.reduce(seen, op_max{});
    team.sync();
    team.for_each(ceil_div(count, at_once), [&](std::uint32_t i) {
      sums[i] = sum_of(i * at_once, min_of(count, (i + 1) * at_once), order_value(highest), factor, sum);
    });
    team.sync();
    if (team.lane() == 0) {
      float all = 0.0f;
      for (std::uint32_t i = 0; i < ceil_div(count, at_once); ++i) all += sums[i];
      state.highest[0] = order_value(highest);
      state.sum[0] = all;
      state.seen[0] = seen;
    }
    team.for_each(dv, [&](std::uint32_t c) {
      float total = 0.0f;
      for (std::uint32_t part = 0; part < count; part += at_once) {
        float x[at_once];
        for (std::uint32_t j = 0; j < at_once; ++j) x[j] = part + j < count ? row(part + j)[2 + c] : 0.0f;
        for (std::uint32_t j = 0; j < at_once; ++j) {
          if (part + j < count && sum[part + j] != 0.0f) total += x[j] * factor[part + j];
        }
      }
      state.total[c] = total;
    });
    team.sync();
    this->finish(team, b, dv, state);
  }

private:
  static constexpr std::uint32_t at_once = 16;  ///< parts that a lane reads before it adds them

  /// Turns the highest logits of some parts into factors. Returns their sum of weights.
  KVMELD_HD static float sum_of(std::uint32_t begin, std::uint32_t end, float highest, float* factor,
                                float const* sum) {
    float all = 0.0f;
    for (std::uint32_t part = begin; part < end; ++part) {
      factor[part] = sum[part] == 0.0f ? 0.0f : std::exp(factor[part] - highest);
      if (sum[part] != 0.0f) all += sum[part] * factor[part];
    }
    return all;
  }
};

namespace detail {

inline std::string split_problem(split_keys const& split, query_batch const& batch, shape const& s) {
  if (split.parts == 0) return refusal("attention::attend", "split.parts", 0, "at least 1");
  if (split.parts == 1) return {};
  std::uint64_t const tracks = std::uint64_t{batch.size()} * s.kv_heads;
  if (tracks * split.parts > largest::tracks) {
    return refusal("attention::attend", "split.parts", split.parts, "at most ", largest::tracks / tracks,
                   ", for ", tracks, " tracks");
  }
  if (tracks * ceil_div(s.capacity, partial_rows::block) > 0xffffffffu) {  // blocks are counted in 32 bits
    return refusal("attention::attend", "split.parts", split.parts, "1, for ", tracks, " tracks of ",
                   s.capacity, " slots");
  }
  std::size_t const wanted = split_floats(s, split.parts, batch.size(), batch.max_queries());
  if (split.memory.size() >= wanted) return {};
  return refusal("attention::attend", "number of floats of split.memory", split.memory.size(), "at least ",
                 wanted, ", for ", split.parts, " parts");
}

/// Launches phase_of(rows, parts), which attends, and joins parts where keys are split. Checks nothing.
/// `by_slot`: what a window shows of a track are its last slots.
template <class Executor, class Q, class Out, class PhaseOf>
status run_attend(Executor& executor, attention_params const& params, query_batch const& batch,
                  shape const& s, head_rows<Q> query, head_rows<Out> out, log_sums<float> lse,
                  split_keys const& split, bool by_slot, PhaseOf const& phase_of) {
  batch_source const source{s, batch.staged(executor)};
  attend_rows<Q, Out> const rows{params, source, query, out, lse};
  std::uint32_t const least =
      max_of(1u, ceil_div(min_of(split.min_entries, s.capacity), partial_rows::block));
  std::uint32_t const queries = source.batch.max_queries();
  std::uint64_t const shown = std::uint64_t{params.window} + max_of(1u, queries) - 1;
  bool const shortens = by_slot && params.window != 0 && shown <= s.capacity;
  partial_rows const parts{
      split.memory.data(),   split.parts, least,       source.items(),
      s.queries_per_kv_head, queries,     s.value_dim, shortens ? static_cast<std::uint32_t>(shown) : 0};
  return launch_all(executor, "attention::attend", [&] {
    part_source const all{source, split.parts};
    executor.run(phase_of(rows, parts), s, all.items(), all);
    if (split.parts > 1) {
      executor.run(join_parts_phase<Q, Out>{rows, s, parts}, s, source.items(), source);
    }
  });
}

/// Why attend refuses a call; empty if it does not. `readable`: the host can read the parameters' arrays.
template <class Ref, class Q, class Out>
std::string attend_refusal(bool readable, query_batch const& batch, head_rows<Q> query, Ref const& cache,
                           head_rows<Out> out, attention_params const& params, split_keys const& split) {
  std::string problem = kvmeld::detail::ref_problem("attention::attend", cache.ledger);
  if (problem.empty()) problem = attend_problem(params, batch, cache.extent(), query, out, readable);
  if (problem.empty()) problem = split_problem(split, batch, cache.extent());
  return problem;
}

}  // namespace detail
}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
