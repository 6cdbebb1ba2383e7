// SPDX-License-Identifier: Apache-2.0
// The keys or the values of the sources and targets of a matching by cosine. Both lie in shared memory as
// stored; matrix units multiply them.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/rows.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Rows that a warp multiplies at once.
constexpr std::uint32_t strip_rows = 16;

/// Products of 16 x Columns pairs of rows in registers. Each lane holds its share (warp_place). One fragment
/// of the rows serves Columns / 8 products.
template <std::uint32_t Columns> struct strip_products {
  static constexpr std::uint32_t columns = Columns, results = Columns / 8;
  float c[results][4];
};

/// One side of a matching: keys or values. Rows are multiplied as they are stored, because normalised rows
/// rounded to 16 bits would choose other partners. Products are exact and sums are floats: a cosine differs
/// from the generic one by at most 2^-22 * (d + 8).
template <class Layout> class matching_side {
public:
  using store = row_store<Layout>;

  static std::size_t bytes(std::uint32_t rows, std::uint32_t columns, std::uint32_t channels) {
    return store::bytes(rows, channels) + store::bytes(columns, channels) +
           scratch_size(rows * sizeof(float)) + scratch_size(columns * sizeof(float));
  }

  /// Takes scratch for `rows` sources and `columns` targets. Both are multiples of 16 and of the columns
  /// multiplied at once.
  template <class Team>
  KVMELD_HD matching_side(Team const& team, Layout const& layout, track where, std::uint32_t rows,
                          std::uint32_t columns)
      : layout_(layout),
        where_(where),
        sources_(team, rows, layout.channels()),
        targets_(team, columns, layout.channels()),
        inverse_source_(team.template scratch<float>(rows)),
        inverse_target_(team.template scratch<float>(columns)) {}

  /// Copies the rows. Collective. They are there after finish_copies() and a barrier.
  template <class Team, class Slot>
  KVMELD_HD void load_sources(Team const& team, std::uint32_t count, Slot slot) const {
    sources_.load(team, layout_, where_, count, slot);
  }
  template <class Team, class Slot>
  KVMELD_HD void load_targets(Team const& team, std::uint32_t count, Slot slot) const {
    targets_.load(team, layout_, where_, count, slot);
  }
  /// Computes the norms of the loaded rows. Collective; no barrier.
  template <class Team>
  KVMELD_HD void measure(Team const& team, std::uint32_t rows, std::uint32_t columns) const {
    team.for_each(rows + columns, [&](std::uint32_t i) {
      if (i < rows) {
        inverse_source_[i] = sources_.inverse_norm(i);
      } else {
        inverse_target_[i - rows] = targets_.inverse_norm(i - rows);
      }
    });
  }

  /// Multiplies sources row .. row + 15 with the targets from `column` on. Collective in a warp.
  template <class Team, std::uint32_t Columns>
  KVMELD_HD void multiply(Team const& team, std::uint32_t row, std::uint32_t column,
                          strip_products<Columns>& p) const {
    warp_place const place = place_in_warp(team);
    for (auto& result : p.c) {
      for (float& x : result) x = 0.0f;
    }
    for (std::uint32_t step = 0; step < sources_.steps(); ++step) {
      std::uint32_t a[4];
      sources_.left(place, row, step, a);
      for (std::uint32_t r = 0; r < p.results; ++r) {
        std::uint32_t b[2];
        targets_.right(place, column + 8 * r, step, b);
        team.template multiply<matrix_format_of<typename Layout::element_type>>(p.c[r], a, b);
      }
    }
  }

  KVMELD_HD float cosine_of(float product, std::uint32_t row, std::uint32_t column) const {
    return cosine(product, inverse_source_[row], inverse_target_[column]);
  }

private:
  Layout const& layout_;
  track where_;
  store sources_, targets_;
  float* inverse_source_;
  float* inverse_target_;
};

/// Best target of each source so far, in scratch.
class best_targets {
public:
  static constexpr std::size_t bytes(std::uint32_t rows) {
    return 2 * scratch_size(rows * sizeof(std::uint32_t));
  }
  template <class Team>
  KVMELD_HD best_targets(Team const& team, std::uint32_t rows)
      : key_(team.template scratch<std::uint32_t>(rows)), target_(team.template scratch<slot_t>(rows)) {
    team.for_each(rows, [&](std::uint32_t i) { key_[i] = target_[i] = 0; });
  }

  /// Updates the best targets with the products of a strip. Targets from `columns` on do not exist. key_of(r,
  /// i, row, column) is the order_key of an element, 0 where it never matches. The higher key wins, then the
  /// lower column. slot_of(column) is what is stored for the best column. Collective in a warp; no other warp
  /// has these rows.
  template <std::uint32_t Columns, class Team, class Slot, class Key>
  KVMELD_HD void take(Team const& team, std::uint32_t row, std::uint32_t column, std::uint32_t columns,
                      Slot slot_of, Key key_of) const {
    warp_place const place = place_in_warp(team);
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t const source = row + place.group + 8 * half;
      std::uint32_t key = 0, best = 0;
      for (std::uint32_t r = 0; r < Columns / 8; ++r) {
        for (std::uint32_t i = 0; i < 2; ++i) {
          std::uint32_t const target = column + 8 * r + 2 * place.pair + i;
          if (target >= columns) continue;
          std::uint32_t const k = key_of(r, 2 * half + i, source, target);
          if (k > key) {
            key = k;
            best = target;
          }
        }
      }
      for (std::uint32_t step = 1; step < 4; step *= 2) {
        std::uint32_t const other_key = team.shuffle(key, place.lane ^ step);
        std::uint32_t const other = team.shuffle(best, place.lane ^ step);
        if (other_key > key || (other_key == key && other < best)) {
          key = other_key;
          best = other;
        }
      }
      if (place.pair == 0 && key > key_[source]) {  // earlier blocks have the lower columns
        key_[source] = key;
        target_[source] = slot_of(best);
      }
    }
  }

  KVMELD_HD std::uint32_t key(std::uint32_t row) const { return key_[row]; }
  /// Slot of the best target, 0 if there is none.
  KVMELD_HD slot_t target(std::uint32_t row) const { return target_[row]; }

private:
  std::uint32_t* key_;
  slot_t* target_;
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
