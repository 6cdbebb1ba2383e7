// SPDX-License-Identifier: Apache-2.0
// How far back sets of consecutive similar entries reach. Matrix units compare each entry with the 48 before
// it, for up to 16 thresholds at once.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Entries that a search looks back. Where it finds no end of the set, the set may be longer.
constexpr std::uint32_t reach_window = 48;
/// Thresholds of a pass: the 15 that four bisections may ask for, then the upper end of the bracket.
constexpr std::uint32_t reach_thresholds = 16, upper_end = 15, pass_bisections = 4;

/// Threshold `index` of a pass: the middle of node index + 1 of a heap. The children 2 k and 2 k + 1 of node
/// k halve its interval.
KVMELD_HD inline float pass_threshold(identify::scan_bracket b, std::uint32_t index) {
  if (index == upper_end) return b.high;
  std::uint32_t const node = index + 1;
  std::uint32_t depth = 0;
  while (node >> (depth + 1) != 0) ++depth;
  while (depth-- > 0) b.halve((node >> depth & 1u) == 0);
  return b.middle();
}

/// What a pass of bisections leaves for the next one in the notes of the track.
struct pass_notes {
  identify::scan_bracket bracket;
  std::uint32_t low_node = 0;   ///< 1 + index of the threshold of this pass that is `bracket.low`; 0: none is
  std::uint32_t high_node = 0;  ///< the same for `bracket.high`

  KVMELD_HD static pass_notes of(track_state const& s) {
    return {{bits_float(s.notes[0]), bits_float(s.notes[1])}, s.notes[2], s.notes[3]};
  }
  KVMELD_HD void leave(track_state& s) const {
    s.notes[0] = float_bits(bracket.low);
    s.notes[1] = float_bits(bracket.high);
    s.notes[2] = low_node;
    s.notes[3] = high_node;
  }
};

/// What a pass leaves for later passes. It lies in arrays of the wave that are free until sets are linked:
/// reach per entry of the live-slot list and per threshold in the candidates and the spare words,
/// inverse norms in place of centres.
class reach_table {
public:
  KVMELD_HD reach_table(wave_ref const& wave, std::uint32_t item)
      : candidates_(wave.candidates + wave.at(item, 0)),
        spare_(wave.spare_words(item)),
        norms_(wave.centers(item)) {}

  KVMELD_HD std::uint32_t get(std::uint32_t entry, std::uint32_t threshold) const {
    return *at(entry, threshold);
  }
  KVMELD_HD void put(std::uint32_t entry, std::uint32_t threshold, std::uint32_t reach) const {
    *at(entry, threshold) = static_cast<std::uint8_t>(reach);
  }
  /// Stores one reach for all thresholds of the entry.
  KVMELD_HD void put_all(std::uint32_t entry, std::uint32_t reach) const {
    std::uint32_t const four = 0x01010101u * reach;
    candidates_[entry] = {four, four, four};
    spare_[entry] = four;
  }
  KVMELD_HD float inverse_norm(std::uint32_t entry) const { return bits_float(norms_[entry]); }
  KVMELD_HD void put_inverse_norm(std::uint32_t entry, float x) const { norms_[entry] = float_bits(x); }

private:
  KVMELD_HD std::uint8_t* at(std::uint32_t entry, std::uint32_t threshold) const {
    constexpr std::uint32_t first = sizeof(candidate);
    static_assert(first + sizeof(slot_t) == reach_thresholds);
    return threshold < first ? reinterpret_cast<std::uint8_t*>(candidates_ + entry) + threshold
                             : reinterpret_cast<std::uint8_t*>(spare_ + entry) + (threshold - first);
  }
  candidate* candidates_;
  slot_t* spare_;
  slot_t* norms_;
};

/// Bounds of the reach of a tile's entries: it is least at the upper end of a bracket and most at the lower
/// end.
struct known_reach {
  std::uint8_t *least, *most;  ///< [rows of a tile] scratch

