// Compiled once per instruction set: the passes over keys behind select_k. Keys are order keys, or scores in place of
// them: comparing scores is comparing their keys, NaN aside, which is never above or equal to anything here.

/// One bit per lane: x above the bar, or not below it.
template <bool strictly> KVMELD_SIMD std::uint32_t lanes_above(floats x, floats bar) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  return __builtin_ia32_cmpps512_mask(x, bar, strictly ? 30 : 29, static_cast<std::uint16_t>(0xffff), 4);
#elif defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 8
  return static_cast<std::uint32_t>(
      __builtin_ia32_movmskps256(__builtin_ia32_cmpps256(x, bar, strictly ? 30 : 29)));
#elif defined(KVMELD_TUNED_X86)
  return static_cast<std::uint32_t>(
      __builtin_ia32_movmskps(strictly ? __builtin_ia32_cmpltps(bar, x) : __builtin_ia32_cmpleps(bar, x)));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < width; ++i) bits |= ((strictly ? x[i] > bar[i] : x[i] >= bar[i]) ? 1u : 0u) << i;
  return bits;
#endif
}
template <bool strictly> KVMELD_SIMD std::uint32_t lanes_above(words x, words bar) {
#if defined(KVMELD_TUNED_X86) && KVMELD_SIMD_WIDTH == 16
  using bits = int __attribute__((vector_size(64)));
  return static_cast<std::uint16_t>(
      __builtin_ia32_ucmpd512_mask(reinterpret_cast<bits>(x), reinterpret_cast<bits>(bar), strictly ? 6 : 5,
                                   static_cast<std::uint16_t>(0xffff)));
#else
  integers const a = reinterpret_cast<integers>(x ^ 0x80000000u);  // signed comparisons are what there is
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

KVMELD_SIMD words vector_at(std::uint32_t const* keys) { return load_words(keys); }
KVMELD_SIMD floats vector_at(float const* scores) { return load(scores); }
KVMELD_SIMD words bar_of(std::uint32_t key, std::uint32_t const*) { return all_words(key); }
KVMELD_SIMD floats bar_of(std::uint32_t key, float const*) {
  constexpr std::uint32_t lowest = 0x007fffffu, highest = 0xff800000u;  // of the infinities
  return all(float_of_key(key < lowest ? lowest : key > highest ? highest : key));
}
KVMELD_SIMD std::uint32_t key_at(std::uint32_t const* key) { return *key; }
KVMELD_SIMD std::uint32_t key_at(float const* score) { return order_key(*score); }
KVMELD_SIMD words keys_of(words x) { return x; }
KVMELD_SIMD words keys_of(floats x) { return reinterpret_cast<words>(ranks(x)) ^ 0x80000000u; }

template <class Source>
KVMELD_SIMD key_counts collect_any(Source const* keys, std::uint32_t n, std::uint32_t low, std::uint32_t high,
                                   std::uint32_t* out, std::uint32_t room) {
  auto const least = bar_of(low, keys);
  auto const most = bar_of(high, keys);
  std::uint32_t above = 0;
  std::uint32_t inside = 0;
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    auto const x = vector_at(keys + i);
    std::uint32_t const over = lanes_above<true>(x, most);
    std::uint32_t const lanes = lanes_above<false>(x, least) & ~over;
    above += static_cast<std::uint32_t>(__builtin_popcount(over));
    if (inside + width <= room) pack_lanes(lanes, keys_of(x), out + inside);
    inside += static_cast<std::uint32_t>(__builtin_popcount(lanes));
  }
  for (; i < n; ++i) {
    std::uint32_t const key = key_at(keys + i);
    above += key > high ? 1 : 0;
    if (key < low || key > high) continue;
    if (inside < room) out[inside] = key;
    ++inside;
  }
  return {above, inside};
}
KVMELD_ENTRY key_counts collect_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t low,
                                     std::uint32_t high, std::uint32_t* out, std::uint32_t room) {
  return collect_any(keys, n, low, high, out, room);
}
KVMELD_ENTRY key_counts collect_scores(float const* scores, std::uint32_t n, std::uint32_t low,
                                       std::uint32_t high, std::uint32_t* out, std::uint32_t room) {
  return collect_any(scores, n, low, high, out, room);
}

template <bool strictly, class Source>
KVMELD_SIMD std::uint32_t list_any(Source const* keys, std::uint32_t n, std::uint32_t bar,
                                   std::uint32_t* out) {
  auto const least = bar_of(bar, keys);
  std::uint32_t count = 0;
  words number{};
  for (int i = 0; i < width; ++i) number[i] = static_cast<std::uint32_t>(i);
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) {
    std::uint32_t const lanes = lanes_above<strictly>(vector_at(keys + i), least);
    pack_lanes(lanes, number + i, out + count);
    count += static_cast<std::uint32_t>(__builtin_popcount(lanes));
  }
  for (; i < n; ++i) {
    std::uint32_t const key = key_at(keys + i);
    if (strictly ? key > bar : key >= bar) out[count++] = i;
  }
  return count;
}
KVMELD_ENTRY std::uint32_t list_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar,
                                     bool strictly, std::uint32_t* out) {
  return strictly ? list_any<true>(keys, n, bar, out) : list_any<false>(keys, n, bar, out);
}
KVMELD_ENTRY std::uint32_t list_scores(float const* scores, std::uint32_t n, std::uint32_t bar, bool strictly,
                                       std::uint32_t* out) {
  return strictly ? list_any<true>(scores, n, bar, out) : list_any<false>(scores, n, bar, out);
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
    // Above the bit all keys that are left in the race agree with `key` except where they differ in common bits.
    std::uint32_t const next = (key & ~(bit - 1)) | bit;
    if (count_from(keys, n, next) >= k) key |= bit;
    bits &= ~bit;
  }
  return key;
}
