// SPDX-License-Identifier: Apache-2.0
// The last queries of each query head: the base of scores that recompute attention in a compression.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Keeps the last `window` queries that `observe` shows of each query head, as they are rotated and times the
/// scale of logits, with their positions. A score that derives from it reads them in its `evaluate`, with
/// queries_of and for_each_key_tile. The table has the same bits whether queries come in one call or token by
/// token.
///
/// Queries see entries that are stored at their own position or before. Logits contain the log degree, but
/// neither softcap, sink logits nor windows. Queries at the positions of new queries, or after them, go when
/// the new ones come: so `truncate` forgets queries with their tokens. Kept queries do not turn with
/// `shift` and `renumber`: show the window anew. Where positions moved back, the first new query replaces all
/// of them.
///
/// Table: 2 + window (1 + d) floats per query head, for d key channels.
struct last_queries {
  std::uint32_t window = 8;  ///< queries that are kept of each query head, at least 1
  /// How keys turn when a score reads them, as in attention_params, if they lie unrotated in the cache.
  /// Inactive: keys are used as they lie. `frequencies` and `map` lie in memory that phases can read.
  rope_params rope = {};

  static constexpr score_facts facts{observation::prefill_window, &score_facts::reads_rows,
                                     &score_facts::spans_blocks};
  /// Number of queries that count.
  std::uint32_t observed_rows() const { return window; }

  std::size_t table_floats(shape const& s) const {
    return std::size_t{s.queries_per_kv_head} * floats_of_head(s.key_dim);
  }

