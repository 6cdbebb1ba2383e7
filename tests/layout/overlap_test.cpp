// Tensors that lie in each other's way are refused, and all that engines lay side by side is not.
#include "tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace overlap_cases {

using namespace layout_test;
using kvmeld::cache_strides;
using kvmeld::shape;

namespace {

// Why these cannot hold all slots that the shape has room for; empty if they can.
template <class Keys, class Values>
std::string refusal(Keys const& keys, Values const& values, shape const& s) {
  return kvmeld::validate_tensors(kvmeld::kv{keys, values}, s, s.capacity);
}
// Why a cache over these is refused, whatever the lengths; empty if it is not.
template <class Keys, class Values>
std::string refusal_of_cache(Keys const& keys, Values const& values, shape const& s) {
  return cache_test::refusal_of([&] {
    kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                         kvmeld::kv{keys, values}, kvmeld::cache_options{s}};
  });
}

bool is_folded(std::string const& text, char const* name) {
  return text.find(name) != std::string::npos &&
         text.find(": address of two elements is the same; it must be different") != std::string::npos;
}
bool overlaps(std::string const& text) {
  return text.find("address of the values minus that of the keys in bytes is ") != std::string::npos;
}

// Bytes of every element, one by one; `twice` tells whether any byte was met before.
template <class Layout> std::set<std::uintptr_t> bytes_of(Layout const& x, shape const& s, bool& twice) {
  std::set<std::uintptr_t> out;
  for (std::uint32_t n = 0; n < s.tracks(); ++n) {
    kvmeld::track const t =
        kvmeld::make_track(s, n / s.kv_heads / s.sequences, n / s.kv_heads % s.sequences, n % s.kv_heads);
    for (kvmeld::slot_t slot = 0; slot < s.capacity; ++slot) {
      auto const at = x.locate(t, slot);
      for (std::uint32_t c = 0; c < x.channels(); ++c) {
        auto const first = reinterpret_cast<std::uintptr_t>(at.base + std::int64_t{c} * at.channel_stride);
        for (std::size_t b = 0; b < sizeof(typename Layout::element_type); ++b)
          twice |= !out.insert(first + b).second;
      }
    }
  }
  return out;
}

template <class T>
kvmeld::strided<T> random_tensor(support::dice& d, shape const& s, std::byte* middle,
                                 std::uint32_t channels) {
  auto const stride = [&] { return std::int64_t{d.below(22)} - 5; };
  cache_strides const st{2 * stride(), stride(), stride(), stride(), 1 + stride() / 3};
  auto* const base = reinterpret_cast<T*>(middle + sizeof(T) * d.below(60));
  return {base, st, s, channels};
}

struct findings {
  struct share {
    int found = 0, of = 0;
  };
  share folds, overlaps;
  int sound = 0;
};

template <class K, class V> void against_all_addresses(std::uint64_t seed, findings& seen) {
  support::dice d(seed);
  alignas(16) static std::byte memory[8192];
  for (int run = 0; run < 3000; ++run) {
    shape const s{d.between(1, 2), d.between(1, 2), d.between(1, 3), 1,
                  d.between(1, 3), d.between(1, 3), d.between(1, 3)};
    auto const keys = random_tensor<K>(d, s, memory + 2048, s.key_dim);
    auto const values = random_tensor<V>(d, s, memory + 2048, s.value_dim);
    bool folds = false, other = false, common = false;
    auto const a = bytes_of(keys, s, folds), b = bytes_of(values, s, other);
    for (std::uintptr_t x : a) common = common || b.count(x) != 0;
    auto const k = kvmeld::detail::lattice_of(keys, s, s.capacity),
               v = kvmeld::detail::lattice_of(values, s, s.capacity);
    // Nothing sound is refused, and little that is wrong goes unseen.
    CHECK((!kvmeld::detail::folds_onto_itself(k) || folds));
    CHECK((!kvmeld::detail::folds_onto_itself(v) || other));
    CHECK((!kvmeld::overlap(k, v) || common));
    if (folds) seen.folds.of++, seen.folds.found += kvmeld::detail::folds_onto_itself(k);
    if (common) seen.overlaps.of++, seen.overlaps.found += kvmeld::overlap(k, v);
    seen.sound += !folds && !common;
  }
}

}  // namespace

