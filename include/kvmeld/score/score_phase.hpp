// SPDX-License-Identifier: Apache-2.0
// The phase that evaluates a score for the tracks of a wave.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Layouts of a score that reads no rows.
struct no_layouts {};

/// Evaluates the score of every entry of a track. `Layouts` is kv{keys, values} if the score reads rows.
template <class Score, class Layouts = no_layouts> struct score_phase {
  Score score;
  wave_ref wave;
  Layouts layouts{};
  bool reads = reads_rows<Score>;  ///< of the score as it is configured
  bool alone =
      reads && stated_facts<score_facts, Score>.rows_alone;  ///< the same; then a tile is `block` slots

  static constexpr bool light = stated_facts<score_facts, Score>.light;
  static constexpr bool spans_blocks = light || stated_facts<score_facts, Score>.spans_blocks;
  static constexpr std::uint32_t entries_per_lane = reads_rows<Score> ? 1 : 4;  ///< a row is a lot of work
  static constexpr std::uint32_t block = 512;
  std::uint32_t tiles(shape const& s) const { return alone ? ceil_div(s.capacity, block) : 1; }
  std::size_t scratch_bytes(int lanes) const {
    std::size_t const own = scratch_of_score(score, wave.ledger.extent, lanes);
    return own + (reads_rows<Score> ? row_scratch::bytes(widest()) : 0);
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    float* const room = reinterpret_cast<float*>(wave.spare_words(t.item));
    score_view const view(wave.ledger, t.where, s.length, s.limit, room);
    float* const out = wave.score + wave.at(t.item, 0);
    if constexpr (reads_rows<Score>) {
      slot_t const begin = alone ? t.index * block : 0;
      if (begin >= s.length) return;
      slot_t const end = alone ? min_of(s.length, begin + block) : s.length;
      row_scratch const scratch(team, widest());
      kv const rows{track_rows(layouts.keys, view, scratch, begin, end),
                    track_rows(layouts.values, view, scratch, begin, end)};
      evaluate_score(score, team, view, rows, out);
      if (!reads) return;
      team.for_each(end - begin, [&](std::uint32_t i) {
        if (!view.usable(begin + i)) out[begin + i] = element_traits<float>::lowest;
      });
    } else {
      evaluate_score(score, team, view, layouts, out);
    }
  }

private:
  /// Channels of the wider rows.
  KVMELD_HD std::uint32_t widest() const {
    if constexpr (reads_rows<Score>) {
      return max_of(layouts.keys.channels(), layouts.values.channels());
    } else {
      return 0;
    }
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
