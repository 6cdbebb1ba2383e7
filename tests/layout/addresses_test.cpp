// Where strided and transposed tensors put an element, for all orders of the five letters, against a nested
// count.
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/layout/transposed.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"

namespace addresses_cases {

namespace {

constexpr kvmeld::shape extent{2, 3, 4, 1, 5, 5, 6};

// Row-major number of an element: digits in the order of the letters.
std::size_t naive_index(std::string const& order, std::uint32_t layer, std::uint32_t sequence,
                        std::uint32_t head, std::uint32_t slot, std::uint32_t channel,
                        std::uint32_t channels) {
  std::size_t index = 0;
  for (char letter : order) {
    switch (letter) {
    case 'L': index = index * extent.layers + layer; break;
    case 'S': index = index * extent.sequences + sequence; break;
    case 'H': index = index * extent.kv_heads + head; break;
    case 'T': index = index * extent.capacity + slot; break;
    default: index = index * channels + channel; break;
    }
  }
  return index;
}

template <class F> void each_slot(F f) {
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    for (std::uint32_t sequence = 0; sequence < extent.sequences; ++sequence) {
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        for (std::uint32_t slot = 0; slot < extent.capacity; ++slot)
          f(kvmeld::make_track(extent, layer, sequence, head), slot);
      }
    }
  }
}

// Elements count up from 0 in memory; every row, tile and write has to find the right ones.
template <class Layout>
void check_addresses(std::vector<float>& memory, Layout const& layout, std::string const& order,
                     std::uint32_t channels) {
  std::size_t wrong = 0;
  std::iota(memory.begin(), memory.end(), 0.0f);
  each_slot([&](kvmeld::track t, std::uint32_t slot) {
    auto const row = support::get_row(layout, t, slot);
    auto const s = layout.locate(t, slot);
    wrong += layout.writable(t, slot) && s.remaining == extent.capacity - slot ? 0 : 1;
    for (std::uint32_t c = 0; c < channels; ++c) {
      std::size_t const i = naive_index(order, t.layer, t.sequence, t.kv_head, slot, c, channels);
      wrong += row[c] == static_cast<float>(i) ? 0 : 1;
      wrong += s.base + c * s.channel_stride == &memory[i] ? 0 : 1;
      if (slot + 1 < extent.capacity)
        wrong += s.base + s.token_stride == layout.locate(t, slot + 1).base ? 0 : 1;
    }
  });
  // A tile from the middle, into rows further apart than it is wide.
  constexpr std::uint32_t ld = 7, first = 2, tokens = 3, channel = 1, width = 3;
  std::vector<float> tile(tokens * ld, -1.0f);
  kvmeld::track const t = kvmeld::make_track(extent, 1, 2, 3);
  layout.load_tile(kvmeld::serial_team(nullptr, 0), t, first, tokens, channel, width, tile.data(), ld);
  for (std::uint32_t r = 0; r < tokens; ++r) {
    for (std::uint32_t c = 0; c < ld; ++c) {
      float const expected =
          c < width ? static_cast<float>(naive_index(order, 1, 2, 3, first + r, channel + c, channels))
                    : -1.0f;
      wrong += tile[r * ld + c] == expected ? 0 : 1;
    }
  }
  // One row moved and one written; everything else stays.
  std::vector<float> expected = memory;
  layout.copy_row(kvmeld::serial_team(nullptr, 0), t, 1, 4);
  support::put_row(layout, t, 5, std::vector<float>(channels, -7.0f));
  for (std::uint32_t c = 0; c < channels; ++c) {
    expected[naive_index(order, 1, 2, 3, 1, c, channels)] =
        expected[naive_index(order, 1, 2, 3, 4, c, channels)];
    expected[naive_index(order, 1, 2, 3, 5, c, channels)] = -7.0f;
  }
  wrong += memory == expected ? 0 : 1;
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("dense tensors in all 120 orders") {
  std::string order = "CHLST";
  std::size_t orders = 0;
  do {
    CAPTURE(order);
    ++orders;
    std::vector<float> memory(extent.slots() * extent.key_dim);
    check_addresses(memory, kvmeld::strided<float>(memory.data(), order.c_str(), extent, extent.key_dim),
                    order, extent.key_dim);
    if (order.back() != 'T') continue;
    check_addresses(memory, kvmeld::transposed<float>(memory.data(), order.c_str(), extent, extent.key_dim),
                    order, extent.key_dim);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(orders == 120);
}

TEST_CASE("strides of a tensor that is not dense") {
  kvmeld::cache_strides const gaps{4000, 1300, 320, 51, 10};
  std::vector<float> memory(12000);
  std::iota(memory.begin(), memory.end(), 0.0f);
  kvmeld::strided<float> const layout(memory.data(), gaps, extent, 5);
  each_slot([&](kvmeld::track t, std::uint32_t slot) {
    auto const row = support::get_row(layout, t, slot);
    for (std::uint32_t c = 0; c < 5; ++c)
      CHECK(row[c] ==
            static_cast<float>(4000 * t.layer + 1300 * t.sequence + 320 * t.kv_head + 51 * slot + 10 * c));
  });
  CHECK(layout.data() == memory.data());
  CHECK(layout.strides().slot == 51);
  // Backwards: a negative slot stride.
  kvmeld::cache_strides const backwards{0, 0, 0, -5, 1};
  kvmeld::strided<float> const reversed(memory.data() + 100, backwards, {1, 1, 1, 1, 5, 5, 6}, 5);
  CHECK(support::get_row(reversed, {0, 0, 0, 0}, 3) == std::vector<float>{85, 86, 87, 88, 89});
}

TEST_CASE("64-bit offsets: a tensor of more elements than 32 bits count") {
  kvmeld::shape const large{64, 256, 32, 1, 128, 128, 32768};
  auto const s = kvmeld::dense_strides("LSHTC", large, 128);
  CHECK(s.layer == std::int64_t{256} * 32 * 32768 * 128);
  CHECK(s.sequence == std::int64_t{32} * 32768 * 128);
  std::uint8_t base = 0;  // never read: only addresses are compared
  auto const* const last =
      kvmeld::detail::strided_address(&base, s, kvmeld::make_track(large, 63, 255, 31), 32767);
  CHECK(reinterpret_cast<std::uintptr_t>(last) - reinterpret_cast<std::uintptr_t>(&base) ==
        std::uintptr_t{64} * 256 * 32 * 32768 * 128 - 128);
}

TEST_CASE("an order that is no permutation has slot stride 0") {
  for (char const* order : {"", "LSTHX", "LSTH", "LSTHCC", "LSTTC", "lsthc"}) {
    CAPTURE(std::string(order));
    CHECK(kvmeld::dense_strides(order, extent, 5).slot == 0);
    CHECK(kvmeld::dense_strides(order, extent, 5).channel == 0);
  }
}

}  // namespace addresses_cases
