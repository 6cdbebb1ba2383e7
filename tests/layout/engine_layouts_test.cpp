// Pages, rings, tiles, latent values and mdspans: what they refuse, what block tables may say, where entries
// lie.
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"
#include "tensors.hpp"

#if __has_include(<cuda/std/mdspan>)
#include <cuda/std/mdspan>
#endif

namespace engine_layouts_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
constexpr kvmeld::shape extent{2, 3, 2, 1, 8, 8, 20};

template <class Keys> std::string refusal_of_keys(Keys const& keys) {
  static std::vector<float> values(extent.slots() * extent.value_dim);
  kvmeld::cache_options options{};
  options.extent = extent;
  return refusal_of([&] {
    kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                         kvmeld::kv{keys, kvmeld::strided<float>(values.data(), "LSHTC", extent, 8)},
                         options};
  });
}

// A pool of 40 pages of 7 slots, three to a sequence.
struct pool {
  std::vector<float> memory = std::vector<float>(40 * 2 * 2 * 7 * 8);
  std::vector<std::int32_t> table = {5, 9, 0, 7, 8, 39, 1, 2, 3};
  std::vector<std::uint8_t> shared = std::vector<std::uint8_t>(40, 0);

  auto rows(std::uint32_t page = 7, char const* order = "PLHTC") {
    return kvmeld::paged(
        kvmeld::pool_pages(memory.data(), kvmeld::table_rows(table.data(), 3), shared.data()), page,
        kvmeld::dense_pages(order, 40, page, extent, 8), extent, 8);
  }
  std::string validate(std::vector<std::uint32_t> const& lengths, std::size_t entries = 9) {
    return kvmeld::validate_pages(rows(), extent, 40, {lengths.data(), lengths.size()}, entries);
  }
};

}  // namespace

TEST_CASE("layouts of engines say why they cannot serve") {
  pool p;
  CHECK(refusal_of_keys(p.rows()).empty());
  check_text(refusal_of_keys(p.rows(0)), {"keys: paged: page_size is 0", "is 0; it must be at least 1"});
  check_text(refusal_of_keys(p.rows(7, "PLHC")), {"keys: paged: token stride is 0", "P, L, H, T, C"});
  auto const strides = kvmeld::dense_pages("PLHTC", 40, 7, extent, 8);
  kvmeld::shape longer = extent;
  longer.capacity = 21;
  check_text(refusal_of_keys(kvmeld::paged(p.rows().pages(), 7, strides, longer, 8)),
             {"keys: paged: capacity is 21", "it must be 20, the shape's capacity"});
  kvmeld::page_strides flat = strides;
  flat.channel = 0;
  check_text(refusal_of_keys(kvmeld::paged(p.rows().pages(), 7, flat, extent, 8)),
             {"keys: paged: channel stride is 0"});
  using pages = kvmeld::pool_pages<float>;
  check_text(refusal_of_keys(
                 kvmeld::paged(pages(nullptr, kvmeld::table_rows(p.table.data(), 3)), 7, strides, extent, 8)),
             {"keys: paged: p"});
  check_text(refusal_of_keys(kvmeld::paged(pages(p.memory.data(), {}), 7, strides, extent, 8)),
             {"keys: paged: p"});
  check_text(refusal_of_keys(kvmeld::paged(kvmeld::pointed_pages<float>{}, 7, strides, extent, 8)),
             {"keys: paged: p"});

  std::vector<float> memory(extent.slots() * 8);
  kvmeld::cache_strides by_two = kvmeld::dense_strides("LSHTC", extent, 8);
  by_two.channel = 2;
  kvmeld::strided<float> const rows(memory.data(), "LSHTC", extent, 8),
      groups(memory.data(), by_two, extent, 4);
  CHECK(refusal_of_keys(kvmeld::tiled(groups, 2)).empty());
  check_text(refusal_of_keys(kvmeld::tiled(groups, 3)),
             {"keys: number of channels is 12", "it must be 8, as the shape says"});
  kvmeld::strided<float> const none(memory.data(), "LSHTC", extent, 0);
  CHECK_FALSE(refusal_of_keys(kvmeld::tiled(none, 0)).empty());
  check_text(kvmeld::tiled(groups, 0).problem(extent), {"tiled: width is 0", "is 0; it must be at least 1"});
  check_text(refusal_of_keys(kvmeld::tiled(kvmeld::strided<float>(nullptr, "LSHTC", extent, 4), 2)),
             {"keys: tiled: groups: base pointer is null"});
  CHECK(refusal_of_keys(kvmeld::ring(rows, 20, 19)).empty());
  check_text(refusal_of_keys(kvmeld::ring(rows, 20, 20)),
             {"keys: ring: sinks is 20", "it must be less than 20, the capacity"});
  check_text(refusal_of_keys(kvmeld::ring(rows, 19, 2)),
             {"keys: ring: capacity is 19", "it must be 20, the shape's capacity"});
  check_text(refusal_of_keys(kvmeld::ring(kvmeld::strided<float>(memory.data(), "LSHT", extent, 8), 20)),
             {"keys: ring: rows: slot stride is 0"});
  check_text(kvmeld::latent(rows, 5, 4).problem(extent),
             {"latent: first + channels = 4 + 5 is 9", "it must be at most 8, the channels of the keys"});
}