TEST_CASE("what strides refuse is wrong by all addresses") {
  findings seen;
  against_all_addresses<float, float>(1, seen);
  against_all_addresses<kvmeld::float16, float>(2, seen);
  against_all_addresses<std::uint8_t, kvmeld::float16>(3, seen);
  INFO(seen.folds.found, " of ", seen.folds.of, "; ", seen.overlaps.found, " of ", seen.overlaps.of);
  CHECK(seen.sound > 300);
  CHECK(seen.folds.found * 4 > seen.folds.of * 3);
  CHECK(seen.overlaps.found * 10 > seen.overlaps.of * 7);
}

TEST_CASE("keys and values in one allocation, as engines have them") {
  shape const s{3, 2, 4, 1, 16, 16, 50};
  std::vector<float> memory(2 * s.slots() * 16 + 16);
  float* const k = memory.data();
  std::int64_t const D = 16, H = 4, T = 50, S = 2, L = 3;
  struct one {
    char const* name;
    std::int64_t layer, sequence, head, slot, channel, values;
  };
  one const legal[] = {
      {"[L][S][T][2][H][D]", S * T * 2 * H * D, T * 2 * H * D, D, 2 * H * D, 1, H * D},
      {"[L][S][T][H][2][D]", S * T * 2 * H * D, T * 2 * H * D, 2 * D, 2 * H * D, 1, D},
      {"[L][S][T][H][D][2]", S * T * 2 * H * D, T * 2 * H * D, 2 * D, 2 * H * D, 2, 1},
      {"[L][S][2][H][T][D]", S * 2 * H * T * D, 2 * H * T * D, T * D, D, 1, H * T * D},
      {"[L][2][S][H][T][D]", 2 * S * H * T * D, H * T * D, T * D, D, 1, S * H * T * D},
      {"[2][L][S][H][T][D]", S * H * T * D, H * T * D, T * D, D, 1, L * S * H * T * D},
      {"[S][L][H][T][D][2]", H * T * D * 2, L * H * T * D * 2, T * D * 2, D * 2, 2, 1},
      {"values first", S * 2 * H * T * D, 2 * H * T * D, T * D, D, 1, H * T * D},
  };
  for (one const& x : legal) {
    CAPTURE(std::string(x.name));
    cache_strides const st{x.layer, x.sequence, x.head, x.slot, x.channel};
    kvmeld::strided<float> const a(k, st, s, 16), b(k + x.values, st, s, 16);
    CHECK(refusal(a, b, s) == "");
    CHECK(refusal(b, a, s) == "");
    // One element or one row too near, where the neighbour is another's.
    CHECK(overlaps(refusal(a, kvmeld::strided<float>(k, st, s, 16), s)));
    CHECK(overlaps(refusal(a,
                           kvmeld::strided<float>(k + x.values +
                                                      (x.channel == 2  ? 1
                                                       : x.values == D ? 8
                                                                       : -1),
                                                  st, s, 16),
                           s)));
  }
  // A whole allocation's keys, and values transposed behind them in every layer.
  cache_strides const rows{2 * S * H * T * D, H * T * D, T * D, D, 1},
      columns{2 * S * H * T * D, H * T * D, T * D, 1, T};
  kvmeld::strided<float> const keys(k, rows, s, 16);
  CHECK(refusal(keys, kvmeld::transposed<float>(k + S * H * T * D, columns, s, 16), s) == "");
  CHECK(overlaps(refusal(keys, kvmeld::transposed<float>(k + S * H * T * D - T, columns, s, 16), s)));
  // Groups of channels, rings and codes are looked through.
  cache_strides const groups{2 * S * H * T * D, H * T * D, T * D, 8, T * 8};
  kvmeld::tiled const tiles(kvmeld::strided<float>(k, groups, s, 2), 8);
  CHECK(refusal(tiles, kvmeld::strided<float>(k + S * H * T * D, rows, s, 16), s) == "");
  CHECK(overlaps(refusal(tiles, kvmeld::strided<float>(k + S * H * T * D - 1, rows, s, 16), s)));
  CHECK(is_folded(
      refusal(
          kvmeld::tiled(kvmeld::strided<float>(k, {2 * S * H * T * D, H * T * D, T * D, 7, T * 8}, s, 2), 8),
          tiles, s),
      "keys"));
  CHECK(overlaps(refusal(kvmeld::ring(keys, 50, 2), kvmeld::ring(keys, 50, 2), s)));
}

