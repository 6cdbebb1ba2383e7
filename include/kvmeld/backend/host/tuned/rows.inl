// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set: conversion of rows between storage and floats, and weighted sums of
// rows.

using any_word __attribute__((may_alias)) = std::uint32_t;
using any_half __attribute__((may_alias)) = std::uint16_t;

KVMELD_SIMD floats decode_one(float const* p) { return load(p); }
KVMELD_SIMD floats decode_one(bfloat16 const* p) {
  halves const x = load_halves(reinterpret_cast<std::uint16_t const*>(p));
  return float_of(widen(x) << 16);
}
KVMELD_SIMD floats decode_one(float16 const* p) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using bits = short __attribute__((vector_size(32)));
  bits const x = reinterpret_cast<bits>(load_halves(reinterpret_cast<std::uint16_t const*>(p)));
  return __builtin_ia32_vcvtph2ps512_mask(x, floats{}, every_lane, 4);
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  using bits = short __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps256(
      reinterpret_cast<bits>(load_halves(reinterpret_cast<std::uint16_t const*>(p))));
#else  // element_traits<float16>::to_float
  words const x = widen(load_halves(reinterpret_cast<std::uint16_t const*>(p)));
  integers const magnitude = reinterpret_cast<integers>(x & 0x7fffu);
  words const subnormal = bits_of(__builtin_convertvector(magnitude, floats) * 5.9604644775390625e-8f);
  words const high = reinterpret_cast<words>(magnitude >= 0x7c00) & 0x38000000u;
  words const normal = (reinterpret_cast<words>(magnitude) << 13) + 0x38000000u + high;
  return float_of(select(reinterpret_cast<words>(magnitude < 0x0400), subnormal, normal) |
                  ((x & 0x8000u) << 16));
#endif
}

/// Loads the first n < width elements, with zeros after them. Reads nothing beyond them.
KVMELD_SIMD floats decode_some(float const* p, std::uint32_t n) { return load_some(p, n); }
template <class T> KVMELD_SIMD floats decode_some(T const* p, std::uint32_t n) {
  T x[width] = {};
  for (std::uint32_t i = 0; i < n; ++i) x[i] = p[i];
  return decode_one(x);
}

KVMELD_SIMD void encode_one(float* p, floats x) { store(p, x); }
KVMELD_SIMD void encode_one(bfloat16* p, floats x) {
  words const u = bits_of(x);
  words const rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  words const quiet = (u >> 16) | 0x40u;
  words const nan = reinterpret_cast<words>(reinterpret_cast<integers>(u & 0x7fffffffu) > 0x7f800000);
  store_halves(reinterpret_cast<std::uint16_t*>(p), narrow(select(nan, quiet, rounded)));
}
KVMELD_SIMD void encode_one(float16* p, floats x) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using bits = short __attribute__((vector_size(32)));
  bits const y = __builtin_ia32_vcvtps2ph512_mask(x, 0, bits{}, static_cast<std::uint16_t>(0xffff));
  store_halves(reinterpret_cast<std::uint16_t*>(p), reinterpret_cast<halves>(y));
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  store_halves(reinterpret_cast<std::uint16_t*>(p),
               reinterpret_cast<halves>(__builtin_ia32_vcvtps2ph256(x, 0)));
#else
  float y[width];
  store(y, x);
  for (int i = 0; i < width; ++i) p[i] = element_traits<float16>::from_float(y[i]);
#endif
}

template <class T> KVMELD_ENTRY void decode(T const* from, std::uint32_t n, float* to) {
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) store(to + i, decode_one(from + i));
  for (; i < n; ++i) to[i] = element_traits<T>::to_float(from[i]);
}

/// Rows of a tile that are fetched before a kernel comes to them: enough for memory to answer.
constexpr std::uint32_t rows_ahead = 8;

template <class T> KVMELD_SIMD void fetch_row(T const* row, std::uint32_t d) {
  for (std::uint32_t c = 0; c < d; c += 64 / sizeof(T)) __builtin_prefetch(row + c);
}

/// Blends the whole vectors of `count` rows. Returns the channel where they end.
template <std::uint32_t count, class T>
KVMELD_SIMD std::uint32_t blend_few(T const* const* row, float const* weight, std::uint32_t n, T* to) {
  T const* from[count];
  floats share[count];
#pragma GCC unroll 4
  for (std::uint32_t i = 0; i < count; ++i) {
    from[i] = row[i];
    share[i] = all(weight[i]);
  }
  std::uint32_t c = 0;
  for (; c + width <= n; c += width) {
    floats total{};
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < count; ++i)
      total = multiply_then_add(share[i], decode_one(from[i] + c), total);
    encode_one(to + c, total);
  }
  return c;
}