  /// Finds the bounds of entries begin .. begin + rows - 1 from the pass before. Collective.
  template <class Team>
  KVMELD_HD void find(Team const& team, pass_notes const& noted, reach_table const& table,
                      std::uint32_t begin, std::uint32_t rows) const {
    team.for_each(rows, [&](std::uint32_t i) {
      std::uint32_t const all = min_of(reach_window, begin + i);
      least[i] =
          static_cast<std::uint8_t>(noted.high_node != 0 ? table.get(begin + i, noted.high_node - 1) : 0);
      most[i] =
          static_cast<std::uint8_t>(noted.low_node != 0 ? table.get(begin + i, noted.low_node - 1) : all);
    });
  }
  KVMELD_HD bool open(std::uint32_t row) const { return least[row] < most[row]; }
  /// Whether this row is compared with a later one or has an open reach itself. `at` counts from the window
  /// before the tile.
  KVMELD_HD bool wants(std::uint32_t at, std::uint32_t rows) const {
    if (at >= reach_window && open(at - reach_window)) return true;
    std::uint32_t const first = at >= reach_window ? at - reach_window + 1 : 0;
    for (std::uint32_t row = first; row < min_of(rows, at); ++row) {
      std::uint32_t const distance = reach_window + row - at;
      if (least[row] < distance && distance <= most[row]) return true;
    }
    return false;
  }
};

/// Finds the reach of every entry. Entry i reaches r back if the r entries before it are more similar to it
/// than the threshold, and the next one is not, or there is none, or r is the window. Two tiles read 48 of
/// each 128 rows. The pass before found the reach at both ends of the bracket, which bounds the reach in
/// between. An entry that reaches as far at both ends is done. Others compare only the entries in between.
/// Rows that no entry compares are not read; in the last passes these are nearly all rows.
template <class Layout> struct reach_phase {
  static constexpr bool near_scratch = true;
  static constexpr int min_blocks = 2;  // per multiprocessor: one loads while another multiplies
  static constexpr std::uint32_t tile_rows = 128, strip = 16;
  static constexpr std::uint32_t results = (reach_window + strip) / 8;  // of a strip: its window, itself
  Layout layout;
  wave_ref wave;
  admit::threshold given;  ///< the only threshold, where there are no bisections
  bool bisects, first_pass, break_at_gap;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, tile_rows); }
  std::size_t scratch_bytes(int) const {
    return row_store<Layout>::bytes(tile_rows + reach_window, layout.channels()) +
           scratch_size((tile_rows + reach_window) * sizeof(float)) +
           2 * scratch_size(tile_rows + reach_window) + 2 * scratch_size(tile_rows) +
           scratch_size(reach_thresholds * sizeof(std::uint32_t));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const s = wave.state[t.item];
    pass_notes const noted =
        first_pass ? pass_notes{} : pass_notes::of(s);  // the track has those of an earlier search
    std::uint32_t const begin = t.index * tile_rows;
    if (s.over_budget == 0 || begin >= s.live_count) return;
    std::uint32_t const rows = min_of(tile_rows, s.live_count - begin);
    std::uint32_t const before = min_of(reach_window, begin);
    std::uint32_t const skipped = reach_window - before;  // rows of the store without an entry
    listed_places const list(wave, t.item);
    reach_table const table(wave, t.item);

    row_store<Layout> const store(team, tile_rows + reach_window, layout.channels());
    float* const inverse = team.template scratch<float>(tile_rows + reach_window);
    std::uint8_t* const gap = team.template scratch<std::uint8_t>(tile_rows + reach_window);
    std::uint8_t* const wanted = team.template scratch<std::uint8_t>(tile_rows + reach_window);
    known_reach const known{team.template scratch<std::uint8_t>(tile_rows),
                            team.template scratch<std::uint8_t>(tile_rows)};
    std::uint32_t* const bar = team.template scratch<std::uint32_t>(reach_thresholds);
    auto const entry_of = [&](std::uint32_t row) { return begin - before + row; };
    known.find(team, noted, table, begin, rows);
    identify::scan_bracket const now = noted.bracket;
    float const theta = given.theta_in(t.where.layer);
    team.for_each(reach_thresholds,
                  [&](std::uint32_t k) { bar[k] = order_key(bisects ? pass_threshold(now, k) : theta); });
    // gap: whether this entry and the next newer one are never in one set, whatever their rows are.
    team.for_each(before + rows, [&](std::uint32_t i) {
      std::uint32_t const e = entry_of(i);
      gap[skipped + i] = e + 1 < s.live_count && list.apart(e, break_at_gap) ? 1 : 0;
    });
    team.sync();
    team.for_each(before + rows,
                  [&](std::uint32_t i) { wanted[skipped + i] = known.wants(skipped + i, rows) ? 1 : 0; });
    team.sync();
    store.load_wanted(
        team, layout, t.where, before + rows, [&](std::uint32_t i) { return list.slot(entry_of(i)); },
        skipped, [&](std::uint32_t i) { return wanted[skipped + i] != 0; });
    team.finish_copies();
    team.sync();
    team.for_each(before + rows, [&](std::uint32_t i) {
      if (wanted[skipped + i] == 0) return;
      inverse[skipped + i] = store.inverse_norm(skipped + i);
      if (first_pass && i >= before) table.put_inverse_norm(entry_of(i), inverse[skipped + i]);
    });
    team.sync();
    for (std::uint32_t row = warp_of(team) * strip; row < rows; row += warps_of(team) * strip) {
      look_back(team, store, inverse, gap, bar, known, row, min_of(rows, row + strip), begin, table);
    }
  }

