// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, see host_kernels.hpp: vectors of one register, and the few operations
// that kernels need. A register has KVMELD_SIMD_WIDTH floats. KVMELD_SIMD marks functions with the
// instructions that they may use.

constexpr int width = KVMELD_SIMD_WIDTH;
using floats = float __attribute__((vector_size(4 * width)));
using words = std::uint32_t __attribute__((vector_size(4 * width)));
using integers = std::int32_t __attribute__((vector_size(4 * width)));
using halves = std::uint16_t __attribute__((vector_size(2 * width)));
#if KVMELD_SIMD_WIDTH == 16 && defined(__clang__)
constexpr std::uint16_t every_lane = 0xffff;  // the compilers differ in the sign of some masks
#elif KVMELD_SIMD_WIDTH == 16
constexpr std::int16_t every_lane = -1;
#endif
using loose_floats __attribute__((aligned(4), may_alias)) = floats;  // need not be aligned
using loose_words __attribute__((aligned(4), may_alias)) = words;
using loose_halves __attribute__((aligned(2), may_alias)) = halves;

KVMELD_SIMD floats load(float const* p) { return *reinterpret_cast<loose_floats const*>(p); }
KVMELD_SIMD void store(float* p, floats x) { *reinterpret_cast<loose_floats*>(p) = x; }
KVMELD_SIMD words load_words(std::uint32_t const* p) { return *reinterpret_cast<loose_words const*>(p); }
KVMELD_SIMD void store_words(std::uint32_t* p, words x) { *reinterpret_cast<loose_words*>(p) = x; }
KVMELD_SIMD halves load_halves(std::uint16_t const* p) { return *reinterpret_cast<loose_halves const*>(p); }
KVMELD_SIMD void store_halves(std::uint16_t* p, halves x) { *reinterpret_cast<loose_halves*>(p) = x; }
KVMELD_SIMD floats all(float x) { return x - floats{}; }
KVMELD_SIMD words all_words(std::uint32_t x) { return x - words{}; }
KVMELD_SIMD words bits_of(floats x) { return reinterpret_cast<words>(x); }
KVMELD_SIMD floats float_of(words x) { return reinterpret_cast<floats>(x); }
KVMELD_SIMD words select(words mask, words a, words b) { return (a & mask) | (b & ~mask); }
KVMELD_SIMD floats select(words mask, floats a, floats b) {
  return float_of(select(mask, bits_of(a), bits_of(b)));
}

/// `widen` turns each half into a word; `narrow` keeps the lower half of each word. g++ would do so in
/// pieces where another form is given.
KVMELD_SIMD words widen(halves x) {
#if KVMELD_SIMD_WIDTH == 16 && !defined(__clang__)
  using shorts = short __attribute__((vector_size(32)));
  using ints = int __attribute__((vector_size(64)));
  return reinterpret_cast<words>(__builtin_ia32_pmovzxwd512_mask(reinterpret_cast<shorts>(x), ints{},
                                                                 static_cast<std::uint16_t>(0xffff)));
#elif KVMELD_SIMD_WIDTH == 8 && !defined(__clang__)
  using shorts = short __attribute__((vector_size(16)));
  return reinterpret_cast<words>(__builtin_ia32_pmovzxwd256(reinterpret_cast<shorts>(x)));
#else
  return __builtin_convertvector(x, words);
#endif
}
KVMELD_SIMD halves narrow(words x) {
#if KVMELD_SIMD_WIDTH == 16 && !defined(__clang__)
  using shorts = short __attribute__((vector_size(32)));
  using ints = int __attribute__((vector_size(64)));
  return reinterpret_cast<halves>(
      __builtin_ia32_pmovdw512_mask(reinterpret_cast<ints>(x), shorts{}, static_cast<std::uint16_t>(0xffff)));
#else
  return __builtin_convertvector(x, halves);
#endif
}