TEST_CASE("quantised rows saturate, count it, and refuse what they cannot be") {
  kvmeld::shape const s{1, 1, 1, 1, 64, 8, 4};
  std::vector<kvmeld::fp8_e4m3> codes(4 * 64);
  kvmeld::strided<kvmeld::fp8_e4m3> const rows(codes.data(), "LSHTC", s, 64);
  std::uint32_t saturated = 0;
  kvmeld::scaled const fp8(rows, 0.5f, &saturated);
  kvmeld::serial_team const team(nullptr, 0);
  fp8.encode_row(team, {}, 1, [](std::uint32_t c) { return c < 3 ? 225.0f : 224.0f; });
  CHECK(saturated == 3);
  float out[64];
  fp8.load_tile(team, {}, 1, 1, 0, 64, out, 64);
  CHECK(out[0] == 224.0f);
  CHECK(fp8.problem(s).empty());
  check_text(kvmeld::scaled(rows, 0.0f).problem(s), {"scaled: scale is 0", "above 0"});
  check_text(kvmeld::scaled(kvmeld::strided<kvmeld::fp8_e4m3>(nullptr, "LSHTC", s, 64), 1.0f).problem(s),
             {"scaled: codes: base pointer is null"});

  std::vector<std::int8_t> bytes(4 * 64);
  std::vector<float> scales(4);
  kvmeld::strided<std::int8_t> const int8(bytes.data(), "LSHTC", s, 64);
  kvmeld::int8_rows const by_row(int8, kvmeld::strided<float>(scales.data(), "LSHTC", s, 1));
  CHECK(by_row.problem(s).empty());
  by_row.encode_row(team, {}, 2, [](std::uint32_t c) { return c == 5 ? -254.0f : 3.0f; });
  CHECK(scales[2] == 2.0f);
  CHECK(bytes[2 * 64 + 5] == -127);
  CHECK(bytes[2 * 64] == 2);  // 1.5, away from zero
  by_row.encode_row(team, {}, 2, [](std::uint32_t) { return 0.0f; });
  CHECK(bytes[2 * 64 + 5] == 0);
  check_text(kvmeld::int8_rows(int8, kvmeld::strided<float>(scales.data(), "LSHTC", s, 2)).problem(s),
             {"int8_rows: number of channels of the scales is 2"});
  check_text(kvmeld::int8_rows(int8, kvmeld::strided<float>(nullptr, "LSHTC", s, 1)).problem(s),
             {"int8_rows: scales: base pointer is null"});

  std::vector<std::uint8_t> blocks(4 * 68);
  kvmeld::q8_0_rows const q8(kvmeld::strided<std::uint8_t>(blocks.data(), "LSHTC", s, 68));
  CHECK(q8.channels() == 64);
  q8.encode_row(team, {}, 3, [](std::uint32_t c) { return c == 40 ? 63.5f : 1.0f; });
  CHECK(blocks[3 * 68 + 34 + 2 + 8] == 127);
  CHECK(blocks[3 * 68 + 34] == 0x00);  // 0.5 as binary16
  CHECK(blocks[3 * 68 + 35] == 0x38);
  check_text(
      kvmeld::q8_0_rows(kvmeld::strided<std::uint8_t>(blocks.data(), "LSHTC", s, 67)).problem(s),
      {"q8_0_rows: number of bytes of a row is 67", "it must be a multiple of 34, the bytes of a block"});
}