  /// Takes the last `window` of the queries. Needs no scratch.
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    std::uint32_t const d = queries.channels(), n = queries.count();
    float* const part = table + head * floats_of_head(d);
    float* const position = part + 2;
    float* const rows = position + window;
    std::uint32_t kept = kept_in(part), next = next_in(part);
    for (; kept > 0 && position_in(position[before(next)]) >= queries.position(0); --kept)
      next = before(next);
    std::uint32_t const taken = min_of(n, window), skipped = n - taken;
    std::uint32_t const begin = static_cast<std::uint32_t>((std::uint64_t{next} + skipped) % window);
    std::uint32_t const straight = min_of(taken, window - begin);
    queries.load(team, skipped, straight, rows + std::size_t{begin} * d);
    queries.load(team, skipped + straight, taken - straight, rows);
    team.sync();
    team.for_each(taken, [&](std::uint32_t i) {
      position[(begin + i) % window] = bits_float(static_cast<std::uint32_t>(queries.position(skipped + i)));
    });
    if (team.lane() == 0) {
      part[0] =
          bits_float(static_cast<std::uint32_t>(min_of(std::uint64_t{kept} + n, std::uint64_t{window})));
      part[1] = bits_float((begin + taken) % window);
    }
    team.sync();
  }

  /// The queries that are kept of one query head, oldest first.
  class kept_queries {
  public:
    /// The kept queries, of d channels each, of query head `head` of the track that `view` shows.
    KVMELD_HD kept_queries(last_queries const& of, score_view const& view, std::uint32_t head,
                           std::uint32_t d)
        : part_(view.table().data() + head * of.floats_of_head(d)), window_(of.window), channels_(d) {
      count_ = of.kept_in(part_);
      oldest_ = (of.next_in(part_) + window_ - count_) % window_;
      while (count_ > 0 && std::int64_t{position(count_ - 1)} >= std::int64_t{view.tokens()}) --count_;
    }
    /// Number of queries: `window`, unless fewer came.
    KVMELD_HD std::uint32_t count() const { return count_; }
    /// Token position of query `i`.
    KVMELD_HD position_t position(std::uint32_t i) const {
      return position_in(part_[2 + (oldest_ + i) % window_]);
    }
    /// out[i * ld + j] = product of query i, times the scale of logits, and row j of `rows`, as row_products.
    /// Collective; barrier at the end.
    template <class Team, class T>
    KVMELD_HD void products(Team const& team, T const* rows, std::size_t rows_ld, std::uint32_t columns,
                            float* out, std::uint32_t ld) const {
      float const* const queries = part_ + 2 + window_;
      std::uint32_t const straight = min_of(count_, window_ - oldest_);
      row_products(team, queries + std::size_t{oldest_} * channels_, straight, channels_, rows, columns,
                   rows_ld, channels_, out, ld);
      row_products(team, queries, count_ - straight, channels_, rows, columns, rows_ld, channels_,
                   out + std::size_t{straight} * ld, ld);
    }

  private:
    float const* part_;
    std::uint32_t window_, channels_, count_, oldest_;
  };

  /// The kept queries of query head `head` of the group.
  KVMELD_HD kept_queries queries_of(score_view const& view, std::uint32_t head, std::uint32_t d) const {
    return {*this, view, head, d};
  }

  /// The logit of a product of query and key, for entry `i` and a query at position `at`; the lowest float if
  /// the query does not see the entry, or if the product is not finite.
  KVMELD_HD float logit(score_view const& view, std::uint32_t i, position_t at, float product) const {
    bool const seen = view.usable(i) && view.position(i) <= at && is_finite(product);
    return seen ? product + log_of_degree(view.degree(i)) : element_traits<float>::lowest;
  }

  /// Bytes of scratch that for_each_key_tile needs beside that of the rows.
  std::size_t key_tile_bytes(shape const& s) const {
    if (!rope.active()) return 0;
    return scratch_size(std::size_t{row_scratch::block} * s.key_dim * sizeof(float)) +
           rope_scratch(rope, s.key_dim);
  }
  /// Scratch of for_each_key_tile: taken once per evaluation.
  struct key_tile {
    float* rows = nullptr;          ///< [row_scratch::block][key_dim], if keys are rotated when they are read
    double const* turns = nullptr;  ///< see rope_table
  };
  /// Takes the scratch. Collective; barrier at the end.
  template <class Team> KVMELD_HD key_tile key_scratch(Team const& team, std::uint32_t d) const {
    key_tile out;
    if (rope.active()) out.rows = block_scratch<float>(team, std::size_t{row_scratch::block} * d);
    out.turns = rope_table(team, rope, d);
    team.sync();
    return out;
  }
  /// track_rows::for_each_tile over the keys of slots `first` to `last` - 1, rotated as queries meet them.
  /// Collective; barriers as there.
  template <class Team, class Keys, class Use>
  KVMELD_HD void for_each_key_tile(Team const& team, score_view const& view, Keys const& keys,
                                   key_tile const& scratch, slot_t first, slot_t last, Use use) const {
    if (!rope.active()) return keys.for_each_tile(team, first, last, use);
    std::uint32_t const d = keys.channels();
    keys.for_each_block(
        team, first, last, [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
          copy_rows(part, row, count, d, scratch.rows);
          rotate_rows(part, rope, scratch.turns, scratch.rows, count, d,
                      [&](std::uint32_t i) { return rope.turned_for(s + i, view.position(s + i)); });
          float const* const rotated = scratch.rows;
          use(part, s, count, rotated, std::size_t{d});
        });
  }

  void tell_kept(kept_facts& to) const {
    to.add("window", window);
    to.add(rope);
  }
  std::string problem() const {
    if (window == 0) return refusal("policy", "score::last_queries.window", window, "at least 1");
    return {};
  }
  std::string problem_for(shape const& s) const {
    return detail::rope_problem("policy", rope, s.key_dim, false);
  }

private:
  KVMELD_HD std::size_t floats_of_head(std::uint32_t d) const {
    return 2 + std::size_t{window} * (std::size_t{1} + d);
  }
  /// Queries that a head's part of a table keeps, and the place of the next one. No bits lead out of the
  /// table.
  KVMELD_HD std::uint32_t kept_in(float const* part) const { return min_of(float_bits(part[0]), window); }
  KVMELD_HD std::uint32_t next_in(float const* part) const { return float_bits(part[1]) % window; }
  KVMELD_HD std::uint32_t before(std::uint32_t place) const { return (place == 0 ? window : place) - 1; }
  /// Positions and counts are kept as bits: they can be larger than the integers that a float holds.
  KVMELD_HD static position_t position_in(float x) { return static_cast<position_t>(float_bits(x)); }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
