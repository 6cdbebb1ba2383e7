// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, see host_kernels.hpp: dot products of many rows with many rows. Every
// pair is summed in the 16 strided partials and the tree of core/dot.hpp, each partial with multiply_add.
// Where products are exact in float (16-bit inputs) or nothing is fused (SSE2), the bits are those of the
// generic loops. Otherwise each of the d additions rounds once less. The bits of a pair do not depend on its
// neighbours.

constexpr std::uint32_t block_rows = 4;
constexpr std::uint32_t block_columns = width == 16 ? 4 : 2;
constexpr std::uint32_t block_pairs = block_rows * block_columns;
constexpr std::uint32_t block_vectors = block_pairs / width;
constexpr std::uint32_t quarters = 16 / width;

/// Lane i of the vectors out[0] .. out[block_vectors - 1], counted through, is dot(row r of a, row c of b)
/// with i = r * block_columns + c. Rows lie a_ld and b_ld elements apart; a distance of 0 uses one row
/// several times.
template <class T>
KVMELD_SIMD void block_dots(float const* a, std::size_t a_ld, T const* b, std::size_t b_ld, std::uint32_t d,
                            floats* out) {
  floats part[quarters][block_pairs];
  std::size_t const whole = d / 16 * 16;
  for (std::uint32_t q = 0; q < quarters; ++q) {
    floats sum[block_pairs];
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < block_pairs; ++i) sum[i] = floats{};
    std::size_t k = q * width;
    for (; k < whole; k += 16) {
      floats column[block_columns];
#pragma GCC unroll 4
      for (std::uint32_t c = 0; c < block_columns; ++c) column[c] = decode_one(b + k + c * b_ld);
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < block_rows; ++r) {
        floats const row = load(a + k + r * a_ld);
#pragma GCC unroll 4
        for (std::uint32_t c = 0; c < block_columns; ++c) {
          sum[r * block_columns + c] = multiply_add(row, column[c], sum[r * block_columns + c]);
        }
      }
    }
    if (k < d) {
      std::uint32_t const n = d - k < width ? static_cast<std::uint32_t>(d - k) : width;
      floats column[block_columns];
      for (std::uint32_t c = 0; c < block_columns; ++c) column[c] = decode_some(b + k + c * b_ld, n);
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < block_rows; ++r) {
        floats const row = load_some(a + k + r * a_ld, n);
#pragma GCC unroll 4
        for (std::uint32_t c = 0; c < block_columns; ++c) {
          sum[r * block_columns + c] = multiply_add(row, column[c], sum[r * block_columns + c]);
        }
      }
    }
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < block_pairs; ++i) part[q][i] = sum[i];
  }
#if KVMELD_SIMD_WIDTH == 8
#pragma GCC unroll 16
  for (std::uint32_t i = 0; i < block_pairs; ++i) part[0][i] = part[0][i] + part[1][i];
#elif KVMELD_SIMD_WIDTH == 4
#pragma GCC unroll 16
  for (std::uint32_t i = 0; i < block_pairs; ++i) {
    part[0][i] = (part[0][i] + part[2][i]) + (part[1][i] + part[3][i]);
  }
#endif
#pragma GCC unroll 4
  for (std::uint32_t v = 0; v < block_vectors; ++v) out[v] = fold(part[0] + v * width);
}

/// How many rows or columns the next block takes: a whole block, or one where fewer are left.
KVMELD_SIMD std::uint32_t next_step(std::uint32_t left, std::uint32_t block) {
  return left >= block ? block : 1;
}

/// out[i * out_ld + j] = dot(a row i, b row j).
template <class T>
KVMELD_ENTRY void products(float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b,
                           std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                           std::uint32_t out_ld) {
  for (std::uint32_t i = 0, high = 0; i < rows; i += high) {
    high = next_step(rows - i, block_rows);
    float const* const row = a + std::size_t{i} * a_ld;
    for (std::uint32_t j = 0, wide = 0; j < columns; j += wide) {
      wide = next_step(columns - j, block_columns);
      if (i == 0 && j + rows_ahead + block_columns <= columns) {
        for (std::uint32_t c = 0; c < block_columns; ++c) fetch_row(b + (j + rows_ahead + c) * b_ld, d);
      }
      floats sums[block_vectors];
      block_dots(row, high == 1 ? 0 : a_ld, b + std::size_t{j} * b_ld, wide == 1 ? 0 : b_ld, d, sums);
      float sum[block_pairs];
      for (std::uint32_t v = 0; v < block_vectors; ++v) store(sum + v * width, sums[v]);
      float* const to = out + std::size_t{i} * out_ld + j;
      if (wide == block_columns) {
        for (std::uint32_t r = 0; r < high; ++r) {
          std::memcpy(to + std::size_t{r} * out_ld, sum + r * block_columns, block_columns * sizeof(float));
        }
      } else {
        for (std::uint32_t r = 0; r < high; ++r) to[std::size_t{r} * out_ld] = sum[r * block_columns];
      }
    }
  }
}

