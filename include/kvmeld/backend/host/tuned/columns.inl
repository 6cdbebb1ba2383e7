// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set: merging in columns of storage, `width` channels at a time.

/// zip_low and zip_high interleave the lanes of the lower and of the upper halves of two vectors.
#if KVMELD_SIMD_WIDTH == 16
KVMELD_SIMD words zip_low(words a, words b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
KVMELD_SIMD words zip_high(words a, words b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif KVMELD_SIMD_WIDTH == 8
KVMELD_SIMD words zip_low(words a, words b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
KVMELD_SIMD words zip_high(words a, words b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
KVMELD_SIMD words zip_low(words a, words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
KVMELD_SIMD words zip_high(words a, words b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

/// Transposes a square of `width` vectors. Every round rotates the bits of (vector, lane) by one.
KVMELD_SIMD void transpose(words* p) {
  words q[width];
#pragma GCC unroll 4
  for (int round = 1; round < width; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) q[i] = p[i];
#pragma GCC unroll 8
    for (int i = 0; i < width / 2; ++i) {
      p[2 * i] = zip_low(q[i], q[i + width / 2]);
      p[2 * i + 1] = zip_high(q[i], q[i + width / 2]);
    }
  }
}

KVMELD_SIMD void store_raw(any_word* to, words x) { store_words(to, x); }
KVMELD_SIMD void store_raw(any_half* to, words x) { store_halves(to, narrow(x)); }

/// Copies slots first .. first + width - 1 of `width` columns to rows of `width` channels.
template <class Raw> KVMELD_SIMD void columns_to_rows(Raw const* columns, std::int64_t stride, Raw* rows) {
  words p[width];
#pragma GCC unroll 16
  for (int c = 0; c < width; ++c) p[c] = words_at(columns + c * stride);
  transpose(p);
#pragma GCC unroll 16
  for (int s = 0; s < width; ++s) store_raw(rows + s * width, p[s]);
}

/// Element pivot[n] of `width` columns = row n. Takes four columns at a time, because lines of more could
/// share a set of the processor's cache.
template <class Raw>
KVMELD_SIMD void rows_to_slots(Raw const* rows, std::uint32_t const* pivot, std::uint32_t count, Raw* columns,
                               std::int64_t stride) {
  for (int c = 0; c < width; c += 4) {
    Raw *const a = columns + c * stride, *const b = a + stride, *const d = b + stride, *const e = d + stride;
    Raw const* from = rows + c;
    for (std::uint32_t n = 0; n < count; ++n, from += width) {
      std::uint32_t const p = pivot[n];
      a[p] = from[0];
      b[p] = from[1];
      d[p] = from[2];
      e[p] = from[3];
    }
  }
}

/// Computes the merged rows of all sets from rows of `width` channels. The first row belongs to slot `first`.
template <class T, class Raw>
KVMELD_SIMD void merge_sets(detail::column_set_list const& sets, Raw const* rows, Raw* merged) {
  std::uint32_t const *const begin = sets.begin, *const order = sets.order, *const member = sets.member;
  float const* const weight = sets.weight;
  std::uint32_t const first = sets.first, count = sets.count;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t const n = order[i], end = begin[n + 1];
    floats total{};
    for (std::uint32_t j = begin[n]; j < end; ++j) {
      Raw const* const row = rows + std::size_t{member[j] - first} * width;
      total = multiply_then_add(all(weight[j]), decode_one(reinterpret_cast<T const*>(row)), total);
    }
    encode_one(reinterpret_cast<T*>(merged + std::size_t{n} * width), total);
  }
}

/// x[pivot] = sum of weight * x[member] for every set, in whole groups of `width` channels; see
/// typed_kernels::merge_columns.
template <class Raw, class T>
KVMELD_SIMD std::uint32_t merge_columns_any(T* columns, std::int64_t stride, std::uint32_t channels,
                                            detail::column_set_list const& sets, void* scratch) {
  Raw* const rows = static_cast<Raw*>(scratch);
  Raw* const merged = rows + std::size_t{sets.slots} * width;
  std::uint32_t done = 0;
  for (; done + width <= channels; done += width) {
    Raw* const base = reinterpret_cast<Raw*>(columns + done * stride);
    for (std::uint32_t s = 0; s < sets.slots; s += width) {
      if ((sets.squares[s / width / 64] >> (s / width % 64) & 1) != 0)
        columns_to_rows(base + sets.first + s, stride, rows + std::size_t{s} * width);
    }
    merge_sets<T>(sets, rows, merged);
    rows_to_slots(merged, sets.pivot, sets.count, base, stride);
  }
  return done;
}
template <class T>
KVMELD_ENTRY std::uint32_t merge_columns(T* columns, std::int64_t stride, std::uint32_t channels,
                                         detail::column_set_list const& sets, void* scratch) {
  if constexpr (sizeof(T) == sizeof(any_word)) {
    return merge_columns_any<any_word>(columns, stride, channels, sets, scratch);
  } else {
    return merge_columns_any<any_half>(columns, stride, channels, sets, scratch);
  }
}
