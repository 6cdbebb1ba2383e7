// Tuned loads, blends, packing and exponentials against plain loops, over every instruction set of this
// processor.
#include <doctest/doctest.h>

#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/queries/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"

namespace rows_cases {

using support::dice;

namespace {

template <class T> T element(std::uint32_t bits) {
  T x;
  std::uint16_t const half = static_cast<std::uint16_t>(bits);
  std::memcpy(&x, &half, sizeof half);
  return x;
}

bool is_nan(float x) { return (kvmeld::float_bits(x) & 0x7fffffffu) > 0x7f800000u; }
bool same(float a, float b) {
  return kvmeld::float_bits(a) == kvmeld::float_bits(b) || (is_nan(a) && is_nan(b));
}

template <class T> void check_decode(kvmeld::host_kernels const& k) {
  std::vector<T> all(65536 + 5);  // a rest behind the vectors
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = element<T>(i);
  std::vector<float> out(all.size());
  k.decode(all.data(), static_cast<std::uint32_t>(all.size()), out.data());
  int wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    wrong += same(out[i], kvmeld::element_traits<T>::to_float(all[i])) ? 0 : 1;
  CHECK(wrong == 0);
}

#if !defined(__FAST_MATH__)
// Products with rows of storage, and weighted sums of them, have the bits of those with the rows as floats.
template <class T> void check_reading(kvmeld::host_kernels const& k, dice& d) {
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const dim = d.between(1, 150), rows = d.between(1, 9), tokens = d.between(1, 20);
    std::uint32_t const ld = dim + d.below(40);
    // As long as the rows need it and no longer: AddressSanitizer sees what reads on.
    std::vector<T> stored(std::size_t{tokens - 1} * ld + dim);
    std::vector<float> floats(stored.size()), left(std::size_t{rows} * dim), factor(rows);
    for (T& x : stored) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
    for (std::size_t j = 0; j < stored.size(); ++j)
      floats[j] = kvmeld::element_traits<T>::to_float(stored[j]);
    for (float& x : left) x = static_cast<float>(d.normal());
    for (float& x : factor) x = static_cast<float>(d.normal());
    std::vector<float> out(std::size_t{rows} * tokens), wanted(out.size());
    k.products(left.data(), rows, dim, stored.data(), tokens, ld, dim, out.data(), tokens);
    k.products(left.data(), rows, dim, floats.data(), tokens, ld, dim, wanted.data(), tokens);
    CHECK(out == wanted);
    std::uint32_t const total_ld = dim + d.below(3);  // what lies between rows stays
    std::vector<float> total(std::size_t{rows} * total_ld, 7.0f), wanted_total = left;
    auto const row = [&](std::uint32_t r) { return total.begin() + std::ptrdiff_t{r} * total_ld; };
    for (std::uint32_t r = 0; r < rows; ++r) std::copy_n(left.begin() + std::ptrdiff_t{r} * dim, dim, row(r));
    k.add_weighted(out.data(), rows, tokens, factor.data(), stored.data(), ld, tokens, dim, total.data(),
                   total_ld);
    k.add_weighted(out.data(), rows, tokens, factor.data(), floats.data(), ld, tokens, dim,
                   wanted_total.data(), dim);
    for (std::uint32_t r = 0; r < rows; ++r) {
      CHECK(std::equal(row(r), row(r) + dim, wanted_total.begin() + std::ptrdiff_t{r} * dim));
      CHECK(std::count(row(r) + dim, row(r) + total_ld, 7.0f) == total_ld - dim);
    }
  }
}
#endif

// Sums of up to 20 rows in storage type T, one of which they replace.
template <class T> void check_blend(kvmeld::host_kernels const& k, dice& d) {
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const n = d.between(1, 150), count = d.between(1, 20), target = d.below(count);
    std::vector<std::vector<T>> rows(count, std::vector<T>(n));
    std::vector<float> weight(count);
    std::vector<T const*> at;
    for (std::uint32_t r = 0; r < count; ++r) {
      weight[r] = static_cast<float>(d.normal());
      for (T& x : rows[r]) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
      at.push_back(rows[r].data());
    }
    std::vector<T> wanted(n);
    for (std::uint32_t c = 0; c < n; ++c) {
      float volatile total = 0.0f;  // rounds every step, whatever the compiler may fuse
      for (std::uint32_t r = 0; r < count; ++r) {
        float volatile const product = weight[r] * kvmeld::element_traits<T>::to_float(rows[r][c]);
        total = total + product;
      }
      wanted[c] = kvmeld::element_traits<T>::from_float(total);
    }
    k.blend(at.data(), weight.data(), count, n, rows[target].data());
    CHECK(std::memcmp(rows[target].data(), wanted.data(), n * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE("every 16-bit pattern decodes as its element_traits say") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    check_decode<kvmeld::float16>(*kvmeld::kernels_of(set));
    check_decode<kvmeld::bfloat16>(*kvmeld::kernels_of(set));
  }
}

TEST_CASE("blends have the bits of the generic loop, in place too") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(21);
    check_blend<float>(*kvmeld::kernels_of(set), d);
    check_blend<kvmeld::float16>(*kvmeld::kernels_of(set), d);
    check_blend<kvmeld::bfloat16>(*kvmeld::kernels_of(set), d);
  }
}