TEST_CASE("block tables are looked at before they are trusted") {
  pool p;
  CHECK(p.validate({20, 15, 0}).empty());
  check_text(p.validate({20, 15}), {"validate_pages: number of lengths is 2"});
  check_text(p.validate({21, 1, 1}),
             {"validate_pages: lengths[0] is 21", "it must be at most 20, the capacity"});
  check_text(p.validate({1, 1, 20}, 8), {"validate_pages: number of table entries of sequence 2 is 2",
                                         "it must be at least 3, because 20 slots take so many pages of 7"});
  p.table[4] = 40;
  check_text(p.validate({20, 15, 0}), {"validate_pages: page 1 of sequence 1 is 40", "0 to 39"});
  CHECK(p.validate({20, 7, 20}).empty());  // what no slot needs is not looked at
  p.table[4] = -1;
  check_text(p.validate({20, 15, 0}), {"validate_pages: page 1 of sequence 1 is -1"});
  p.table[4] = 9;
  check_text(p.validate({20, 15, 0}), {"validate_pages: page 1 of sequence 1 is 9", "in use already"});
  p.shared[9] = 1;
  CHECK(p.validate({20, 15, 0}).empty());

  std::vector<std::int32_t> first = {0, 3, 5, 8};
  auto const csr = kvmeld::paged(
      kvmeld::pool_pages(p.memory.data(), kvmeld::table_csr(first.data(), p.table.data()), p.shared.data()),
      7, kvmeld::dense_pages("PLHTC", 40, 7, extent, 8), extent, 8);
  std::vector<std::uint32_t> lengths = {20, 14, 20};
  auto const validate = [&] {
    return kvmeld::validate_pages(csr, extent, 40, {lengths.data(), lengths.size()}, p.table.size());
  };
  CHECK(validate().empty());
  lengths[1] = 15;
  check_text(validate(), {"validate_pages: number of table entries of sequence 1 is 2",
                          "it must be at least 3, because 15 slots take so many pages of 7"});
  first = {0, 3, 2, 8};
  check_text(validate(), {"validate_pages: number of table entries of sequence 1 is 0"});
}

TEST_CASE("rows per sequence and head: every head has pages of its own") {
  std::vector<float> memory(12 * 4 * 8);
  std::vector<std::int32_t> first = {0, 2, 3, 4, 7, 7, 9}, table = {11, 1, 2, 10, 4, 5, 6, 7, 8};
  kvmeld::shape const s{1, 3, 2, 1, 8, 8, 12};
  // Heads are folded into the batch: a page holds one head, so that lengths are ragged in memory too.
  auto const rows =
      kvmeld::paged(kvmeld::pool_pages(memory.data(), kvmeld::table_csr(first.data(), table.data(), 2)), 4,
                    {32, 0, 0, 8, 1}, s, 8);
  CHECK(rows.locate(kvmeld::make_track(s, 0, 0, 0), 5).base == memory.data() + 1 * 32 + 8);
  CHECK(rows.locate(kvmeld::make_track(s, 0, 0, 1), 2).base == memory.data() + 2 * 32 + 16);
  CHECK(rows.locate(kvmeld::make_track(s, 0, 1, 1), 11).base == memory.data() + 6 * 32 + 24);
  CHECK(rows.pages_of(0) == 0);
  CHECK(rows.pages_of(9) == 3);
  std::vector<std::uint32_t> const lengths = {4, 4, 0};
  CHECK(kvmeld::validate_pages(rows, s, 12, {lengths.data(), lengths.size()}, table.size()).empty());
}

