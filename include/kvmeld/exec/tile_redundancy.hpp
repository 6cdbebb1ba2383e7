// SPDX-License-Identifier: Apache-2.0
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

namespace detail {

/// No cosine lies above this. Rounding adds up to 2^-23 * (channels / 16 + 8), see tile_similarity.
inline constexpr float max_cosine = 1.001f;

/// Columns of a block at most.
inline constexpr std::uint32_t max_columns = 64;

}  // namespace detail

/// R = cos(k_i, k_j) * cos(v_i, v_j) (EMS Eq. 4). Two negative cosines give a positive R, so both have to be
/// above 0 unless `signed_product` is set. `keys` holds the best columns so far, as slots; `values` holds
/// only inverse norms. At most detail::max_columns columns. Collective; barrier at the end; fixed summation
/// order, one lane per row.
///
/// The product of keys is computed only where the cosine of values alone could beat the best so far: a
/// cosine is at most 1. Values resemble each other less than keys do. Tuned teams multiply all values first.
/// Then they multiply the keys of each row with the columns that are left. If most rows have no match yet,
/// they multiply all keys. They write products to `products`, which has room for 2 * rows * columns floats.
/// Other teams do not use it.
template <class Team>
KVMELD_HD void tile_redundancy(Team const& team, row_block ak, row_block av, std::uint32_t rows, row_block bk,
                               row_block bv, std::uint32_t columns, slot_t const* column_slots,
                               bool signed_product, detail::row_match const& keys,
                               detail::row_match const& values, [[maybe_unused]] float* products) {
  inverse_norms(team, bk.rows, columns, bk.channels, keys.inverse_column);
  inverse_norms(team, bv.rows, columns, bv.channels, values.inverse_column);
  // The order key of R for the row i and the column j; 0 where they do not match.
  auto const key_of = [&](std::uint32_t i, std::uint32_t j, float product_of_keys, float product_of_values) {
    float const ck = cosine(product_of_keys, keys.inverse_row[i], keys.inverse_column[j]);
    float const cv = cosine(product_of_values, values.inverse_row[i], values.inverse_column[j]);
    return signed_product || (ck > 0.0f && cv > 0.0f) ? order_key(ck * cv) : 0u;
  };
  if (with_kernels(team, [&](auto const& kernels) {
        float* const of_keys = products + std::size_t{rows} * columns;
        auto const multiply = [&](row_block a, row_block b, float* to) {
          kernels.products(a.rows, rows, a.channels, b.rows, columns, b.channels, a.channels, to, columns);
        };
        std::uint32_t unmatched = 0;
        for (std::uint32_t i = 0; i < rows; ++i) unmatched += keys.best_key[i] == 0 ? 1u : 0u;
        bool const all = 2 * unmatched > rows;
        multiply(av, bv, products);
        if (all) multiply(ak, bk, of_keys);
        std::uint32_t bound[detail::max_columns], list[2 * detail::max_columns];
        for (std::uint32_t i = 0; i < rows; ++i) {
          float const* const of_values = products + std::size_t{i} * columns;
          float* const row = of_keys + std::size_t{i} * columns;  // products of the listed columns, or of all
          std::uint32_t const first =
              kernels.bound_cosines(of_values, columns, values.inverse_row[i], values.inverse_column,
                                    detail::max_cosine, signed_product, bound);
          std::uint32_t best = keys.best_key[i], at = columns;  // columns: one of an earlier block
          auto const compare = [&](std::uint32_t j, float product) {
            std::uint32_t const key = key_of(i, j, product, of_values[j]);
            if (key < best || (key == best && (at == columns || j > at))) return;
            best = key;
            at = j;
          };
          auto const list_possible = [&] {
            return kernels.list_keys(bound, columns, float_bits(max_of(order_value(best), 0.0f)), false,
                                     list);
          };
          if (all) {
            std::uint32_t const count = list_possible();
            for (std::uint32_t n = 0; n < count; ++n) compare(list[n], row[list[n]]);
          } else {
            auto const multiply_listed = [&](std::uint32_t count) {
              kernels.dots(ak[i], bk.rows, bk.channels, list, count, bk.channels, row);
              for (std::uint32_t n = 0; n < count; ++n) compare(list[n], row[n]);
            };
            list[0] = first;  // it raises the bar for the others
            multiply_listed(1);
            multiply_listed(list_possible());
          }
          if (at == columns) continue;
          keys.best_key[i] = best;
          keys.best_column[i] = column_slots[at];
        }
      })) {
    return;
  }
  team.for_each(rows, [&](std::uint32_t i) {
    std::uint32_t best = keys.best_key[i], column = keys.best_column[i];
    for (std::uint32_t j = 0; j < columns; ++j) {
      float const product = dot(av[i], bv[j], av.channels);
      float const cv = cosine(product, values.inverse_row[i], values.inverse_column[j]);
      if (!(cv > 0.0f || signed_product) || order_key((cv < 0.0f ? -cv : cv) * detail::max_cosine) < best)
        continue;
      std::uint32_t const key = key_of(i, j, dot(ak[i], bk[j], ak.channels), product);
      if (key <= best) continue;
      best = key;
      column = column_slots[j];
    }
    keys.best_key[i] = best;
    keys.best_column[i] = column;
  });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