#if !defined(__FAST_MATH__)  // which may sum in another order
TEST_CASE("rows read from storage give the bits of the same rows as floats") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(22);
    check_reading<float>(*kvmeld::kernels_of(set), d);
    check_reading<kvmeld::float16>(*kvmeld::kernels_of(set), d);
    check_reading<kvmeld::bfloat16>(*kvmeld::kernels_of(set), d);
  }
}
#endif

TEST_CASE("packing moves what is kept and touches nothing behind it") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(22);
    for (int i = 0; i < 200; ++i) {
      std::uint32_t const n = d.between(1, 300), shift = d.below(20);
      double const share = d.uniform();
      std::vector<std::uint32_t> words(n + shift);
      for (auto& x : words) x = static_cast<std::uint32_t>(d.next());
      std::vector<std::uint16_t> halves(words.begin(), words.end());
      std::vector<std::uint64_t> bits((n + 63) / 64, 0);
      std::vector<std::uint32_t> wanted = words;
      std::uint32_t kept = 0;
      for (std::uint32_t j = 0; j < n; ++j) {
        if (!d.chance(share)) continue;
        bits[j / 64] |= std::uint64_t{1} << (j % 64);
        wanted[kept++] = words[shift + j];
      }
      std::vector<std::uint16_t> const wanted_halves(wanted.begin(), wanted.end());
      k.pack_words(words.data(), words.data() + shift, bits.data(), n);
      k.pack_halves(halves.data(), halves.data() + shift, bits.data(), n);
      CHECK(words == wanted);
      CHECK(halves == wanted_halves);
    }
  }
}

TEST_CASE("rows are cleared and copied wherever they lie, and nothing beside them is written") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(23);
    for (int i = 0; i < support::cases(120); ++i) {
      // From a few bytes to what goes past the caches; rows side by side or apart, at whole lines or not.
      std::uint32_t const rows = i % 4 == 0 ? d.between(300, 1500) : d.between(0, 40);
      std::size_t const bytes = 4 * d.between(1, 300) * (i % 3 == 0 ? 64 : 1);
      std::size_t const stride = bytes + (d.chance(0.5) ? 0 : 4 * d.below(70));
      std::size_t const shift = d.chance(0.3) ? 0 : d.below(130);
      kvmeld::host_memory const memory(shift + rows * stride + 64);
      auto* const data = static_cast<unsigned char*>(memory.data());
      std::memset(data, 7, memory.size());
      k.clear_rows(data + shift, static_cast<std::int64_t>(stride), rows, bytes);
      std::size_t wrong = 0;
      for (std::size_t at = 0; at < memory.size(); ++at) {
        bool const cleared = at >= shift && at - shift < rows * stride && (at - shift) % stride < bytes;
        wrong += data[at] != (cleared ? 0 : 7) ? 1 : 0;
      }
      CHECK(wrong == 0);
    }
    for (int i = 0; i < 120; ++i) {
      std::size_t const bytes = i % 2 == 0 ? 64 * d.between(1, 20) : d.between(1, 600);
      std::size_t const to = i % 3 == 0 ? 0 : d.below(100), from = to + bytes + d.below(100);
      kvmeld::host_memory const memory(from + bytes);
      auto* const data = static_cast<unsigned char*>(memory.data());
      for (std::size_t at = 0; at < memory.size(); ++at) data[at] = static_cast<unsigned char>(d.next());
      std::vector<unsigned char> wanted(data, data + memory.size());
      std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  wanted.begin() + static_cast<std::ptrdiff_t>(to));
      k.stream_row(data + to, data + from, bytes);
      k.drain();
      CHECK(std::memcmp(data, wanted.data(), memory.size()) == 0);
    }
  }
}