TEST_CASE("a layout per layer: pools and tables of their own, also behind groups of channels") {
  using kvmeld::make_track;
  using kvmeld::page_strides;
  using kvmeld::paged;
  using kvmeld::pool_pages;
  using kvmeld::shape;
  using kvmeld::slot_t;
  using kvmeld::table_rows;
  using kvmeld::track;
  shape const whole{3, 2, 2, 1, 16, 16, 20};
  shape one = whole;
  one.layers = 1;
  std::vector<std::vector<float>> pools;
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<paged<kvmeld::shareable_pages<float>>> layers;
  std::vector<std::uint8_t> shared(10, 0);
  shared[3] = 1;
  for (std::int32_t l = 0; l < 3; ++l) {
    pools.emplace_back(10 * 2 * 5 * 16);
    tables.emplace_back();
    for (std::int32_t i = 0; i < 8; ++i) tables.back().push_back((3 * i + l) % 10);
  }
  for (std::size_t l = 0; l < 3; ++l) {  // pages of 5, [page][head][2 groups of 8][token][8]
    std::uint8_t const* const marks = l == 1 ? shared.data() : nullptr;
    pool_pages const from(pools[l].data(), table_rows(tables[l].data(), 4), marks);
    layers.emplace_back(from, 5, page_strides{160, 0, 80, 8, 40}, one, 2);
  }
  kvmeld::tiled const rows(kvmeld::per_layer(layers.data(), 2), 8);
  CHECK(rows.channels() == 16);
  CHECK(refusal_of_keys(kvmeld::tiled(kvmeld::per_layer(layers.data(), 3), 8))
            .find("number of channels is 24") != std::string::npos);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    for (std::uint32_t sequence = 0; sequence < 2; ++sequence) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        track const t = make_track(whole, layer, sequence, head);
        for (slot_t slot = 0; slot < 20; ++slot) {
          auto const s = rows.groups().locate(t, slot);
          std::int32_t const page =
              (3 * static_cast<std::int32_t>(sequence * 4 + slot / 5) + static_cast<std::int32_t>(layer)) %
              10;
          CHECK(rows.writable(t, slot) == !(layer == 1 && page == 3));
          for (std::uint32_t c = 0; c < 16; ++c) {
            float const* const expected = pools[layer].data() +
                                          ((static_cast<std::size_t>(page) * 2 + head) * 2 + c / 8) * 40 +
                                          slot % 5 * 8 + c % 8;
            CHECK(rows.at(s, 0, c) == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("a ring begins anywhere behind its sinks") {
  std::vector<float> memory(20);
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 20};
  kvmeld::strided<float> const rows(memory.data(), "LSHTC", s, 1);
  for (std::uint32_t start : {0u, 1u, 16u, 17u, 18u, 40u}) {
    kvmeld::ring const r(rows, 20, 3, &start);
    std::vector<char> seen(20, 0);
    for (std::uint32_t i = 0; i < 20; ++i) {
      auto const at = static_cast<std::uint32_t>(r.locate({}, i).base - memory.data());
      CHECK(at == (i < 3 ? i : 3 + (i - 3 + start) % 17));
      seen[at] = 1;
    }
    for (char x : seen) CHECK(x == 1);
  }
}

TEST_CASE("latent values are merged once, with the keys") {
  kvmeld::shape const s{1, 2, 1, 4, 24, 16, 90};
  support::dice d(5);
  std::vector<float> keys(s.slots() * 24), values(s.slots() * 16);
  for (std::size_t i = 0; i < s.slots(); ++i) {
    for (std::size_t c = 0; c < 24; ++c) {
      keys[i * 24 + c] = static_cast<float>(d.normal() + static_cast<double>((i % 90 / 6 * 7 + c) % 5));
      if (c >= 4 && c < 20) values[i * 16 + c - 4] = keys[i * 24 + c];
    }
  }
  std::vector<float> own = keys;
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.4, 0.05, 3, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  kvmeld::cache_options options{};
  options.extent = s;
  kvmeld::strided<float> const mine(own.data(), "LSHTC", s, 24), plain(keys.data(), "LSHTC", s, 24);
  kvmeld::merged_cache a{kvmeld::host_executor(1), policy, kvmeld::kv{mine, kvmeld::latent(mine, 16, 4)},
                         options};
  kvmeld::merged_cache b{kvmeld::host_executor(1), policy,
                         kvmeld::kv{plain, kvmeld::strided<float>(values.data(), "LSHTC", s, 16)}, options};
  auto const both = [&](auto f) {
    f(a);
    f(b);
  };
  both([](auto& c) {
    c.open(0, 90);
    c.open(1, 50);
    c.compress({0, 1}, kvmeld::budget::entries(30));
  });
  CHECK(own == keys);
  double far = 0;
  for (std::uint32_t sequence : {0u, 1u}) {
    kvmeld::track const t = kvmeld::make_track(s, 0, sequence, 0);
    REQUIRE(a.ref().length(t) == 30);
    for (std::uint32_t i = 0; i < 30; ++i) {
      CHECK(a.ref().degree(t, i) == b.ref().degree(t, i));
      auto const k = support::read_row(mine, t, i), v = support::read_row(b.ref().values, t, i);
      for (std::size_t c = 0; c < 16; ++c) far = std::max(far, std::abs(k[4 + c] - v[c]));
    }
  }
  CHECK(far < 1e-5);
  std::vector<float> q(4 * 24), from_latent(4 * 16), from_values(4 * 16);
  for (float& x : q) x = static_cast<float>(d.normal());
  kvmeld::attention::attend(a.executor(), {0, 0, 1}, kvmeld::rows_by_token<float const>(q.data(), 1, 4, 24),
                            a.ref(), kvmeld::rows_by_token(from_latent.data(), 1, 4, 16));
  kvmeld::attention::attend(b.executor(), {0, 0, 1}, kvmeld::rows_by_token<float const>(q.data(), 1, 4, 24),
                            b.ref(), kvmeld::rows_by_token(from_values.data(), 1, 4, 16));
  for (std::size_t i = 0; i < q.size() && i < from_values.size(); ++i)
    CHECK(from_latent[i] == doctest::Approx(from_values[i]).epsilon(1e-5));
  auto const refuses = [&](auto const& other) {
    options.members = 40;
    auto const refused = refusal_of([&] {
      kvmeld::merged_cache{kvmeld::host_executor(1), other, kvmeld::kv{mine, kvmeld::latent(mine, 16)},
                           options};
    });
    check_text(refused, {"latent", "merges values otherwise than keys", "same weights"});
  };
  refuses(kvmeld::preset::cam::over_h2o());  // spreads values
  refuses(kvmeld::preset::ems::shared());    // keeps norms of keys
}

#if __has_include(<cuda/std/mdspan>)
TEST_CASE("mdspans are strided tensors") {
  namespace md = cuda::std;
  std::vector<float> memory(2 * 3 * 2 * 20 * 8);
  kvmeld::shape const s{2, 3, 2, 1, 8, 8, 20};
  md::mdspan<float, md::dextents<std::size_t, 5>> const five(memory.data(), 2, 3, 2, 20, 8);
  auto const a = kvmeld::from_mdspan(five);
  CHECK(refusal_of_keys(a).empty());
  for (std::uint32_t layer : {0u, 1u}) {
    for (std::uint32_t sequence : {0u, 2u}) {
      kvmeld::track const t = kvmeld::make_track(s, layer, sequence, 1);
      CHECK(a.locate(t, 7).base == &five(layer, sequence, 1, 7, 0));
      CHECK(a.locate(t, 7).channel_stride == 1);
    }
  }
  md::mdspan<float, md::dextents<std::size_t, 3>, md::layout_left> const three(memory.data(), 2, 20, 8);
  auto const b = kvmeld::from_mdspan(three);  // heads innermost
  CHECK(b.channels() == 8);
  CHECK(b.capacity() == 20);
  CHECK(b.locate(kvmeld::make_track({1, 1, 2, 1, 8, 8, 20}, 0, 0, 1), 3).base == &three(1, 3, 0));
  CHECK(b.locate({}, 0).channel_stride == 40);
}
#endif

}  // namespace engine_layouts_cases
