// SPDX-License-Identifier: Apache-2.0
// The queries that a score with a table is shown.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The observed queries of one query head of one sequence, oldest first: rows of key_dim channels, as the
/// engine gives them, with their rotation.
template <class Q> class observed_queries {
public:
  /// `shown` selects among the queries of the `member`-th sequence of the call, `queries` in number. They are
  /// those of the last of `tokens` tokens, whose entries are the last of `length` slots. `head` counts all
  /// query heads. `scale` is that of the logits. The library makes these.
  KVMELD_HD observed_queries(head_rows<Q> query, query_sample const& shown, std::uint32_t member,
                             std::uint32_t head, std::uint32_t queries, std::uint32_t length,
                             std::uint32_t tokens, float scale, std::uint32_t channels)
      : query_(query),
        shown_(shown),
        member_(member),
        head_(head),
        queries_(queries),
        length_(length),
        tokens_(tokens),
        scale_(scale),
        channels_(channels) {}

  /// Number of queries.
  KVMELD_HD std::uint32_t count() const { return shown_.count(queries_); }
  /// Channels of a query.
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  /// Token position of query `i`.
  KVMELD_HD position_t position(std::uint32_t i) const {
    return static_cast<position_t>(attention_params::position_of(tokens_, queries_, at(i)));
  }
  /// Slot of the entry of query `i`'s token.
  KVMELD_HD slot_t slot(std::uint32_t i) const { return length_ - queries_ + at(i); }
  /// to[i][channels()] = query `first` + i times the scale of the logits, for i < n. A logit is then the
  /// product of such a row and a key. Collective; no barrier at the end.
  template <class Team>
  KVMELD_HD void load(Team const& team, std::uint32_t first, std::uint32_t n, float* to) const {
    block_of_rows const rows{member_, queries_, at(first), 1, head_, n, shown_.stride};
    load_scaled(team, query_, rows, scale_, channels_, to);
  }
  /// Writes the rows of `load`, but turned back to what they were before their rotation. counts[i] becomes 1
  /// if row i is finite and its token is at position `least` or later, else 0. Returns the sum of the counts.
  /// `turns` is the table of rope_table. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD float load_unrotated(Team const& team, rope_params const& rope, double const* turns,
                                 std::uint32_t first, std::uint32_t n, std::int64_t least, float* to,
                                 float* counts) const {
    load(team, first, n, to);
    rotate_rows(team, rope, turns, to, n, channels_,
                [&](std::uint32_t i) { return -rope.turned_for(slot(first + i), position(first + i)); });
    team.sync();
    team.for_each(n, [&](std::uint32_t i) {
      float const* const row = to + std::size_t{i} * channels_;
      bool const known = std::int64_t{position(first + i)} >= least;
      counts[i] = known && is_finite(dot(row, row, channels_)) ? 1.0f : 0.0f;
    });
    team.sync();
    float used = 0.0f;
    for (std::uint32_t i = 0; i < n; ++i) used += counts[i];
    return used;
  }

private:
  KVMELD_HD std::uint32_t at(std::uint32_t i) const { return shown_.query_of(queries_, i); }

  head_rows<Q> query_;
  query_sample shown_;
  std::uint32_t member_, head_, queries_, length_, tokens_;
  float scale_;
  std::uint32_t channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