/// The sum of 16 partials as `width` partials.
KVMELD_SIMD floats add_quarters(floats const* sum) {
#if KVMELD_SIMD_WIDTH == 16
  return sum[0];
#elif KVMELD_SIMD_WIDTH == 8
  return sum[0] + sum[1];
#else
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
#endif
}

constexpr std::uint32_t listed_rows = 4;  // rows of a list that share the loads of the other row

/// part[r] = the `width` partial sums of dot(rows[r], x). `fold` adds them up.
template <class T>
KVMELD_SIMD void list_partials(T const* const* rows, float const* x, std::uint32_t d, floats* part) {
  std::size_t const whole = d / 16 * 16;
  floats sum[listed_rows][quarters];
#pragma GCC unroll 4
  for (std::uint32_t q = 0; q < quarters; ++q) {
#pragma GCC unroll 4
    for (std::uint32_t r = 0; r < listed_rows; ++r) sum[r][q] = floats{};
    std::size_t k = q * width;
    for (; k < whole; k += 16) {
      floats const other = load(x + k);
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < listed_rows; ++r) {
        sum[r][q] = multiply_add(decode_one(rows[r] + k), other, sum[r][q]);
      }
    }
    if (k < d) {
      std::uint32_t const n = d - k < width ? static_cast<std::uint32_t>(d - k) : width;
      floats const other = load_some(x + k, n);
      for (std::uint32_t r = 0; r < listed_rows; ++r) {
        sum[r][q] = multiply_add(decode_some(rows[r] + k, n), other, sum[r][q]);
      }
    }
  }
#pragma GCC unroll 4
  for (std::uint32_t r = 0; r < listed_rows; ++r) part[r] = add_quarters(sum[r]);
}

/// out[i] = dot(row, row at[i] of pool), with the same bits as in `products`.
template <class T>
KVMELD_ENTRY void dots(float const* row, T const* pool, std::size_t ld, std::uint32_t const* at,
                       std::uint32_t count, std::uint32_t d, float* out) {
  for (std::uint32_t i = 0; i < count; i += width) {
    std::uint32_t const some = count - i < width ? count - i : width;
    floats part[width];
    std::uint32_t j = 0;
    for (; j < some; j += listed_rows) {
      T const* rows[listed_rows];
      for (std::uint32_t r = 0; r < listed_rows; ++r) {
        rows[r] = pool + at[i + (j + r < some ? j + r : some - 1)] * ld;
      }
      list_partials(rows, row, d, part + j);
    }
    if (some <= listed_rows) {  // most lists are this short
      float sum[listed_rows];
      fold_four(part, sum);
      for (std::uint32_t r = 0; r < some; ++r) out[i + r] = sum[r];
      continue;
    }
    for (; j < width; ++j) part[j] = floats{};  // lanes that are not stored
    store_some(out + i, fold(part), some);
  }
}

/// square[i] = dot(row i, row i) and, unless x is null, product[i] = dot(row i, x), with the same bits as in
/// `products`. Rows are in storage type, ld elements apart.
template <class T>
KVMELD_ENTRY void measures(T const* rows, std::size_t ld, std::uint32_t count, std::uint32_t d,
                           float const* x, float* square, float* product) {
  std::size_t const whole = d / 16 * 16;
  for (std::uint32_t first = 0; first < count; first += width) {
    std::uint32_t const some = count - first < width ? count - first : width;
    floats squares[width] = {}, products[width] = {};
    for (std::uint32_t r = 0; r < some; ++r) {
      T const* const row = rows + std::size_t{first + r} * ld;
      floats own[quarters], other[quarters];
#pragma GCC unroll 4
      for (std::uint32_t q = 0; q < quarters; ++q) {
        own[q] = other[q] = floats{};
        std::size_t k = q * width;
        for (; k < whole; k += 16) {
          floats const v = decode_one(row + k);
          own[q] = multiply_add(v, v, own[q]);
          if (x != nullptr) other[q] = multiply_add(v, load(x + k), other[q]);
        }
        if (k < d) {
          std::uint32_t const n = d - k < width ? static_cast<std::uint32_t>(d - k) : width;
          floats const v = decode_some(row + k, n);
          own[q] = multiply_add(v, v, own[q]);
          if (x != nullptr) other[q] = multiply_add(v, load_some(x + k, n), other[q]);
        }
      }
      squares[r] = add_quarters(own);
      products[r] = add_quarters(other);
    }
    store_some(square + first, fold(squares), some);
    if (x != nullptr) store_some(product + first, fold(products), some);
  }
}

constexpr std::uint32_t max_columns = 64;
constexpr std::uint32_t nothing = 0xff800000u;  // -infinity; no cosine has this value