/// Loads the first n < width floats, with zeros after them. Reads nothing beyond them.
KVMELD_SIMD floats load_some(float const* p, std::uint32_t n) {
#if KVMELD_SIMD_WIDTH == 16
  return __builtin_ia32_loadups512_mask(p, floats{}, static_cast<std::uint16_t>((1u << n) - 1u));
#else
  float x[width] = {};
  for (std::uint32_t i = 0; i < n; ++i) x[i] = p[i];
  return load(x);
#endif
}
KVMELD_SIMD void store_some(float* p, floats v, std::uint32_t n) {
#if KVMELD_SIMD_WIDTH == 16
  __builtin_ia32_storeups512_mask(p, v, static_cast<std::uint16_t>((1u << n) - 1u));
#else
  float x[width];
  store(x, v);
  for (std::uint32_t i = 0; i < n; ++i) p[i] = x[i];
#endif
}

/// a * b + c, rounded once where the instructions allow it.
KVMELD_SIMD floats multiply_add(floats a, floats b, floats c) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  return __builtin_ia32_vfmaddps512_mask(a, b, c, every_lane, 4);
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(KVMELD_TUNED_NEON)
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
#elif defined(__FMA__)  // built for FMA: otherwise the compiler would fuse in some places only
  return __builtin_ia32_vfmaddps(a, b, c);
#else
  return a * b + c;
#endif
}

/// Returns x. Compilers neither fuse nor regroup operations across it.
template <class Vector> KVMELD_SIMD Vector settled(Vector x) {
#if defined(KVMELD_TUNED_X86)
  asm("" : "+v"(x));
#else
  asm("" : "+w"(x));
#endif
  return x;
}

/// As many doubles as a register has, half as many as floats.
using doubles = double __attribute__((vector_size(4 * width)));
using narrow_floats = float __attribute__((vector_size(2 * width)));
using loose_doubles __attribute__((aligned(8), may_alias)) = doubles;
using loose_narrow __attribute__((aligned(4), may_alias)) = narrow_floats;
constexpr int double_width = width / 2;
KVMELD_SIMD doubles load_doubles(double const* p) { return *reinterpret_cast<loose_doubles const*>(p); }
KVMELD_SIMD void store_doubles(double* p, doubles x) { *reinterpret_cast<loose_doubles*>(p) = x; }
KVMELD_SIMD void store_as_floats(float* p, doubles x) {
  *reinterpret_cast<loose_narrow*>(p) = __builtin_convertvector(x, narrow_floats);
}

/// a * b + c, rounded twice as in the generic loops, even if the compiler may fuse.
KVMELD_SIMD floats multiply_then_add(floats a, floats b, floats c) { return settled(a * b) + c; }

/// order_key of core/bits.hpp with the top bit flipped, so that signed comparisons order it. The rank of NaN
/// is `no_rank`.
constexpr std::int32_t no_rank = -0x7f800002;  // one below the rank of -infinity
KVMELD_SIMD integers ranks(floats x) {
  integers u = reinterpret_cast<integers>(x);
  u = u == std::numeric_limits<std::int32_t>::min() ? integers{} : u;  // -0
  integers const rank = u ^ ((u >> 31) & 0x7fffffff);
  return rank > 0x7f800000 ? no_rank - integers{} : rank;
}
/// Keeps the larger of best and x, and in `at` where it was found. NaN is never larger.
KVMELD_SIMD void keep_larger(floats x, integers here, floats& best, integers& at) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  std::uint16_t const larger =
      __builtin_ia32_cmpps512_mask(x, best, 30, static_cast<std::uint16_t>(0xffff), 4);
#if defined(__clang__)
  best = __builtin_ia32_selectps_512(larger, x, best);
  at = __builtin_ia32_selectd_512(larger, here, at);
#else
  best = __builtin_ia32_blendmps_512_mask(best, x, larger);
  at = __builtin_ia32_blendmd_512_mask(at, here, larger);
#endif
#else
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  words const larger = reinterpret_cast<words>(__builtin_ia32_cmpps256(x, best, 30));
#elif defined(KVMELD_TUNED_X86)
  words const larger = reinterpret_cast<words>(__builtin_ia32_cmpltps(best, x));
#else
  words const larger = reinterpret_cast<words>(x > best);