TEST_CASE("values that are channels of the keys are no overlap") {
  shape const s{1, 2, 1, 4, 24, 16, 50};
  std::vector<float> memory(s.slots() * 24);
  kvmeld::strided<float> const keys(memory.data(), "LSHTC", s, 24);
  CHECK(refusal(keys, kvmeld::latent(keys, 16, 8), s) == "");
  CHECK(overlaps(refusal(keys, kvmeld::strided<float>(memory.data() + 8, {0, 50 * 24, 0, 24, 1}, s, 16), s)));
}

TEST_CASE("strides that fold a tensor onto itself") {
  shape const s{3, 2, 4, 1, 16, 16, 50};
  std::vector<float> memory(4 * s.slots() * 16);
  kvmeld::strided<float> const values(memory.data() + 2 * s.slots() * 16, "LSHTC", s, 16);
  auto const keys = [&](cache_strides const& st) {
    return refusal(kvmeld::strided<float>(memory.data(), st, s, 16), values, s);
  };
  CHECK(keys({6400, 3200, 800, 16, 1}) == "");
  CHECK(is_folded(keys({6400, 3200, 800, 15, 1}), "keys"));
  CHECK(is_folded(keys({6400, 3200, 784, 16, 1}), "keys"));  // a head begins in the last row of another
  CHECK(is_folded(keys({3200, 3200, 800, 16, 1}), "keys"));
  CHECK(is_folded(keys({6400, 6400, 800, 16, 1}), "keys"));
  CHECK(is_folded(keys({6400, 3200, 800, 16, 16}), "keys"));
  // An extent of one may have any stride.
  shape const one{1, 1, 1, 1, 16, 16, 50};
  std::vector<float> small(2 * 50 * 16);
  kvmeld::strided<float> const v(small.data() + 800, "LSHTC", one, 16);
  CHECK(refusal(kvmeld::strided<float>(small.data(), {0, 0, 0, 16, 1}, one, 16), v, one) == "");
  CHECK(refusal(kvmeld::strided<float>(small.data(), {16, 1, 3, 16, 1}, one, 16), v, one) == "");
  // From the last token backwards.
  CHECK(refusal(kvmeld::strided<float>(small.data() + 49 * 16, {0, 0, 0, -16, 1}, one, 16), v, one) == "");
  CHECK(
      overlaps(refusal(kvmeld::strided<float>(small.data() + 50 * 16, {0, 0, 0, -16, 1}, one, 16), v, one)));
}

