// Best column of each row where keys and values have to agree.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/tile_similarity.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A block of rows of K or V as floats, [count][channels].
struct row_block {
  float const* rows;
  std::uint32_t channels;
  KVMELD_HD float const* operator[](std::uint32_t i) const { return rows + std::size_t{i} * channels; }
};

/// R = cos(k_i, k_j) * cos(v_i, v_j) (EMS Eq. 4). Two negative cosines give a positive R, so both have to be
/// above 0 unless `signed_product` is set. `keys` holds the best columns so far, as slots; `values` holds
/// only inverse norms. Cooperative; barrier at the end; fixed summation order, one lane per row. Tuned teams
/// compute all products of keys and values first, and write them to `products`, which has room for
/// 2 * rows * columns floats. Other teams do not use `products`. They compute the product of values only
/// where the key cosine alone could beat the best so far, since cosines of values are at most 1 up to
/// rounding.
template <class Team>
KVMELD_HD void tile_redundancy(Team const& team, row_block ak, row_block av, std::uint32_t rows, row_block bk,
                               row_block bv, std::uint32_t columns, slot_t const* column_slots,
                               bool signed_product, detail::row_match const& keys,
                               detail::row_match const& values, float* products) {
  inverse_norms(team, bk.rows, columns, bk.channels, keys.inverse_column);
  inverse_norms(team, bv.rows, columns, bv.channels, values.inverse_column);
  bool const ahead = is_tuned(team);
  float* const more = products + std::size_t{rows} * columns;
  auto const multiply = [&](row_block a, row_block b, float* to) {
    row_products(team, a.rows, rows, a.channels, b.rows, columns, b.channels, a.channels, to, columns);
  };
  if (ahead) {
    multiply(ak, bk, products);
    multiply(av, bv, more);
  }
  team.for_each(rows, [&](std::uint32_t i) {
    std::uint32_t key = keys.best_key[i];
    std::uint32_t column = keys.best_column[i];
    for (std::uint32_t j = 0; j < columns; ++j) {
      std::size_t const n = std::size_t{i} * columns + j;
      float const k = ahead ? products[n] : dot(ak[i], bk[j], ak.channels);
      float const ck = cosine(k, keys.inverse_row[i], keys.inverse_column[j]);
      if (!(ck > 0.0f || signed_product)) continue;
      constexpr float above_one = 1.0001f;
      float const bound = ck < 0.0f ? -ck : ck;
      if (!ahead && order_key(bound * above_one) < key) continue;
      float const v = ahead ? more[n] : dot(av[i], bv[j], av.channels);
      float const cv = cosine(v, values.inverse_row[i], values.inverse_column[j]);
      if (!(cv > 0.0f || signed_product)) continue;
      std::uint32_t const both = order_key(ck * cv);
      if (both > key) {
        key = both;
        column = column_slots[j];
      }
    }
    keys.best_key[i] = key;
    keys.best_column[i] = column;
  });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
