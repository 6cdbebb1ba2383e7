// SPDX-License-Identifier: Apache-2.0
// Chelsea's identifier: in chunks, odd entries look for their most similar even entry (Chelsea section 4,
// alg. 1; after ToMe's bipartite matching).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/tile_similarity.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/layout/gather_row.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// The live-slot list is cut into chunks of `chunk` entries. Entries 1, 3, 5 ... of a chunk (counted from 1)
/// form A, the others B. Each A entry draws one edge to the B entry of its chunk with the highest cosine
/// (ties to the lower B). The admission picks from the edges of all chunks (higher cosine, then lower A).
/// Sets are stars around B entries, which stay in their slots. The only entry of a last chunk has no edge.
///
/// A row with NaN or infinity keeps its place in its chunk, in every round. It draws no edge, and no edge
/// goes to it. Which other entries are in A or in B does not depend on what it holds. An A entry draws no
/// edge if all B rows of its chunk have NaN or infinity. So a track with many such rows may stay above its
/// budget (see max_rounds).
template <class Admit = kvmeld::admit::top_share> struct chunked_bipartite {
  std::uint32_t chunk = 256;  ///< entries of a chunk, neighbours in the live-slot list
  Admit admission{};          ///< how many of the edges merge

  static constexpr char const* name = "chunked_bipartite";
  static constexpr identify_facts facts =
      changed_facts(identify_facts{&identify_facts::needs_keys, &identify_facts::gives_similarity},
                    &identify_facts::repeats, stated_facts<admit_facts, Admit>.repeats,
                    &identify_facts::meets_budget, stated_facts<admit_facts, Admit>.meets_budget);
  static constexpr std::uint32_t tile_rows = 64;  ///< A entries of a tile

  /// Number of A entries in a chunk of `n` entries.
  KVMELD_HD static constexpr std::uint32_t sources(std::uint32_t n) { return n / 2 + n % 2; }
  /// Entries of a chunk in tracks of this shape: a longer `chunk` counts as one chunk.
  KVMELD_HD std::uint32_t chunk_in(shape const& s) const { return min_of(chunk, max_of(s.capacity, 2u)); }
  /// Tiles of one chunk.
  KVMELD_HD static constexpr std::uint32_t tiles_per_chunk(std::uint32_t c) {
    return ceil_div(sources(c), tile_rows);
  }
  /// Number of edges, drawn or not, of a live-slot list of `n` places.
  KVMELD_HD std::uint32_t edges(std::uint32_t n) const {
    return n / chunk * sources(chunk) + sources(n % chunk);
  }
  /// Number of pairs of an A and a B place in a live-slot list of `n` places. At least this many edges are
  /// drawn, less one for every row with NaN or infinity.
  KVMELD_HD std::uint32_t pairs(std::uint32_t n) const { return n / chunk * (chunk / 2) + n % chunk / 2; }

  std::uint32_t tiles(shape const& s) const {
    std::uint32_t const c = chunk_in(s);
    return ceil_div(s.capacity, c) * tiles_per_chunk(c);
  }
  std::size_t scratch_bytes(shape const& s, int) const {
    return 2 * scratch_size(std::size_t{tile_rows} * s.key_dim * sizeof(float)) +
           detail::row_match_scratch(tile_rows) + 2 * scratch_size(tile_rows * sizeof(std::uint32_t));
  }

  template <class View> KVMELD_HD void propose(View const& tile) const {
    auto const& team = tile.team();
    auto const& keys = tile.rows();
    track const where = tile.where();
    std::uint32_t const c = chunk_in(tile.ledger().extent);
    std::uint32_t const begin = tile.index() / tiles_per_chunk(c) * c;
    listed_places const list = tile.places();
    if (begin >= list.places()) return;
    std::uint32_t const size = min_of(c, list.places() - begin);
    std::uint32_t const first = tile.index() % tiles_per_chunk(c) * tile_rows;  // first A place of this tile
    if (first >= sources(size)) return;
    std::uint32_t const rows = min_of(tile_rows, sources(size) - first);
    candidate* const out = tile.candidates() + (begin / c * sources(c) + first);
    std::uint32_t const d = keys.channels();

    float* const a = team.template scratch<float>(std::size_t{tile_rows} * d);
    float* const b = team.template scratch<float>(std::size_t{tile_rows} * d);
    detail::row_match match(team, tile_rows);
    std::uint32_t* const from = team.template scratch<std::uint32_t>(tile_rows);
    std::uint32_t* const to = team.template scratch<std::uint32_t>(tile_rows);
    auto const load = [&](float* rows_of, std::uint32_t const* indices, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        keys.load_tile(team, where, list.slot(indices[i]), 1, 0, d, rows_of + std::size_t{i} * d, d);
      }
      team.sync();
    };
    team.for_each(rows, [&](std::uint32_t i) { out[i] = {0, 0, 0}; });  // no edge
    std::uint32_t const lines = list.every_other(team, begin + 2 * first, rows, from);
    load(a, from, lines);
    match.begin(team, a, lines, d);
    std::uint32_t const targets = size / 2;  // none for a lone entry at the end
    for (std::uint32_t j = 0; j < targets; j += tile_rows) {
      std::uint32_t const ahead = min_of(targets, j + tile_rows);
      std::uint32_t const columns = list.every_other(team, begin + 2 * j + 1, ahead - j, to);
      team.for_each(lines, [&](std::uint32_t i) { match.best_column[i] = tile_rows; });  // none of this block
      load(b, to, columns);
      // Prefetches the next targets, or the sources of the next tile, while these rows are multiplied.
      std::uint32_t const next = list.from(begin + (ahead < targets ? 2 * ahead + 1 : 2 * (first + rows)));
      std::uint32_t const end = list.from(begin + size);
      for (std::uint32_t i = next; i < min_of(end, next + 2 * tile_rows); i += 2) {
        detail::prefetch_row(team, keys, where, list.slot(i));
      }
      tile_similarity(team, a, lines, b, columns, d, 0, match);
      team.for_each(lines, [&](std::uint32_t i) {
        if (match.best_column[i] == tile_rows) return;
        std::uint32_t const edge = (list.place(from[i]) - begin) / 2 - first;
        out[edge] = {match.best_key[i], list.slot(from[i]), list.slot(to[match.best_column[i]])};
      });
      team.sync();
    }
  }

  template <class Round> KVMELD_HD void admit(Round& round) const {
    admit_best(round, admission, edges(round.state().places));
  }

  /// Most rounds until a track of `length` entries is down to `limit`. Of the entries that have to go, at
  /// least every second one draws an edge (pairs), and a schedule gives at least its floor. The bound holds
  /// where few rows have NaN or infinity: fewer than pairs(m + 1), where m mergeable entries stay within the
  /// limit. Then every round has as many edges as there are pairs among the entries that have to go. With
  /// more such rows, the edges may run out before the limit is met. Executors that cannot see what is left
  /// make no more rounds than this.
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return rounds_beside(length, length, limit);
  }

  /// The same if all entries but `outside` of them (pinned, frozen) may merge. They may, unless rows have NaN
  /// or infinity.
  std::uint32_t likely_rounds(std::uint32_t length, std::uint32_t limit, std::uint32_t outside) const {
    return rounds_beside(outside, length, limit);
  }

  std::string problem() const {
    if (chunk < 2) {
      return refusal("policy", "identify::chunked_bipartite.chunk", chunk, "at least 2");
    }
    return problem_of(admission);
  }

private:
  /// Rounds if `beside` entries never merge. Entries beyond the limit count as mergeable all the same.
  std::uint32_t rounds_beside(std::uint32_t beside, std::uint32_t length, std::uint32_t limit) const {
    if constexpr (facts.repeats) {
      constexpr std::uint32_t late = 1u << 30;
      std::uint32_t rounds = 0;
      for (track_state s{}; length > limit; ++rounds) {
        s.alive = length;
        s.limit = limit;
        std::uint32_t const field = max_of(s.excess(), length - min_of(length, beside));
        length -= max_of(1u, min_of(pairs(field), admission.allow(s, field, late).quota));
      }
      return rounds;
    } else {
      return length > limit ? 1 : 0;
    }
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
