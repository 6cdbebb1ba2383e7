// SPDX-License-Identifier: Apache-2.0
// The matching of Chelsea on matrix units, with a block of warps per chunk.
#pragma once

#include <kvmeld/backend/warps/matching_side.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/listed_places.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// The proposal of chunked_bipartite. Every row of a chunk of up to 256 entries is read once. Its norm comes
/// from the same copy and is applied after the product. Only edges are written. The cosine of the chosen
/// target is within twice matching_side's bound of the best one's.
template <class Identify, class Layout> struct match_chunks {
  static constexpr int min_blocks = 3;  // per multiprocessor: some load while another multiplies
  static constexpr bool near_scratch = true;
  static constexpr std::uint32_t max_rows = 128, max_columns = 128, strip_columns = 32;
  detail::propose_phase<Identify, Layout> untuned;

  /// Takes chunks that fill at least a strip of the matrix unit.
  KVMELD_HD static bool takes(detail::propose_phase<Identify, Layout> const& p) {
    return p.identify.chunk_in(p.wave.ledger.extent) >= 2 * strip_rows;
  }
  KVMELD_HD std::uint32_t chunk() const { return untuned.identify.chunk_in(untuned.wave.ledger.extent); }
  KVMELD_HD static std::uint32_t rows_of(std::uint32_t chunk) {
    return min_of(max_rows, ceil_div(Identify::sources(chunk), strip_rows) * strip_rows);
  }
  KVMELD_HD static std::uint32_t columns_of(std::uint32_t chunk) {
    return min_of(max_columns, ceil_div(chunk / 2, strip_columns) * strip_columns);
  }

  KVMELD_HD std::uint32_t tiles(shape const& s) const {
    return ceil_div(s.capacity, chunk()) * ceil_div(Identify::sources(chunk()), max_rows);
  }
  std::size_t scratch_bytes(int) const {
    return matching_side<Layout>::bytes(rows_of(chunk()), columns_of(chunk()), untuned.rows.channels()) +
           best_targets::bytes(rows_of(chunk())) + scratch_size(rows_of(chunk()) * sizeof(std::uint32_t)) +
           scratch_size(columns_of(chunk()) * sizeof(std::uint32_t));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    if (s.over_budget == 0) return;
    std::uint32_t const c = untuned.identify.chunk_in(wave.ledger.extent);
    std::uint32_t const tiles_per_chunk = ceil_div(Identify::sources(c), max_rows);
    std::uint32_t const begin = t.index / tiles_per_chunk * c;
    if (begin >= s.places) return;
    std::uint32_t const size = min_of(c, s.places - begin);
    std::uint32_t const first = t.index % tiles_per_chunk * max_rows;  // first A place of this tile
    if (first >= Identify::sources(size)) return;
    std::uint32_t const edges = min_of(max_rows, Identify::sources(size) - first);
    listed_places const list(wave, t.item);

    matching_side<Layout> const keys(team, untuned.rows, t.where, rows_of(c), columns_of(c));
    best_targets const best(team, rows_of(c));
    std::uint32_t* const from = team.template scratch<std::uint32_t>(rows_of(c));
    std::uint32_t* const to = team.template scratch<std::uint32_t>(columns_of(c));
    std::uint32_t const targets = size / 2;  // none for a lone entry at the end
    std::uint32_t const rows = list.every_other(team, begin + 2 * first, edges, from);
    if (targets != 0) keys.load_sources(team, rows, [&](std::uint32_t i) { return list.slot(from[i]); });
    for (std::uint32_t j = 0; j < targets; j += columns_of(c)) {
      std::uint32_t const columns =
          list.every_other(team, begin + 2 * j + 1, min_of(columns_of(c), targets - j), to);
      keys.load_targets(team, columns, [&](std::uint32_t i) { return list.slot(to[i]); });
      team.finish_copies();
      team.sync();
      keys.measure(team, j == 0 ? rows : 0, columns);
      team.sync();
      for (std::uint32_t row = warp_of(team) * strip_rows; row < rows; row += warps_of(team) * strip_rows) {
        for (std::uint32_t column = 0; column < columns; column += strip_columns) {
          strip_products<strip_columns> p;
          keys.multiply(team, row, column, p);
          best.template take<strip_columns>(
              team, row, column, columns, [&](std::uint32_t i) { return list.slot(to[i]); },
              [&](std::uint32_t r, std::uint32_t i, std::uint32_t source, std::uint32_t target) {
                return order_key(keys.cosine_of(p.c[r][i], source, target));
              });
        }
      }
      team.sync();
    }
    candidate* const out = wave.candidates + wave.at(t.item, begin / c * Identify::sources(c) + first);
    team.for_each(edges, [&](std::uint32_t i) { out[i] = {0, 0, 0}; });  // no edge
    team.sync();
    team.for_each(rows, [&](std::uint32_t i) {
      out[(list.place(from[i]) - begin) / 2 - first] = {best.key(i), list.slot(from[i]), best.target(i)};
    });
  }
};

}  // namespace tuned_form

template <class Admit, class Layout>
struct tuned<warps, detail::propose_phase<identify::chunked_bipartite<Admit>, Layout>,
             std::enable_if_t<tuned_form::has_matrix_rows<Layout>::value>>
    : detail::tuned_by_form<detail::propose_phase<identify::chunked_bipartite<Admit>, Layout>,
                            tuned_form::match_chunks<identify::chunked_bipartite<Admit>, Layout>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
