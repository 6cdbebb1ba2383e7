// SPDX-License-Identifier: Apache-2.0
// Every mergeable entry merges into the centre it resembles most, or drops (EMS section 4.2; D2O).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/tile_redundancy.hpp>
#include <kvmeld/exec/tile_similarity.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// How the resemblance of entries i and j is computed.
enum class resemblance : std::uint8_t {
  keys,             ///< cos(k_i, k_j) (D2O)
  keys_and_values,  ///< cos(k_i, k_j) * cos(v_i, v_j), both above 0 (EMS Eq. 4, the default)
  signed_product,   ///< the same product as printed: two negative cosines also count as alike
};

/// Candidate i belongs to entry i of the live-slot list. Its target is the centre with the highest
/// resemblance (ties to the lower slot). The admission says how alike they must be. Mergeable entries that
/// are not admitted, or that hold NaN or infinity, drop (the zero class of the EMS paper), so that the budget
/// is met exactly. Needs a selector that makes centres.
template <class Admit = kvmeld::admit::threshold, resemblance By = resemblance::keys_and_values>
struct nearest_center {
  Admit admission{};  ///< how much alike an entry and its centre have to be

  static constexpr char const* name = By == resemblance::keys ? "nearest_key" : "nearest_center";
  static constexpr identify_facts facts =
      changed_facts(identify_facts{&identify_facts::meets_budget, &identify_facts::drops_unmerged,
                                   &identify_facts::needs_keys, &identify_facts::needs_centers,
                                   &identify_facts::gives_similarity},
                    &identify_facts::needs_values, By != resemblance::keys);
  static constexpr std::uint32_t tile_rows = 64;  ///< entries of a tile

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, tile_rows); }
  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const channels = s.key_dim + (facts.needs_values ? s.value_dim : 0u);
    return 2 * scratch_size(std::size_t{tile_rows} * s.key_dim * sizeof(float)) +
           2 * scratch_size(std::size_t{tile_rows} * (channels - s.key_dim) * sizeof(float)) +
           (facts.needs_values ? 2 : 1) * detail::row_match_scratch(tile_rows) +
           (facts.needs_values ? scratch_size(2 * tile_rows * tile_rows * sizeof(float)) : 0);
  }

  template <class View> KVMELD_HD void propose(View const& tile) const {
    track_state const s = tile.state();
    std::uint32_t const first = tile.index() * tile_rows;
    if (first >= s.live_count) return;
    std::uint32_t const rows = min_of(tile_rows, s.live_count - first);
    slot_t const* const sources = tile.live() + first;
    candidate* const out = tile.candidates() + first;
    slot_t const* const listed = tile.centers();
    auto const centers = [&](auto match_block) {
      for (std::uint32_t from = 0; from < s.centers; from += tile_rows) {
        match_block(listed + from, min_of(tile_rows, s.centers - from));
        tile.team().sync();
      }
    };
    if constexpr (facts.needs_values) {
      both(tile.team(), tile.where(), tile.rows(), sources, rows, centers, out);
    } else {
      keys_only(tile.team(), tile.where(), tile.rows(), sources, rows, centers, out);
    }
  }

  template <class Round> KVMELD_HD void admit(Round& round) const {
    admit_best(round, admission, round.live());
    round.drop_rest();
  }

  std::string problem() const { return problem_of(admission); }

private:
  template <class Team, class Layout>
  KVMELD_HD static row_block load(Team const& team, Layout const& layout, track where, slot_t const* slots,
                                  std::uint32_t count, float* to) {
    load_rows(team, layout, where, slots, count, to, layout.channels());
    return {to, layout.channels()};
  }

  template <class Team, class Keys, class Centers>
  KVMELD_HD void keys_only(Team const& team, track where, Keys const& keys, slot_t const* sources,
                           std::uint32_t rows, Centers centers, candidate* out) const {
    std::uint32_t const d = keys.channels();
    float* const a = team.template scratch<float>(std::size_t{tile_rows} * d);
    float* const b = team.template scratch<float>(std::size_t{tile_rows} * d);
    detail::row_match const match(team, tile_rows);
    load(team, keys, where, sources, rows, a);
    team.sync();
    match.begin(team, a, rows, d);
    team.for_each(rows, [&](std::uint32_t i) { out[i] = {0, sources[i], sources[i]}; });
    centers([&](slot_t const* targets, std::uint32_t columns) {
      load(team, keys, where, targets, columns, b);
      team.sync();
      // The columns of every block are numbered from 0. A match better than those before gets its slot here.
      team.for_each(rows, [&](std::uint32_t i) { out[i].key = match.best_key[i]; });
      tile_similarity(team, a, rows, b, columns, d, 0, match);
      team.for_each(rows, [&](std::uint32_t i) {
        if (match.best_key[i] == out[i].key) return;
        out[i] = {match.best_key[i], sources[i], targets[match.best_column[i]]};
      });
    });
    team.for_each(rows, [&](std::uint32_t i) { out[i].key = match.best_key[i]; });
  }

  template <class Team, class Keys, class Values, class Centers>
  KVMELD_HD void both(Team const& team, track where, kv<Keys, Values> const& x, slot_t const* sources,
                      std::uint32_t rows, Centers centers, candidate* out) const {
    std::size_t const dk = x.keys.channels();
    std::size_t const dv = x.values.channels();
    float* const ak = team.template scratch<float>(tile_rows * dk);
    float* const bk = team.template scratch<float>(tile_rows * dk);
    float* const av = team.template scratch<float>(tile_rows * dv);
    float* const bv = team.template scratch<float>(tile_rows * dv);
    detail::row_match const by_key(team, tile_rows);
    detail::row_match const by_value(team, tile_rows);
    float* const products = team.template scratch<float>(2 * tile_rows * tile_rows);
    row_block const source_keys = load(team, x.keys, where, sources, rows, ak);
    row_block const source_values = load(team, x.values, where, sources, rows, av);
    team.sync();
    by_key.begin(team, ak, rows, x.keys.channels());
    by_value.begin(team, av, rows, x.values.channels());
    centers([&](slot_t const* targets, std::uint32_t columns) {
      row_block const target_keys = load(team, x.keys, where, targets, columns, bk);
      row_block const target_values = load(team, x.values, where, targets, columns, bv);
      team.sync();
      tile_redundancy(team, source_keys, source_values, rows, target_keys, target_values, columns, targets,
                      By == resemblance::signed_product, by_key, by_value, products);
    });
    team.for_each(rows, [&](std::uint32_t i) {
      bool const matched = by_key.best_key[i] != 0;
      out[i] = {by_key.best_key[i], sources[i], matched ? by_key.best_column[i] : sources[i]};
    });
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