/// The row matching of exec/tile_similarity.hpp: computes cosines, compares them, and updates the best
/// column of each row.
KVMELD_SIMD void match_some(float const* a, std::uint32_t rows, float const* inverse_row, float const* b,
                            std::uint32_t columns, float const* inverse_column, std::uint32_t d,
                            std::uint32_t first_column, std::uint32_t* best_key, std::uint32_t* best_column) {
  float other[max_columns / block_columns][width];  // inverse_column in the order of a vector's lanes
  for (std::uint32_t j = 0; j + block_columns <= columns; j += block_columns) {
    for (std::uint32_t p = 0; p < width; p += block_columns) {
      std::memcpy(other[j / block_columns] + p, inverse_column + j, block_columns * sizeof(float));
    }
  }
  integers step;
  for (int i = 0; i < width; ++i) step[i] = i % static_cast<int>(block_columns);
  for (std::uint32_t i = 0, high = 0; i < rows; i += high) {
    high = next_step(rows - i, block_rows);
    float inverse[block_pairs];
    for (std::uint32_t p = 0; p < block_pairs; ++p)
      inverse[p] = inverse_row[high == 1 ? i : i + p / block_columns];
    floats best[block_vectors];
    integers at[block_vectors];
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < block_vectors; ++v) {
      best[v] = all(bits_float(nothing));
      at[v] = integers{};
    }
    for (std::uint32_t j = 0, wide = 0; j < columns; j += wide) {
      wide = next_step(columns - j, block_columns);
      floats sums[block_vectors];
      block_dots(a + std::size_t{i} * d, high == 1 ? 0 : d, b + std::size_t{j} * d, wide == 1 ? 0 : d, d,
                 sums);
      floats const inverse_b = wide == 1 ? all(inverse_column[j]) : load(other[j / block_columns]);
      integers const here = (wide == 1 ? integers{} : step) + static_cast<std::int32_t>(j);
#pragma GCC unroll 4
      for (std::uint32_t v = 0; v < block_vectors; ++v) {
        keep_larger((sums[v] * load(inverse + v * width)) * inverse_b, here, best[v], at[v]);
      }
    }
    std::uint32_t key[block_pairs];
    std::int32_t column[block_pairs];
    std::memcpy(key, best, sizeof key);
    std::memcpy(column, at, sizeof column);
    for (std::uint32_t& x : key) x = x == nothing ? 0 : order_key(bits_float(x));
    for (std::uint32_t r = 0; r < high; ++r) {
      std::uint32_t top = r * block_columns;
      for (std::uint32_t p = top + 1; p < (r + 1) * block_columns; ++p) {
        if (key[p] > key[top] || (key[p] == key[top] && column[p] < column[top])) top = p;
      }
      if (key[top] > best_key[i + r]) {
        best_key[i + r] = key[top];
        best_column[i + r] = first_column + static_cast<std::uint32_t>(column[top]);
      }
    }
  }
}

KVMELD_ENTRY void match_rows(float const* a, std::uint32_t rows, float const* inverse_row, float const* b,
                             std::uint32_t columns, float const* inverse_column, std::uint32_t d,
                             std::uint32_t first_column, std::uint32_t* best_key,
                             std::uint32_t* best_column) {
  for (std::uint32_t j = 0; j < columns; j += max_columns) {
    std::uint32_t const some = columns - j < max_columns ? columns - j : max_columns;
    match_some(a, rows, inverse_row, b + std::size_t{j} * d, some, inverse_column + j, d, first_column + j,
               best_key, best_column);
  }
}

KVMELD_ENTRY std::uint32_t bound_cosines(float const* products, std::uint32_t n, float inverse_row,
                                         float const* inverse_column, float slack, bool both_signs,
                                         std::uint32_t* bound) {
  integers step;
  for (int i = 0; i < width; ++i) step[i] = i;
  floats best = all(-1.0f);
  integers at{};
  std::uint32_t j = 0;
  for (; j < n; j += width) {
    std::uint32_t const some = n - j < width ? n - j : width;
    floats const product = some == width ? load(products + j) : load_some(products + j, some);
    floats const inverse = some == width ? load(inverse_column + j) : load_some(inverse_column + j, some);
    words const cosine = bits_of((product * all(inverse_row)) * inverse);
    words const negative = reinterpret_cast<words>(reinterpret_cast<integers>(cosine) >> 31);
    words const counted = both_signs ? all_words(0x7fffffffu) : ~negative;
    floats const b = float_of(cosine & counted) * all(slack);
    keep_larger(b, step + static_cast<std::int32_t>(j), best, at);
    if (some == width) {
      store_words(bound + j, bits_of(b));
    } else {
      float tail[width];
      store(tail, b);
      std::memcpy(bound + j, tail, some * sizeof(float));
    }
  }
  std::uint32_t top = 0;
  for (std::uint32_t i = 1; i < width; ++i) {
    if (best[i] > best[top] || (best[i] == best[top] && at[i] < at[top])) top = i;
  }
  // Where no bound is a number, a lane behind the last column may have won.
  std::uint32_t const first = static_cast<std::uint32_t>(at[top]);
  return first < n ? first : n - 1;
}