TEST_CASE("finiteness looks at every element") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    for (std::uint32_t n : {1u, 4u, 15u, 16u, 17u, 33u, 40u, 70u}) {
      std::vector<float> const row(n, -3e38f);
      std::vector<kvmeld::float16> const halves(n,
                                                element<kvmeld::float16>(0xfbff));  // the largest magnitude
      std::vector<kvmeld::bfloat16> const brains(n, element<kvmeld::bfloat16>(0xff7f));
      CHECK(k.all_finite(row.data(), n));
      CHECK(k.all_finite(halves.data(), n));
      CHECK(k.all_finite(brains.data(), n));
      for (std::uint32_t i = 0; i < n; ++i) {
        for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xff800001u}) {
          std::vector<float> bad = row;
          std::memcpy(&bad[i], &bits, sizeof bits);
          CHECK_FALSE(k.all_finite(bad.data(), n));
        }
        for (std::uint32_t bits : {0x7c00u, 0xfc00u, 0x7e00u, 0xfc01u}) {
          std::vector<kvmeld::float16> bad = halves;
          bad[i] = element<kvmeld::float16>(bits);
          CHECK_FALSE(k.all_finite(bad.data(), n));
        }
        for (std::uint32_t bits : {0x7f80u, 0xff80u, 0x7fc0u, 0xff81u}) {
          std::vector<kvmeld::bfloat16> bad = brains;
          bad[i] = element<kvmeld::bfloat16>(bits);
          CHECK_FALSE(k.all_finite(bad.data(), n));
        }
      }
    }
  }
}

TEST_CASE("exponentials and logarithms are within a few units in the last place") {
  constexpr double unit = 1.0 / (1 << 23);
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    double worst = 0;
    for (int i = -87000; i <= 88000; i += 7) {
      float const x = static_cast<float>(i) * 1e-3f;
      float out = 0.0f;
      k.add_exponentials(&x, nullptr, 1, 0.0f, &out);
      worst = std::max(worst, std::fabs(double{out} / std::exp(double{x}) - 1));
    }
    CHECK(worst <= 2 * unit);
    float const low = -200.0f, nan = kvmeld::bits_float(0x7fc00000u), inf = kvmeld::bits_float(0x7f800000u);
    float sum = 0.0f, bad = 0.0f, high = 0.0f, biased = 1.0f;
    float const half = 0.5f;
    k.add_exponentials(&low, nullptr, 1, 0.0f, &sum);
    CHECK(sum == 0.0f);
    k.add_exponentials(&nan, nullptr, 1, 0.0f, &bad);
    CHECK(is_nan(bad));
    k.add_exponentials(&inf, nullptr, 1, 0.0f, &high);
    CHECK_FALSE(kvmeld::is_finite(high));
    k.add_exponentials(&half, &half, 1, 1.0f, &biased);
    CHECK(biased == 2.0f);
    double worst_log = 0;
    for (int i = 1; i < 3000000; i += 997) {
      float const degree = static_cast<float>(i) * 0.01f;
      float out = 0.0f;
      k.log_degrees(&degree, 1, &out);
      worst_log = std::max(worst_log, std::fabs(out - std::log(double{degree})) /
                                          (std::fabs(std::log(double{degree})) + 0.1));
    }
    CHECK(worst_log <= 2 * unit);
    std::vector<float> const degrees(19, 1.0f);
    std::vector<float> logs(19, 5.0f);
    k.log_degrees(degrees.data(), 19, logs.data());
    CHECK(logs == std::vector<float>(19, 0.0f));
    float const empty = 0.0f;
    k.log_degrees(&empty, 1, logs.data());
    CHECK(logs[0] == kvmeld::log_of_degree(0.0f));
  }
}

