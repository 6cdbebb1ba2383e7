// Chelsea's identifier: in chunks, odd entries look for their most similar even entry (Chelsea section 4, alg. 1;
// after ToMe's bipartite matching).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>
#include <kvmeld/identify/admit/top_share.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/tile_similarity.hpp>
#include <kvmeld/layout/gather_row.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// The live-slot list is cut into chunks of `chunk` entries; entries 1, 3, 5 ... of a chunk (counted from 1) form A,
/// the others B. Each A entry draws one edge to its most cosine-similar B entry in the chunk (ties to the lower B).
/// The admission picks from the edges of all chunks (higher cosine, then lower A). Sets are stars around B entries,
/// which stay in their slots. A lone entry of a tail chunk has no edge.
template <class Admit = kvmeld::admit::top_share> struct chunked_bipartite {
  std::uint32_t chunk = 256;  ///< entries of a chunk, neighbours in the live-slot list
  Admit admission{};          ///< how many of the edges merge

  static constexpr char const* name = "chunked_bipartite";
  static constexpr bool repeats = repeats_by<Admit>();
  static constexpr bool meets_budget = meets_budget_by<Admit>();
  static constexpr bool needs_score = false;
  static constexpr bool makes_sets = true;
  static constexpr bool needs_keys = true;
  static constexpr bool gives_similarity = true;
  static constexpr split_measure splits_by = meets_budget ? split_measure::edges : split_measure::none;
  static constexpr std::uint32_t tile_rows = 64;  ///< odd entries of a tile

  /// A entries of a chunk of `n` entries.
  KVMELD_HD static constexpr std::uint32_t sources(std::uint32_t n) { return n / 2 + n % 2; }
  /// A chunk longer than a track is one chunk.
  KVMELD_HD std::uint32_t chunk_in(shape const& s) const { return min_of(chunk, max_of(s.capacity, 2u)); }
  /// Tiles of one chunk.
  KVMELD_HD static constexpr std::uint32_t tiles_per_chunk(std::uint32_t c) {
    return ceil_div(sources(c), tile_rows);
  }
  /// Edges, matched or not, of a live-slot list of `n` entries.
  KVMELD_HD std::uint32_t edges(std::uint32_t n) const {
    return n / chunk * sources(chunk) + sources(n % chunk);
  }

  std::uint32_t tiles(shape const& s) const {
    std::uint32_t const c = chunk_in(s);
    return ceil_div(s.capacity, c) * tiles_per_chunk(c);
  }
  std::size_t scratch_bytes(shape const& s, int) const {
    return 2 * scratch_size(std::size_t{tile_rows} * s.key_dim * sizeof(float)) +
           row_match_scratch(tile_rows);
  }

  template <class Team, class Keys>
  KVMELD_HD void propose(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t) const {
    std::uint32_t const c = chunk_in(wave.ledger.extent);
    std::uint32_t const begin = t.index / tiles_per_chunk(c) * c;
    std::uint32_t const n = wave.state[t.item].field;
    if (begin >= n) return;
    std::uint32_t const size = min_of(c, n - begin);
    std::uint32_t const first = t.index % tiles_per_chunk(c) * tile_rows;  // first A entry of this tile
    if (first >= sources(size)) return;
    std::uint32_t const rows = min_of(tile_rows, sources(size) - first);
    slot_t const* const field = wave.field + wave.at(t.item, begin);
    candidate* const out = wave.candidates + wave.at(t.item, begin / c * sources(c) + first);
    std::uint32_t const d = keys.channels();

    float* const a = team.template scratch<float>(std::size_t{tile_rows} * d);
    float* const b = team.template scratch<float>(std::size_t{tile_rows} * d);
    row_match match(team, tile_rows);
    auto const load = [&](float* to, std::uint32_t from, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        keys.load_tile(team, t.where, field[from + 2 * i], 1, 0, d, to + std::size_t{i} * d, d);
      }
      team.sync();
    };
    load(a, 2 * first, rows);
    match.begin(team, a, rows, d);
    std::uint32_t const targets = size / 2;
    for (std::uint32_t j = 0; j < targets; j += tile_rows) {
      std::uint32_t const columns = min_of(tile_rows, targets - j);
      load(b, 2 * j + 1, columns);
      // While these are multiplied the next targets arrive, or the sources of the next tile.
      std::uint32_t const ahead = j + columns < targets ? 2 * (j + columns) + 1 : 2 * (first + rows);
      for (std::uint32_t i = ahead; i < min_of(size, ahead + 2 * tile_rows); i += 2) {
        prefetch_row(team, keys, t.where, field[i]);
      }
      tile_similarity(team, a, rows, b, columns, d, j, match);
    }
    team.for_each(rows, [&](std::uint32_t i) {
      slot_t const source = field[2 * (first + i)];
      bool const matched = match.best_key[i] != 0;
      out[i] = {match.best_key[i], source, matched ? field[2 * match.best_column[i] + 1] : source};
    });
  }

  template <class Team>
  KVMELD_HD void admit(Team const& team, wave_ref const& wave, std::uint32_t item,
                       std::uint32_t round) const {
    std::uint32_t const candidates = edges(wave.state[item].field);
    if (wave.competes_by(split_measure::edges)) {
      std::uint32_t const quota = wave.share[item].quota;
      return admit_best(team, wave, item, candidates, {quota, 1});
    }
    admit_best(team, wave, item, candidates, allowed_by(team, admission, wave, item, candidates, round));
  }

  /// Edges that a track may admit in a round, where tracks of several compete for them.
  template <class A = Admit, class = std::enable_if_t<A::meets_budget>>
  KVMELD_HD std::uint32_t allowance(track_state const& s, std::uint32_t round) const {
    return admission.allow(s, s.field, round).quota;
  }

  /// Rounds until a track of `length` entries with finite rows is down to `limit`, at most: of the entries that have to
  /// go at least those draw edges, and a schedule gives at least its floor.
  std::uint32_t most_rounds(std::uint32_t length, std::uint32_t limit) const {
    return rounds_beside(length, length, limit);
  }

  /// The same where all but `outside` entries (pinned, frozen) may merge, as they do unless rows are no numbers.
  std::uint32_t likely_rounds(std::uint32_t length, std::uint32_t limit, std::uint32_t outside) const {
    return rounds_beside(outside, length, limit);
  }

  /// most_rounds for `tracks` tracks that share their budgets and together have `excess` entries to lose. A track whose
  /// floor is g entries away draws at least g / 2 edges and may admit a share r of g, rounded down but one at least: of
  /// all that have to go, a round takes half of that share or more.
  std::uint32_t most_rounds_of(std::uint32_t excess, std::uint32_t tracks) const {
    if constexpr (repeats) {
      constexpr std::uint32_t late = 1u << 30;
      std::uint32_t rounds = 0;
      for (; excess != 0; ++rounds) {
        track_state s{};
        s.alive = excess;
        double const all = min_of<double>(admission.allow(s, excess, late).quota, 0.5 * excess);
        double const sure = max_of(0.5 * all, all - static_cast<double>(tracks));
        excess -= min_of(excess, max_of(1u, static_cast<std::uint32_t>(sure)));
      }
      return rounds;
    } else {
      return excess != 0 ? 1 : 0;
    }
  }

  std::string problem() const {
    if (chunk < 2) {
      return "identify::chunked_bipartite.chunk is " + std::to_string(chunk) +
             "; allowed are numbers from 2 on";
    }
    return problem_of(admission);
  }

private:
  /// `beside` entries never merge, though no more than may stay.
  std::uint32_t rounds_beside(std::uint32_t beside, std::uint32_t length, std::uint32_t limit) const {
    if constexpr (repeats) {
      constexpr std::uint32_t late = 1u << 30;
      std::uint32_t rounds = 0;
      for (track_state s{}; length > limit; ++rounds) {
        s.alive = length;
        s.limit = limit;
        std::uint32_t const field = max_of(s.excess(), length - min_of(length, beside));
        std::uint32_t const drawn = edges(field) - (field % chunk % 2);  // a lone entry at the end draws none
        length -= max_of(1u, min_of(drawn, admission.allow(s, field, late).quota));
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
