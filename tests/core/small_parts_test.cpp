// Texts of refusals, span, shapes and tracks.
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

TEST_CASE("a refusal throws its text, success is a quiet status") {
  CHECK(kvmeld::raise({}).ok());
  CHECK(kvmeld::status{}.ok());
  CHECK(static_cast<bool>(kvmeld::status{}));
  kvmeld::status const bad("call: x is 3; it must be 1 to 2");
  CHECK_FALSE(bad.ok());
  CHECK_FALSE(static_cast<bool>(bad));
  CHECK(bad.text() == "call: x is 3; it must be 1 to 2");
  CHECK_THROWS_WITH_AS(kvmeld::raise("call: x is 3; it must be 1 to 2"), "call: x is 3; it must be 1 to 2",
                       kvmeld::invalid_argument);
  CHECK(std::is_base_of_v<std::invalid_argument, kvmeld::invalid_argument>);
  CHECK(kvmeld::message("a ", 1, "b ", 2u, 'c') == "a 1b 2c");
  CHECK(kvmeld::message().empty());
}

TEST_CASE("warnings are distinct bits") {
  std::uint32_t const all[] = {kvmeld::warning::nonfinite_rows, kvmeld::warning::budget_unreached,
                               kvmeld::warning::evicted_fallback, kvmeld::warning::overfull};
  std::uint32_t seen = 0;
  for (std::uint32_t bit : all) {
    CHECK((bit & (bit - 1)) == 0);
    CHECK((seen & bit) == 0);
    seen |= bit;
  }
  CHECK(kvmeld::warning::none == 0);
}

namespace {
std::size_t sum(kvmeld::index_list list) {
  std::size_t s = 0;
  for (std::uint32_t x : list) s += x;
  return s;
}
}  // namespace

TEST_CASE("span views arrays, containers and braced lists") {
  std::vector<std::uint32_t> v{1, 2, 3};
  std::array<std::uint32_t, 2> const a{4, 5};
  CHECK(sum(v) == 6);
  CHECK(sum(a) == 9);
  CHECK(sum({7, 8}) == 15);
  CHECK(sum({}) == 0);
  CHECK(sum({v.data() + 1, std::size_t{2}}) == 5);
  kvmeld::span<std::uint32_t> const s(v);
  s[1] = 20;
  CHECK(v[1] == 20);
  CHECK(s.size() == 3);
  CHECK(s.data() == v.data());
  CHECK(s.end() - s.begin() == 3);
  CHECK(kvmeld::span<int>{}.empty());
  CHECK_FALSE(s.empty());
}

TEST_CASE("tracks are numbered by layer, sequence and head") {
  kvmeld::shape const s{3, 4, 5, 2, 8, 6, 70};
  CHECK(s.tracks() == 60);
  CHECK(s.slots() == 4200);
  CHECK(s.query_heads() == 10);
  std::uint32_t next = 0;
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    for (std::uint32_t sequence = 0; sequence < 4; ++sequence) {
      for (std::uint32_t head = 0; head < 5; ++head) {
        kvmeld::track const t = kvmeld::make_track(s, layer, sequence, head);
        CHECK(t.index == next++);
        CHECK(t.layer == layer);
        CHECK(t.sequence == sequence);
        CHECK(t.kv_head == head);
      }
    }
  }
  CHECK(kvmeld::ceil_div(0, 4) == 0);
  CHECK(kvmeld::ceil_div(8, 4) == 2);
  CHECK(kvmeld::ceil_div(9, 4) == 3);
  CHECK(kvmeld::ceil_div(0xffffffffu, 2) == 0x80000000u);
  CHECK(kvmeld::min_of(2, 1) == 1);
  CHECK(kvmeld::max_of(2, 1) == 2);
}

TEST_CASE("a work list numbers tracks by layer, listed sequence and head") {
  kvmeld::shape const s{2, 5, 3, 1, 1, 1, 1};
  std::vector<std::uint32_t> const sequences{4, 1};
  kvmeld::work_list const work{sequences.data(), 2};
  CHECK(work.tracks(s) == 12);
  std::uint32_t n = 0;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t sequence : sequences) {
      for (std::uint32_t head = 0; head < 3; ++head)
        CHECK(work.at(s, n++).index == kvmeld::make_track(s, layer, sequence, head).index);
    }
  }
}
