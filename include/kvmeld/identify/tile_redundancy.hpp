// Best column of each row where keys and values have to agree: generic form of the primitive behind
// nearest_center.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/tile_similarity.hpp>

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
/// only inverse norms. The value product is computed only where the key cosine alone could beat the best so
/// far, since cosines of values are at most 1 up to rounding. Cooperative; barrier at the end; fixed
/// summation order, one lane per row. The host's tuned form computes all products of keys and values first,
/// in the same order of summation (see tile_similarity). It writes them to `products`, which has room for
/// 2 * rows * columns floats. The generic form does not use `products`.
template <class Team>
KVMELD_HD void tile_redundancy(Team const& team, row_block ak, row_block av, std::uint32_t rows, row_block bk,
                               row_block bv, std::uint32_t columns, slot_t const* column_slots,
                               bool signed_product, detail::row_match const& keys,
                               detail::row_match const& values, [[maybe_unused]] float* products) {
  if constexpr (has_kernels<Team>::value) {
    if (auto const* const tuned = team.kernels()) {
      float* const more = products + std::size_t{rows} * columns;
      tuned->inverse_norms(bk.rows, columns, bk.channels, keys.inverse_column);
      tuned->inverse_norms(bv.rows, columns, bv.channels, values.inverse_column);
      tuned->products(ak.rows, rows, ak.channels, bk.rows, columns, bk.channels, ak.channels, products,
                      columns);
      tuned->products(av.rows, rows, av.channels, bv.rows, columns, bv.channels, av.channels, more, columns);
      for (std::uint32_t i = 0; i < rows; ++i) {
        for (std::uint32_t j = 0; j < columns; ++j) {
          std::size_t const n = std::size_t{i} * columns + j;
          float const ck = cosine(products[n], keys.inverse_row[i], keys.inverse_column[j]);
          float const cv = cosine(more[n], values.inverse_row[i], values.inverse_column[j]);
          if (!signed_product && !(ck > 0.0f && cv > 0.0f)) continue;
          std::uint32_t const k = order_key(ck * cv);
          if (k <= keys.best_key[i]) continue;
          keys.best_key[i] = k;
          keys.best_column[i] = column_slots[j];
        }
      }
      return;
    }
  }
  team.for_each(columns, [&](std::uint32_t j) {
    keys.inverse_column[j] = inverse_norm(bk[j], bk.channels);
    values.inverse_column[j] = inverse_norm(bv[j], bv.channels);
  });
  team.sync();
  team.for_each(rows, [&](std::uint32_t i) {
    std::uint32_t key = keys.best_key[i];
    std::uint32_t column = keys.best_column[i];
    for (std::uint32_t j = 0; j < columns; ++j) {
      float const ck = cosine(dot(ak[i], bk[j], ak.channels), keys.inverse_row[i], keys.inverse_column[j]);
      constexpr float above_one = 1.0001f;
      float const bound = ck < 0.0f ? -ck : ck;
      if (!(ck > 0.0f || signed_product) || order_key(bound * above_one) < key) continue;
      float const cv =
          cosine(dot(av[i], bv[j], av.channels), values.inverse_row[i], values.inverse_column[j]);
      if (!(cv > 0.0f || signed_product)) continue;
      std::uint32_t const k = order_key(ck * cv);
      if (k > key) {
        key = k;
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
