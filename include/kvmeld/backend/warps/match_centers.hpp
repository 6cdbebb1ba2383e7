// SPDX-License-Identifier: Apache-2.0
// Matching with centres on matrix units: keys and values in one pass for EMS, keys for D2O.
#pragma once

#include <kvmeld/backend/warps/matching_side.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/nearest_center.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Stands for the values where only keys are multiplied.
struct no_side {
  template <class Team, class Layout>
  KVMELD_HD no_side(Team const&, Layout const&, track, std::uint32_t, std::uint32_t) {}
  static std::size_t bytes(std::uint32_t, std::uint32_t, std::uint32_t) { return 0; }
  template <class Team, class Slot> KVMELD_HD void load_sources(Team const&, std::uint32_t, Slot) const {}
  template <class Team, class Slot> KVMELD_HD void load_targets(Team const&, std::uint32_t, Slot) const {}
  template <class Team> KVMELD_HD void measure(Team const&, std::uint32_t, std::uint32_t) const {}
};

/// The sides for the rows that an identifier is given: keys alone, or keys and values.
template <class Rows> struct sides_of {
  using keys = matching_side<Rows>;
  using values = no_side;
  static constexpr bool has_values = false;
};
template <class Keys, class Values> struct sides_of<kv<Keys, Values>> {
  using keys = matching_side<Keys>;
  using values = matching_side<Values>;
  static constexpr bool has_values = true;
};

/// The proposal of nearest_center. The resemblance of the chosen centre is within four times matching_side's
/// bound of the best one's. Cosines within the bound of 0 may fall to either side of 0.
template <class Identify, class Rows> struct match_centers;

template <class Admit, identify::resemblance By, class Rows>
struct match_centers<identify::nearest_center<Admit, By>, Rows> {
  using sides = sides_of<Rows>;
  using untuned_phase = detail::propose_phase<identify::nearest_center<Admit, By>, Rows>;
  static constexpr bool near_scratch = true;
  static constexpr std::uint32_t max_rows = 128, max_columns = 64, strip_columns = 32;
  untuned_phase untuned;

  KVMELD_HD static bool takes(untuned_phase const&) { return true; }

  KVMELD_HD std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, max_rows); }
  std::size_t scratch_bytes(int) const {
    shape const& s = untuned.wave.ledger.extent;
    return sides::keys::bytes(max_rows, max_columns, s.key_dim) +
           sides::values::bytes(max_rows, max_columns, s.value_dim) + best_targets::bytes(max_rows);
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    std::uint32_t const first = t.index * max_rows;
    if (s.over_budget == 0 || first >= s.live_count) return;
    std::uint32_t const rows = min_of(max_rows, s.live_count - first);
    slot_t const* const sources = wave.live + wave.at(t.item, first);
    slot_t const* const centers = wave.centers(t.item);

    typename sides::keys const keys(team, key_layout(), t.where, max_rows, max_columns);
    typename sides::values const values(team, value_layout(), t.where, max_rows, max_columns);
    best_targets const best(team, max_rows);
    auto const source_of = [&](std::uint32_t i) { return sources[i]; };
    if (s.centers != 0) {
      keys.load_sources(team, rows, source_of);
      values.load_sources(team, rows, source_of);
    }
    for (std::uint32_t j = 0; j < s.centers; j += max_columns) {
      std::uint32_t const columns = min_of(max_columns, s.centers - j);
      auto const target_of = [&](std::uint32_t i) { return centers[j + i]; };
      keys.load_targets(team, columns, target_of);
      values.load_targets(team, columns, target_of);
      team.finish_copies();
      team.sync();
      keys.measure(team, j == 0 ? rows : 0, columns);
      values.measure(team, j == 0 ? rows : 0, columns);
      team.sync();
      for (std::uint32_t row = warp_of(team) * strip_rows; row < rows; row += warps_of(team) * strip_rows) {
        for (std::uint32_t column = 0; column < columns; column += strip_columns) {
          match(team, keys, values, best, row, column, columns, target_of);
        }
      }
      team.sync();
    }
    candidate* const out = wave.candidates + wave.at(t.item, first);
    team.for_each(rows, [&](std::uint32_t i) {
      std::uint32_t const key = s.centers == 0 ? 0 : best.key(i);
      out[i] = {key, sources[i], key != 0 ? best.target(i) : sources[i]};
    });
  }

private:
  KVMELD_HD auto const& key_layout() const {
    if constexpr (sides::has_values) {
      return untuned.rows.keys;
    } else {
      return untuned.rows;
    }
  }
  KVMELD_HD auto const& value_layout() const {
    if constexpr (sides::has_values) {
      return untuned.rows.values;
    } else {
      return untuned.rows;
    }
  }

  template <class Team, class Keys, class Values, class Slot>
  KVMELD_HD static void match(Team const& team, Keys const& keys, Values const& values,
                              best_targets const& best, std::uint32_t row, std::uint32_t column,
                              std::uint32_t columns, Slot target_of) {
    strip_products<strip_columns> k;
    keys.multiply(team, row, column, k);
    if constexpr (sides::has_values) {
      strip_products<strip_columns> v;
      values.multiply(team, row, column, v);
      best.template take<strip_columns>(
          team, row, column, columns, target_of,
          [&](std::uint32_t r, std::uint32_t i, std::uint32_t source, std::uint32_t target) {
            float const ck = keys.cosine_of(k.c[r][i], source, target);
            float const cv = values.cosine_of(v.c[r][i], source, target);
            bool const counts = By == identify::resemblance::signed_product || (ck > 0.0f && cv > 0.0f);
            return counts ? order_key(ck * cv) : 0u;
          });
    } else {
      best.template take<strip_columns>(
          team, row, column, columns, target_of,
          [&](std::uint32_t r, std::uint32_t i, std::uint32_t source, std::uint32_t target) {
            return order_key(keys.cosine_of(k.c[r][i], source, target));
          });
    }
  }
};

template <class Rows> struct has_matching_sides : has_matrix_rows<Rows> {};
template <class Keys, class Values>
struct has_matching_sides<kv<Keys, Values>>
    : std::bool_constant<has_matrix_rows<Keys>::value && has_matrix_rows<Values>::value> {};

}  // namespace tuned_form

template <class Admit, identify::resemblance By, class Rows>
struct tuned<warps, detail::propose_phase<identify::nearest_center<Admit, By>, Rows>,
             std::enable_if_t<tuned_form::has_matching_sides<Rows>::value>>
    : detail::tuned_by_form<detail::propose_phase<identify::nearest_center<Admit, By>, Rows>,
                            tuned_form::match_centers<identify::nearest_center<Admit, By>, Rows>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