private:
  /// Finds the reach of the entries of one strip. Collective in a warp.
  template <class Team>
  KVMELD_HD static void look_back(Team const& team, row_store<Layout> const& store, float const* inverse,
                                  std::uint8_t const* gap, std::uint32_t const* bar, known_reach const& known,
                                  std::uint32_t row, std::uint32_t end, std::uint32_t begin,
                                  reach_table const& table) {
    warp_place const place = place_in_warp(team);
    std::uint32_t const own = row + place.lane;
    if (team.ballot(place.lane < strip && own < end && known.open(own)) == 0) {
      if (place.lane < strip && own < end) table.put_all(begin + own, known.most[own]);
      return;
    }
    float c[results][4] = {};
    for (std::uint32_t step = 0; step < store.steps(); ++step) {
      std::uint32_t a[4];
      store.left(place, reach_window + row, step, a);
      unrolled<results>([&](auto number) {
        constexpr std::uint32_t n = decltype(number)::value;
        std::uint32_t b[2];
        store.right(place, row + 8 * n, step, b);
        team.template multiply<matrix_format_of<typename Layout::element_type>>(c[n], a, b);
      });
    }
    // The order_key of the cosine of each pair; pairs whose entries are no candidates never fail.
    std::uint32_t keys[results][4];
    std::uint32_t const group =
        row + place.group;  // this lane has two rows of the tile: this one, and 8 behind
    unrolled<4 * results>([&](auto which) {
      constexpr std::uint32_t n = decltype(which)::value / 4, e = decltype(which)::value % 4;
      std::uint32_t const mine = group + 8 * (e / 2);
      std::uint32_t const column = row + 8 * n + 2 * place.pair + e % 2;  // row of the store
      std::uint32_t const distance = reach_window + mine - column;        // huge for later entries
      std::uint32_t const least = mine < end ? known.least[mine] : 0,
                          most = mine < end ? known.most[mine] : 0;
      bool const candidate = distance - 1 - least < most - least;
      float const x = cosine(c[n][e], inverse[column], inverse[reach_window + mine]);
      keys[n][e] = !candidate ? ~0u : gap[column] != 0 ? 0u : order_key(x);
    });
    // Four thresholds at a time: distances for all 16 would not fit into registers.
    constexpr std::uint32_t some = 4, turns = reach_thresholds / some;
    unrolled<2 * turns>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value / turns,
                              first = decltype(which)::value % turns * some;
      std::uint32_t const mine = group + 8 * half;
      std::uint32_t const most = mine < end ? known.most[mine] : 0;
      std::uint32_t const nearest = reach_window + mine - (row + 2 * place.pair);  // distance of column 0
      std::uint32_t fails[some];  // distance of the nearest entry that does not join
      for (std::uint32_t& f : fails) f = most + 1;
      unrolled<some>([&](auto threshold) {
        constexpr std::uint32_t k = decltype(threshold)::value;
        std::uint32_t const lowest = bar[first + k];
        unrolled<2 * results>([&](auto number) {  // from the farthest entry to the nearest
          constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
          if (keys[n][2 * half + i] <= lowest) fails[k] = nearest - (8 * n + i);
        });
        for (std::uint32_t step = 1; step < 4; step *= 2) {
          fails[k] = min_of(fails[k], team.shuffle(fails[k], place.lane ^ step));
        }
        if (place.pair == k && mine < end) table.put(begin + mine, first + k, fails[k] - 1);
      });
    });
  }
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
