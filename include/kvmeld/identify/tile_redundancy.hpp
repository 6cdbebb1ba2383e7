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
  // Products of the row i and the column j. `skip` says where no product of values is needed.
  auto const match = [&](auto product_of_keys, auto product_of_values, auto skip) {
    team.for_each(rows, [&](std::uint32_t i) {
      std::uint32_t key = keys.best_key[i];
      std::uint32_t column = keys.best_column[i];
      for (std::uint32_t j = 0; j < columns; ++j) {
        float const ck = cosine(product_of_keys(i, j), keys.inverse_row[i], keys.inverse_column[j]);
        if (skip(ck, key)) continue;
        float const cv = cosine(product_of_values(i, j), values.inverse_row[i], values.inverse_column[j]);
        if (!signed_product && !(ck > 0.0f && cv > 0.0f)) continue;
        std::uint32_t const k = order_key(ck * cv);
        if (k <= key) continue;
        key = k;
        column = column_slots[j];
      }
      keys.best_key[i] = key;
      keys.best_column[i] = column;
    });
    team.sync();
  };
  if (is_tuned(team)) {
    float* const more = products + std::size_t{rows} * columns;
    auto const multiply = [&](row_block a, row_block b, float* to) {
      row_products(team, a.rows, rows, a.channels, b.rows, columns, b.channels, a.channels, to, columns);
    };
    multiply(ak, bk, products);
    multiply(av, bv, more);
    auto const read = [=](float const* from) {
      return [=](std::uint32_t i, std::uint32_t j) { return from[std::size_t{i} * columns + j]; };
    };
    return match(read(products), read(more), [](float, std::uint32_t) { return false; });
  }
  auto const multiply = [](row_block a, row_block b) {
    return [=](std::uint32_t i, std::uint32_t j) { return dot(a[i], b[j], a.channels); };
  };
  match(multiply(ak, bk), multiply(av, bv), [&](float ck, std::uint32_t key) {
    constexpr float above_one = 1.0001f;
    float const bound = ck < 0.0f ? -ck : ck;
    return !(ck > 0.0f || signed_product) || order_key(bound * above_one) < key;
  });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