/// Blends whole blocks of `vectors` vectors, from channel c on. Returns the channel where they end.
template <std::uint32_t vectors, class T>
KVMELD_SIMD std::uint32_t blend_many(T const* const* row, float const* weight, std::uint32_t count,
                                     std::uint32_t c, std::uint32_t n, T* to) {
  for (; c + vectors * width <= n; c += vectors * width) {
    floats total[vectors];
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) total[v] = floats{};
    for (std::uint32_t i = 0; i < count; ++i) {
      floats const share = all(weight[i]);
      T const* const from = row[i] + c;
#pragma GCC unroll 4
      for (std::uint32_t v = 0; v < vectors; ++v)
        total[v] = multiply_then_add(share, decode_one(from + v * width), total[v]);
    }
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) encode_one(to + c + v * width, total[v]);
  }
  return c;
}

/// to[c] = sum over i of weight[i] * row[i][c]. Adds in ascending order of i, starting with 0, as blend_rows
/// does. `to` may be one of the rows.
template <class T>
KVMELD_ENTRY void blend(T const* const* row, float const* weight, std::uint32_t count, std::uint32_t n,
                        T* to) {
  std::uint32_t c = count == 2   ? blend_few<2>(row, weight, n, to)
                    : count == 3 ? blend_few<3>(row, weight, n, to)
                                 : blend_many<4>(row, weight, count, 0, n, to);
  c = blend_many<1>(row, weight, count, c, n, to);
  if (c == n) return;
  floats total{};  // the rest in vectors too: a compiler would fuse scalar products and sums
  for (std::uint32_t i = 0; i < count; ++i) {
    float rest[width] = {};
    for (std::uint32_t j = c; j < n; ++j) rest[j - c] = element_traits<T>::to_float(row[i][j]);
    total = multiply_then_add(all(weight[i]), load(rest), total);
  }
  float rest[width];
  store(rest, total);
  for (std::uint32_t j = c; j < n; ++j) to[j] = element_traits<T>::from_float(rest[j - c]);
}

/// Writes a vector past the caches; `to` is aligned.
KVMELD_SIMD void stream(std::byte* to, floats x) {
#if defined(__clang__)
  __builtin_nontemporal_store(x, reinterpret_cast<floats*>(to));
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  __builtin_ia32_movntps512(reinterpret_cast<float*>(to), x);
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  __builtin_ia32_movntps256(reinterpret_cast<float*>(to), x);
#elif defined(KVMELD_TUNED_X86)
  __builtin_ia32_movntps(reinterpret_cast<float*>(to), x);
#else
  std::memcpy(to, &x, sizeof x);
#endif
}
KVMELD_ENTRY void drain() {
#if defined(KVMELD_TUNED_X86)
  __builtin_ia32_sfence();
#endif
}
KVMELD_ENTRY void clear_rows(void* first, std::int64_t stride, std::uint32_t rows, std::size_t bytes) {
  constexpr std::size_t worth_streaming = std::size_t{256} << 10;  // less is likely to be read again soon
  bool const many = rows * bytes >= worth_streaming;
  if (stride == static_cast<std::int64_t>(bytes)) {  // treats them as one row: streams need whole lines
    bytes *= rows;
    rows = 1;
  }
  for (std::uint32_t r = 0; r < rows; ++r) {
    std::byte* const row = static_cast<std::byte*>(first) + r * stride;
    std::size_t const unaligned = (0 - reinterpret_cast<std::uintptr_t>(row)) % sizeof(floats);
    std::size_t i = many && unaligned < bytes ? unaligned : bytes;
    std::memset(row, 0, i);
    for (; i + sizeof(floats) <= bytes; i += sizeof(floats)) stream(row + i, floats{});
    std::memset(row + i, 0, bytes - i);
  }
  if (many) drain();
}
KVMELD_ENTRY void stream_row(void* to, void const* from, std::size_t bytes) {
  if ((reinterpret_cast<std::uintptr_t>(to) | bytes) % 64 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes; i += sizeof(floats)) {
    floats x;
    std::memcpy(&x, static_cast<std::byte const*>(from) + i, sizeof x);
    stream(static_cast<std::byte*>(to) + i, x);
  }
}