TEST_CASE("rows rotate as in the generic loop") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(2911);
    for (int i = 0; i < 200; ++i) {
      kvmeld::rope_params rope;
      rope.pairing = d.chance(0.5) ? kvmeld::rope_pairing::half_split : kvmeld::rope_pairing::interleaved;
      std::uint32_t const dim = d.between(2, 300), count = d.between(1, 70);
      rope.rotary_dim = 2 * d.between(1, dim / 2);
      std::vector<double> turns;
      for (std::uint32_t p = 0; p < rope.pairs(dim); ++p) turns.push_back(kvmeld::rope_turns(rope, p, dim));
      std::vector<kvmeld::position_t> at{static_cast<kvmeld::position_t>(d.below(1 << 20))};
      while (at.size() < count)  // runs up and down, jumps, and the same position again
        at.push_back(at.back() + (d.chance(0.8) ? (i % 2 == 0 ? 1 : -1) : static_cast<int>(d.below(5)) - 2));
      std::vector<float> rows(std::size_t{count} * dim);
      for (float& x : rows) x = static_cast<float>(d.normal());
      std::vector<float> generic = rows;
      auto const position = [&](std::uint32_t row) { return at[row]; };
      kvmeld::rotate_rows(kvmeld::serial_team(nullptr, 0), rope, turns.data(), generic.data(), count, dim,
                          position);
      kvmeld::rotate_rows(kvmeld::host_team(nullptr, 0, &k, nullptr), rope, turns.data(), rows.data(), count,
                          dim, position);
      float worst = 0;  // a compiler may fuse the generic loop's products and sums
      for (std::size_t j = 0; j < rows.size(); ++j) worst = std::max(worst, std::fabs(rows[j] - generic[j]));
      CHECK(worst <= 2e-6f);
    }
  }
}

TEST_CASE("a softmax in tiles is the softmax") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(23);
    for (int i = 0; i < 60; ++i) {
      std::uint32_t const rows = d.between(1, 9), dim = d.between(1, 80), tiles = d.between(1, 3);
      std::vector<float> highest(rows), sum(rows, 0.0f), factor(rows), total(std::size_t{rows} * dim, 0.0f);
      std::vector<double> wanted(total.size(), 0.0), weights(rows, 0.0);
      for (std::uint32_t t = 0; t < tiles; ++t) {
        std::uint32_t const tokens = d.between(1, 70);
        std::vector<float> logits(std::size_t{rows} * tokens), v(std::size_t{tokens} * dim);
        std::vector<float> bias(tokens);
        for (float& x : bias) x = static_cast<float>(d.normal());
        for (float& x : logits) x = static_cast<float>(4 * d.normal());
        for (float& x : v) x = static_cast<float>(d.normal());
        for (std::uint32_t r = 0; r < rows; ++r) {
          for (std::uint32_t j = 0; j < tokens; ++j) {
            double const w = std::exp(double{logits[std::size_t{r} * tokens + j]} + double{bias[j]});
            weights[r] += w;
            for (std::uint32_t c = 0; c < dim; ++c)
              wanted[std::size_t{r} * dim + c] += w * v[std::size_t{j} * dim + c];
          }
          factor[r] = k.soften(logits.data() + std::size_t{r} * tokens, bias.data(), tokens, &highest[r],
                               &sum[r], t != 0);
        }
        k.add_weighted(logits.data(), rows, tokens, factor.data(), v.data(), dim, tokens, dim, total.data(),
                       dim);
      }
      for (std::size_t j = 0; j < total.size(); ++j) {
        CHECK(std::fabs(double{total[j]} / sum[j / dim] - wanted[j] / weights[j / dim]) < 2e-5);
      }
    }
  }
}

}  // namespace rows_cases