TEST_CASE("a cache refuses what is wrong whatever the lengths, and takes tensors that are shorter than it") {
  shape const s{3, 2, 4, 1, 16, 16, 50};
  std::vector<float> memory(4 * s.slots() * 16);
  float* const k = memory.data();
  float* const behind = k + 2 * s.slots() * 16;
  kvmeld::strided<float> const values(behind, "LSHTC", s, 16);
  auto const keys = [&](cache_strides const& st) {
    return refusal_of_cache(kvmeld::strided<float>(k, st, s, 16), values, s);
  };
  CHECK(keys({6400, 3200, 800, 16, 1}) == "");
  CHECK(is_folded(keys({6400, 3200, 800, 15, 1}), "keys"));   // slots share an element
  CHECK(is_folded(keys({6400, 3200, 800, 16, 16}), "keys"));  // channels are slots
  CHECK(is_folded(keys({6400, 3200, 8, 64, 1}), "keys"));     // heads share elements
  CHECK(is_folded(keys({3200, 3200, 800, 16, 1}), "keys"));
  kvmeld::strided<float> const whole(k, "LSHTC", s, 16);
  CHECK(overlaps(refusal_of_cache(whole, whole, s)));
  CHECK(overlaps(refusal_of_cache(whole, kvmeld::strided<float>(k + 8, "LSHTC", s, 16), s)));
  CHECK(is_folded(refusal_of_cache(values, kvmeld::strided<float>(k, {6400, 3200, 800, 15, 1}, s, 16), s),
                  "values"));
  // [layer][sequence][head][7 tokens so far][channel], the values right behind them.
  CHECK(keys({2 * 4 * 7 * 16, 4 * 7 * 16, 7 * 16, 16, 1}) == "");
  kvmeld::strided<float> const grown(k, {2 * 4 * 7 * 16, 4 * 7 * 16, 7 * 16, 16, 1}, s, 16),
      next(k + 3 * 2 * 4 * 7 * 16, {2 * 4 * 7 * 16, 4 * 7 * 16, 7 * 16, 16, 1}, s, 16);
  CHECK(refusal_of_cache(grown, next, s) == "");
  CHECK(kvmeld::validate_tensors(kvmeld::kv{grown, next}, s, 7) == "");
  CHECK(is_folded(kvmeld::validate_tensors(kvmeld::kv{grown, next}, s, 8), "keys"));
  shape const one{1, 1, 1, 1, 16, 16, 50};
  kvmeld::strided<float> const small(k, {0, 0, 0, 16, 1}, one, 16),
      other(k + 7 * 16, {0, 0, 0, 16, 1}, one, 16);
  CHECK(refusal_of_cache(small, other, one) == "");
  CHECK(overlaps(kvmeld::validate_tensors(kvmeld::kv{small, other}, one, 8)));
}

TEST_CASE("pages by table, as engines have them") {
  constexpr std::uint32_t P = 8, pages = 7;
  shape const s{1, 2, 4, 1, 16, 16, 20};
  std::int64_t const D = 16, H = 4, page = P * H * D;
  std::vector<float> memory(2 * pages * static_cast<std::size_t>(page));
  std::vector<std::int32_t> const table{0, 2, 4, 1, 3, 5}, other{6, 2, 4, 1, 3, 5};
  auto const rows = [&](std::int64_t at, std::int64_t stride, std::vector<std::int32_t> const& of) {
    kvmeld::pool_pages const from(memory.data() + at, kvmeld::table_rows(of.data(), 3));
    return kvmeld::paged(from, P, {stride, 0, D, H * D, 1}, s, 16);
  };
  CHECK(refusal(rows(0, page, table), rows(pages * page, page, table), s) == "");  // [2][pages][P][H][D]
  CHECK(refusal(rows(0, 2 * page, table), rows(page, 2 * page, table), s) == "");  // [pages][2][P][H][D]
  CHECK(refusal(rows(0, page, table), rows(0, page, other), s) == "");  // one pool, pages of their own
  CHECK(overlaps(refusal(rows(0, page, table), rows(0, page, table), s)));
  CHECK(overlaps(refusal(rows(0, 2 * page, table), rows(page - D, 2 * page, table), s)));
  // Heads with a row of the table each: pages of P x D at the distance of a row, as FlashInfer's NHD pool
  // folded.
  std::vector<std::int32_t> first, entries;
  for (std::int32_t row = 0; row <= 8; ++row) first.push_back(3 * row);
  for (std::int32_t i = 0; i < 24; ++i) entries.push_back(i);
  kvmeld::pool_pages const folded(memory.data(), kvmeld::table_csr(first.data(), entries.data(), 4));
  kvmeld::pool_pages const behind(memory.data() + pages * page,
                                  kvmeld::table_csr(first.data(), entries.data(), 4));
  kvmeld::page_strides const st{D, 0, 0, H * D, 1};
  CHECK(refusal(kvmeld::paged(folded, P, st, s, 16), kvmeld::paged(behind, P, st, s, 16), s) == "");
  // Heads that share pages have to lie apart in them.
  kvmeld::pool_pages const from(memory.data(), kvmeld::table_rows(table.data(), 3));
  auto const values = rows(pages * page, page, table);
  CHECK(is_folded(refusal(kvmeld::paged(from, P, {page, 0, 0, H * D, 1}, s, 16), values, s), "keys"));
  CHECK(is_folded(refusal(kvmeld::paged(from, P, {page, 0, 8, H * D, 1}, s, 16), values, s), "keys"));
}

}  // namespace overlap_cases