/// Whether no element is NaN or infinite. NaN and infinities have all exponent bits set.
template <class Vector, class Word>
KVMELD_SIMD bool all_below(Word const* x, std::uint32_t n, Word exponent) {
  using loose __attribute__((aligned(sizeof(Word)), may_alias)) = Vector;
  constexpr std::uint32_t lanes = sizeof(Vector) / sizeof(Word);
  Vector bad{};
  std::uint32_t i = 0;
  for (; i + lanes <= n; i += lanes)
    bad |= reinterpret_cast<Vector>((*reinterpret_cast<loose const*>(x + i) & exponent) == exponent);
  Word flags[lanes];
  std::memcpy(flags, &bad, sizeof flags);
  std::uint32_t any = 0;
  for (Word f : flags) any |= f;
  for (; i < n; ++i) any |= (x[i] & exponent) == exponent ? 1u : 0u;
  return any == 0;
}
using all_halves = std::uint16_t __attribute__((vector_size(4 * width)));
KVMELD_ENTRY bool all_finite(float const* x, std::uint32_t n) {
  return all_below<words>(reinterpret_cast<any_word const*>(x), n, any_word{0x7f800000u});
}
KVMELD_ENTRY bool all_finite(float16 const* x, std::uint32_t n) {
  return all_below<all_halves>(reinterpret_cast<any_half const*>(x), n, any_half{0x7c00u});
}
KVMELD_ENTRY bool all_finite(bfloat16 const* x, std::uint32_t n) {
  return all_below<all_halves>(reinterpret_cast<any_half const*>(x), n, any_half{0x7f80u});
}

KVMELD_SIMD void store_packed(any_word* to, words x, std::uint32_t lanes) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  std::uint32_t packed[width];
  pack_lanes(lanes, x, packed);
  store_some(reinterpret_cast<float*>(to), float_of(load_words(packed)),
             static_cast<std::uint32_t>(__builtin_popcount(lanes)));
#else
  std::uint32_t word[width];
  store_words(word, x);
  for (; lanes != 0; lanes &= lanes - 1) *to++ = word[__builtin_ctz(lanes)];
#endif
}
KVMELD_SIMD void store_packed(any_half* to, words x, std::uint32_t lanes) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using shorts = short __attribute__((vector_size(32)));
#if defined(__clang__)
  using target = shorts;  // the builtin's parameter type differs by compiler
#else
  using target = short;
#endif
  std::uint32_t packed[width];
  pack_lanes(lanes, x, packed);
  std::uint32_t const kept = (1u << __builtin_popcount(lanes)) - 1u;
  __builtin_ia32_storedquhi256_mask(reinterpret_cast<target*>(to),
                                    reinterpret_cast<shorts>(narrow(load_words(packed))),
                                    static_cast<std::uint16_t>(kept));
#else
  std::uint32_t word[width];
  store_words(word, x);
  for (; lanes != 0; lanes &= lanes - 1) *to++ = static_cast<std::uint16_t>(word[__builtin_ctz(lanes)]);
#endif
}
KVMELD_SIMD words words_at(any_word const* p) { return load_words(p); }
KVMELD_SIMD words words_at(any_half const* p) { return widen(load_halves(p)); }

/// Packs the elements of from[0 .. n) whose bit is set into `to`, in order. `to` must not lie behind `from`.
template <class Element>
KVMELD_SIMD void pack_any(Element* to, Element const* from, std::uint64_t const* bits, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; i += 64) {
    std::uint64_t word = bits[i / 64];
    std::uint32_t const count = n - i < 64 ? n - i : 64;
    std::uint32_t j = 0;
    for (; j + width <= count; j += width, word >>= width) {
      std::uint32_t const lanes = static_cast<std::uint32_t>(word) & ((1u << width) - 1u);
      store_packed(to, words_at(from + i + j), lanes);
      to += __builtin_popcount(lanes);
    }
    for (; word != 0; word &= word - 1)
      *to++ = from[i + j + static_cast<std::uint32_t>(__builtin_ctzll(word))];
  }
}
KVMELD_ENTRY void pack_words(std::uint32_t* to, std::uint32_t const* from, std::uint64_t const* bits,
                             std::uint32_t n) {
  pack_any(to, from, bits, n);
}
KVMELD_ENTRY void pack_halves(std::uint16_t* to, std::uint16_t const* from, std::uint64_t const* bits,
                              std::uint32_t n) {
  pack_any(to, from, bits, n);
}