#endif
  best = select(larger, x, best);
  at = reinterpret_cast<integers>(select(larger, reinterpret_cast<words>(here), reinterpret_cast<words>(at)));
#endif
}

/// Sums in the tree of core/dot.hpp. Lane i of foldN(a, b) is a[i] + a[i ^ N] where bit N of i is clear, else
/// b[i] + b[i ^ N]. `fold` takes `width` vectors, each with the partial sums of one dot product, and returns
/// a vector with one sum per lane.
#if KVMELD_SIMD_WIDTH == 16
KVMELD_SIMD floats fold8(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31) +
         __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
}
KVMELD_SIMD floats fold4(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
}
KVMELD_SIMD floats fold2(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31) +
         __builtin_shufflevector(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29);
}
KVMELD_SIMD floats fold1(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31) +
         __builtin_shufflevector(a, b, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
}
KVMELD_SIMD floats fold(floats const* p) {
  return fold1(
      fold2(fold4(fold8(p[0], p[8]), fold8(p[4], p[12])), fold4(fold8(p[2], p[10]), fold8(p[6], p[14]))),
      fold2(fold4(fold8(p[1], p[9]), fold8(p[5], p[13])), fold4(fold8(p[3], p[11]), fold8(p[7], p[15]))));
}
#elif KVMELD_SIMD_WIDTH == 8
KVMELD_SIMD floats fold4(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 12, 13, 14, 15) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 8, 9, 10, 11);
}
KVMELD_SIMD floats fold2(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 10, 11, 4, 5, 14, 15) +
         __builtin_shufflevector(a, b, 2, 3, 8, 9, 6, 7, 12, 13);
}
KVMELD_SIMD floats fold1(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 9, 2, 11, 4, 13, 6, 15) +
         __builtin_shufflevector(a, b, 1, 8, 3, 10, 5, 12, 7, 14);
}
KVMELD_SIMD floats fold(floats const* p) {
  return fold1(fold2(fold4(p[0], p[4]), fold4(p[2], p[6])), fold2(fold4(p[1], p[5]), fold4(p[3], p[7])));
}
#else
KVMELD_SIMD floats fold2(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 6, 7) + __builtin_shufflevector(a, b, 2, 3, 4, 5);
}
KVMELD_SIMD floats fold1(floats a, floats b) {
  return __builtin_shufflevector(a, b, 0, 5, 2, 7) + __builtin_shufflevector(a, b, 1, 4, 3, 6);
}
KVMELD_SIMD floats fold(floats const* p) { return fold1(fold2(p[0], p[2]), fold2(p[1], p[3])); }
#endif

/// out[i] = the sum of the partials of p[i], i < 4, with the bits of `fold`.
KVMELD_SIMD void fold_four(floats const* p, float* out) {
#if KVMELD_SIMD_WIDTH == 16
  floats const pairs = fold4(fold8(p[0], p[2]), fold8(p[1], p[3]));
  floats const sum = fold1(fold2(pairs, pairs), fold2(pairs, pairs));
#elif KVMELD_SIMD_WIDTH == 8
  floats const pairs = fold2(fold4(p[0], p[2]), fold4(p[1], p[3]));
  floats const sum = fold1(pairs, pairs);
#else
  floats const sum = fold(p);
#endif
  for (int i = 0; i < 4; ++i) out[i] = sum[i * width / 4];
}

/// Writes the words of the chosen lanes to `out`, side by side. Up to `width` words of `out` may change.
KVMELD_SIMD void pack_lanes(std::uint32_t lanes, words x, std::uint32_t* out) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using bits = int __attribute__((vector_size(64)));
  bits const packed =
      __builtin_ia32_compresssi512_mask(reinterpret_cast<bits>(x), bits{}, static_cast<std::uint16_t>(lanes));
  store_words(out, reinterpret_cast<words>(packed));
#else
  std::uint32_t word[width];
  store_words(word, x);
  for (; lanes != 0; lanes &= lanes - 1) *out++ = word[__builtin_ctz(lanes)];
#endif
}
