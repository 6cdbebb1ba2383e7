// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set: the passes over keys and scores that selections make. Scores are
// compared by their order keys, so a processor's treatment of subnormal numbers does not matter.

/// One bit per lane: whether x lies above the bar, or without `strictly` not below it.
template <bool strictly> KVMELD_SIMD std::uint32_t lanes_above(words x, words bar) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using bits = int __attribute__((vector_size(64)));
  std::uint32_t lanes = __builtin_ia32_ucmpd512_mask(reinterpret_cast<bits>(x), reinterpret_cast<bits>(bar),
                                                     strictly ? 6 : 5, static_cast<std::uint16_t>(0xffff));
  asm("" : "+r"(lanes));  // g++ 12 may spill the mask in 16 bits and count 32
  return lanes;
#else
  integers const a = reinterpret_cast<integers>(x ^ 0x80000000u);  // there are only signed comparisons
  integers const b = reinterpret_cast<integers>(bar ^ 0x80000000u);
  integers const mask = strictly ? a > b : a >= b;
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  return static_cast<std::uint32_t>(__builtin_ia32_movmskps256(reinterpret_cast<floats>(mask)));
#elif defined(KVMELD_TUNED_X86)
  return static_cast<std::uint32_t>(__builtin_ia32_movmskps(reinterpret_cast<floats>(mask)));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < width; ++i) bits |= (mask[i] != 0 ? 1u : 0u) << i;
  return bits;
#endif
#endif
}

KVMELD_SIMD words lane_numbers() {
  words number{};
  for (int i = 0; i < width; ++i) number[i] = static_cast<std::uint32_t>(i);
  return number;
}

/// out[j] = yes where bit j is set, else no, for j < width.
KVMELD_SIMD void store_choices(std::uint32_t bits, std::uint8_t yes, std::uint8_t no, std::uint8_t* out) {
  constexpr std::uint64_t ones = 0x0101010101010101u;
#pragma GCC unroll 2
  for (int j = 0; j < width; j += 8, bits >>= 8) {
    // Byte j keeps bit j alone. Adding 127 sets the top bit of the byte if that bit was set.
    std::uint64_t const one_each = ((bits & 255u) * ones) & 0x8040201008040201u;
    std::uint64_t const set = (((one_each + 0x7f * ones) >> 7) & ones) * 255;
    std::uint64_t const chosen = ((yes * ones) & set) | ((no * ones) & ~set);
    std::memcpy(out + j, &chosen, width < 8 ? width : 8);
  }
}

constexpr std::uint32_t lowest_key = 0x007fffffu;  // the key of -infinity
KVMELD_ENTRY key_counts partition_scores(float const* scores, std::uint32_t n, std::uint32_t low,
                                         std::uint32_t high, std::uint8_t best, std::uint8_t rest,
                                         std::uint8_t* out, std::uint32_t* keys, std::uint32_t* at,
                                         std::uint32_t room) {
  words const least = all_words(low < lowest_key ? lowest_key : low);  // above NaN
  words const most = all_words(high);
  words const number = lane_numbers();
  std::uint32_t above = 0;
  std::uint32_t inside = 0;
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    words const x = reinterpret_cast<words>(ranks(load(scores + i))) ^ 0x80000000u;
    std::uint32_t const over = lanes_above<true>(x, most);
    std::uint32_t const lanes = lanes_above<false>(x, least) & ~over;
    store_choices(over, best, rest, out + i);
    above += static_cast<std::uint32_t>(__builtin_popcount(over));
    if (inside + width <= room) {
      pack_lanes(lanes, x, keys + inside);
      pack_lanes(lanes, number + i, at + inside);
    }
    inside += static_cast<std::uint32_t>(__builtin_popcount(lanes));
  }
  for (; i < n; ++i) {
    std::uint32_t const key = order_key(scores[i]);
    out[i] = key > high ? best : rest;
    above += key > high ? 1 : 0;
    if (key < low || key > high) continue;
    if (inside < room) {
      keys[inside] = key;
      at[inside] = i;
    }
    ++inside;
  }
  return {above, inside};
}

KVMELD_ENTRY key_counts collect_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t low,
                                     std::uint32_t high, std::uint32_t* out, std::uint32_t room) {
  words const least = all_words(low);
  words const most = all_words(high);
  std::uint32_t above = 0;
  std::uint32_t inside = 0;
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    words const x = load_words(keys + i);
    std::uint32_t const over = lanes_above<true>(x, most);
    std::uint32_t const lanes = lanes_above<false>(x, least) & ~over;
    above += static_cast<std::uint32_t>(__builtin_popcount(over));
    if (inside + width <= room) pack_lanes(lanes, x, out + inside);
    inside += static_cast<std::uint32_t>(__builtin_popcount(lanes));
  }
  for (; i < n; ++i) {
    above += keys[i] > high ? 1 : 0;
    if (keys[i] < low || keys[i] > high) continue;
    if (inside < room) out[inside] = keys[i];
    ++inside;
  }
  return {above, inside};
}

template <bool strictly>
KVMELD_SIMD std::uint32_t list_any(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar,
                                   std::uint32_t* out) {
  words const least = all_words(bar);
  std::uint32_t count = 0;
  words const number = lane_numbers();
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    std::uint32_t const lanes = lanes_above<strictly>(load_words(keys + i), least);
    pack_lanes(lanes, number + i, out + count);
    count += static_cast<std::uint32_t>(__builtin_popcount(lanes));
  }
  for (; i < n; ++i) {
    if (strictly ? keys[i] > bar : keys[i] >= bar) out[count++] = i;
  }
  return count;
}
KVMELD_ENTRY std::uint32_t list_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar,
                                     bool strictly, std::uint32_t* out) {
  return strictly ? list_any<true>(keys, n, bar, out) : list_any<false>(keys, n, bar, out);
}

KVMELD_SIMD std::uint32_t count_from(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar) {
  words const least = all_words(bar);
  std::uint32_t count = 0;
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    count += static_cast<std::uint32_t>(__builtin_popcount(lanes_above<false>(load_words(keys + i), least)));
  }
  for (; i < n; ++i) count += keys[i] >= bar ? 1 : 0;
  return count;
}

/// The k-th highest of n >= k >= 1 keys, found bit by bit.
KVMELD_ENTRY std::uint32_t kth_key(std::uint32_t const* keys, std::uint32_t n, std::uint32_t k) {
  std::uint32_t common = keys[0];
  std::uint32_t any = keys[0];
  for (std::uint32_t i = 1; i < n; ++i) {
    common &= keys[i];
    any |= keys[i];
  }
  std::uint32_t key = common;
  for (std::uint32_t bits = any & ~common; bits != 0;) {
    std::uint32_t const bit = 1u << (31 - __builtin_clz(bits));
    // The k-th highest key agrees with `key` above this bit. It has this bit set exactly if at least k keys
    // are not below `next`.
    std::uint32_t const next = (key & ~(bit - 1)) | bit;
    if (count_from(keys, n, next) >= k) key |= bit;
    bits &= ~bit;
  }
  return key;
}