/// Rotates pairs (x, y). Rounds as the generic loop does.
template <class Vector> KVMELD_SIMD void turn(Vector& x, Vector& y, Vector cosine, Vector sine) {
  Vector const turned = settled(x * cosine) - settled(y * sine);
  y = settled(x * sine) + settled(y * cosine);
  x = turned;
}

/// cosine[p] and sine[p] of `at` * turns[p] turns for p < pairs, as rotation_of computes them. All arrays
/// have most_turned numbers, finite ones behind `pairs` too.
KVMELD_SIMD void rotations_of(double const* turns, std::uint32_t pairs, double at, double* cosine,
                              double* sine) {
  double angle[most_turned], quarters[most_turned];
  for (std::uint32_t p = 0; p < pairs; p += double_width)
    store_doubles(angle + p, settled(load_doubles(turns + p) * at));
  for (std::uint32_t p = 0; p < most_turned && p < pairs + double_width; ++p) {
    double const part = angle[p] - std::floor(angle[p] + 0.5);
    quarters[p] = std::floor(4.0 * part + 0.5);
    angle[p] = (part - 0.25 * quarters[p]) * 6.28318530717958647693;
  }
  for (std::uint32_t p = 0; p < pairs; p += double_width) {
    doubles const x = load_doubles(angle + p), square = settled(x * x);
    doubles c = doubles{} + 1.0, s = c;
    for (int n = 16; n > 0; n -= 2) {
      c = 1.0 - settled(settled(square * c) * (1.0 / (n * (n - 1))));
      s = 1.0 - settled(settled(square * s) * (1.0 / (n * (n + 1))));
    }
    store_doubles(cosine + p, c);
    store_doubles(sine + p, settled(s * x));
  }
  for (std::uint32_t p = 0; p < pairs; ++p) {
    double const by_quarter[] = {cosine[p], -sine[p], -cosine[p], sine[p]};
    auto const quarter = static_cast<unsigned>(static_cast<int>(quarters[p]));
    cosine[p] = by_quarter[quarter & 3];
    sine[p] = by_quarter[(quarter + 3) & 3];
  }
}

/// See host_kernels.hpp.
KVMELD_ENTRY void turn_run(float* rows, std::uint32_t count, std::uint32_t dim, std::uint32_t pairs,
                           std::uint32_t apart, double const* turns, std::int64_t at, int step) {
  double padded[most_turned] = {};
  for (std::uint32_t p = 0; p < pairs; ++p) padded[p] = turns[p];
  double cosine[most_turned] = {}, sine[most_turned] = {}, step_cosine[most_turned] = {},
         step_sine[most_turned] = {};
  rotations_of(padded, pairs, static_cast<double>(at), cosine, sine);
  if (count > 1) rotations_of(padded, pairs, step, step_cosine, step_sine);
  float c[most_turned] = {}, s[most_turned] = {};
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t p = 0; p < pairs; p += double_width) {
      doubles x = load_doubles(cosine + p), y = load_doubles(sine + p);
      if (i > 0) {
        turn(x, y, load_doubles(step_cosine + p), load_doubles(step_sine + p));
        store_doubles(cosine + p, x);
        store_doubles(sine + p, y);
      }
      store_as_floats(c + p, x);
      store_as_floats(s + p, y);
    }
    for (std::uint32_t p = 0; p < pairs; p += width) {
      std::uint32_t const n = pairs - p < width ? pairs - p : width;
      float* const row = rows + std::size_t{i} * dim + (apart == 1 ? 2 * p : p);
      floats const by_cosine = load(c + p), by_sine = load(s + p);
      if (apart != 1 && n == width) {
        floats x = load(row), y = load(row + apart);
        turn(x, y, by_cosine, by_sine);
        store(row, x);
        store(row + apart, y);
        continue;
      }
      std::uint32_t const next = apart == 1 ? 2 : 1;  // from a pair to the next
      float first[width] = {}, second[width] = {};
      for (std::uint32_t j = 0; j < n; ++j) {
        first[j] = row[j * next];
        second[j] = row[j * next + apart];
      }
      floats x = load(first), y = load(second);
      turn(x, y, by_cosine, by_sine);
      store(first, x);
      store(second, y);
      for (std::uint32_t j = 0; j < n; ++j) {
        row[j * next] = first[j];
        row[j * next + apart] = second[j];
      }
    }
  }
}
