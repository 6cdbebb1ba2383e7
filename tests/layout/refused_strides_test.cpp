// Strides, pointers and pages that cannot be: each is refused by name, and looking at it is defined
// behaviour.
#include "tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"

namespace refused_strides_cases {

namespace {

using cache_test::check_text;
using kvmeld::cache_strides;
using kvmeld::shape;

constexpr shape extent{2, 3, 2, 2, 12, 8, 64};
constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min(),
                       highest = std::numeric_limits<std::int64_t>::max();

float* memory() {
  static std::vector<float> all(2 * extent.slots() * 20);
  return all.data();
}

template <class Keys> std::string refusal_of_keys(Keys const& keys, shape const& s = extent) {
  return cache_test::refusal_of([&] {
    kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                         kvmeld::kv{keys, kvmeld::strided<float>(memory() + s.slots() * 12, "LSHTC", s, 8)},
                         kvmeld::cache_options{s}};
  });
}

}  // namespace

TEST_CASE("strides of which no address is made") {
  std::int64_t cache_strides::*const fields[] = {&cache_strides::layer, &cache_strides::sequence,
                                                 &cache_strides::head, &cache_strides::slot,
                                                 &cache_strides::channel};
  char const* const names[] = {"layer stride", "sequence stride", "head stride", "slot stride",
                               "channel stride"};
  for (int i = 0; i < 5; ++i) {
    for (std::int64_t stride :
         {lowest, lowest + 1, -(std::int64_t{1} << 62), std::int64_t{1} << 62, highest}) {
      cache_strides st = kvmeld::dense_strides("LSHTC", extent, 12);
      st.*fields[i] = stride;
      kvmeld::strided<float> const keys(memory(), st, extent, 12);
      check_text(refusal_of_keys(keys), {"keys: ", names[i], " is ", std::to_string(stride).c_str(),
                                         "all elements lie within 72057594037927936 bytes"});
      // The same when the strides alone are looked at.
      kvmeld::kv const both{keys, kvmeld::strided<float>(memory() + extent.slots() * 12, "LSHTC", extent, 8)};
      CHECK_FALSE(kvmeld::validate_tensors(both, extent, extent.capacity).empty());
      CHECK(kvmeld::detail::overlap_problem(both.keys, both.values, extent, extent.capacity).empty());
    }
  }
  // A stride that is not used may be any number.
  shape const one{1, 1, 1, 2, 12, 8, 64};
  kvmeld::strided<float> const keys(memory(), {lowest, highest, lowest, 12, 1}, one, 12);
  CHECK(refusal_of_keys(keys, one).empty());
}

TEST_CASE("dense strides of extents whose product leaves 64 bits, and of no order") {
  shape const huge{0xffffffffu, 0xffffffffu, 0xffffffffu, 1, 8, 8, 0xffffffffu};
  cache_strides const st = kvmeld::dense_strides("LSHTC", huge, 0xffffffffu);
  CHECK(st.channel == 1);
  CHECK(st.slot == 0xffffffff);
  CHECK(st.head == highest);
  CHECK(st.sequence == highest);
  CHECK(st.layer == highest);
  kvmeld::page_strides const pages = kvmeld::dense_pages("PLHTC", 7, 0xffffffffu, huge, 0xffffffffu);
  CHECK(pages.page == highest);
  CHECK(kvmeld::dense_strides(nullptr, extent, 12).slot == 0);
  CHECK(kvmeld::dense_pages(nullptr, 7, 8, extent, 12).token == 0);
  check_text(refusal_of_keys(kvmeld::strided<float>(memory(), static_cast<char const*>(nullptr), extent, 12)),
             {"keys: slot stride is 0; it must be another number"});
}

TEST_CASE("channels of the keys that the keys do not have") {
  kvmeld::strided<float> const keys(memory(), "LSHTC", extent, 12);
  for (std::uint32_t first : {5u, 0xfffffffcu, 0xffffffffu}) {
    std::string const text = kvmeld::latent(keys, 8, first).problem(extent);
    check_text(text, {"latent: first + channels", std::to_string(first).c_str(), "must be at most 12",
                      std::to_string(std::uint64_t{first} + 8).c_str()});
  }
  CHECK(kvmeld::latent(keys, 8, 4).problem(extent).empty());
}

TEST_CASE("arrays of layouts that are nowhere") {
  using rows = kvmeld::strided<float>;
  check_text(refusal_of_keys(kvmeld::per_layer<rows>(nullptr, 12)), {"keys: per_layer: layers is null"});
  check_text(refusal_of_keys(kvmeld::relocatable<rows>(nullptr, 12)), {"keys: relocatable: at is null"});
}

TEST_CASE("blocks of q8_0 whose bytes lie apart") {
  std::vector<std::uint8_t> bytes(extent.slots() * 68 * 2);
  shape s = extent;
  s.key_dim = 64;
  cache_strides st = kvmeld::dense_strides("LSHTC", s, 2 * 68);
  st.channel = 2;
  check_text(kvmeld::q8_0_rows(kvmeld::strided<std::uint8_t>(bytes.data(), st, s, 68)).problem(s),
             {"q8_0_rows: channel stride of the bytes is 2; it must be 1"});
}

TEST_CASE("groups of channels more than a row has") {
  shape s = extent;
  s.key_dim = 12;
  kvmeld::strided<float> const groups(memory(), "LSHTC", s, 0x40000003u);
  check_text(kvmeld::tiled(groups, 4).problem(s), {"tiled: width * number of groups is 4294967308"});
}

TEST_CASE("pages that cannot be") {
  constexpr std::uint32_t P = 16;
  shape const s{1, 2, 2, 1, 12, 12, 64};
  std::vector<std::int32_t> table{0, 1, 2, 3, 4, 5, 6, 7};
  std::int64_t const row = 2 * 12, page = P * row;
  auto const rows = [&](float* pool, kvmeld::page_strides const& st) {
    return kvmeld::paged(kvmeld::pool_pages(pool, kvmeld::table_rows(table.data(), 4)), P, st, s, 12);
  };
  std::vector<std::uint32_t> const lengths{64, 64};
  auto const validated = [&](kvmeld::page_strides const& st) {
    return kvmeld::validate_pages(rows(memory(), st), s, 8, lengths, table.size());
  };
  CHECK(rows(memory(), {page, 0, 12, row, 1}).problem(s).empty());
  CHECK(validated({page, 0, 12, row, 1}).empty());
  auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(memory()) + 2);
  check_text(rows(odd, {page, 0, 12, row, 1}).problem(s),
             {"address of the pool modulo 4 is 2; it must be 0"});
  check_text(rows(nullptr, {page, 0, 12, row, 1}).problem(s), {"pool is null"});
  check_text(rows(memory(), {0, 0, 12, row, 1}).problem(s), {"page stride is 0; it must be another number"});
  check_text(validated({0, 0, 12, row, 1}), {"page stride is 0"});
  check_text(validated({page / 2, 0, 12, row, 1}), {"page stride is 192", "page 0 and page 1 lie apart"});
  check_text(validated({-page / 2, 0, 12, row, 1}), {"page stride is -192"});
  check_text(rows(memory(), {page, 0, 0, row, 1}).problem(s), {"head stride is 0"});
  for (std::int64_t far : {lowest, highest, std::int64_t{1} << 62}) {
    check_text(rows(memory(), {far, 0, 12, row, 1}).problem(s), {"page stride is ", "so small"});
    check_text(rows(memory(), {page, 0, far, row, 1}).problem(s), {"head stride is ", "so small"});
    check_text(rows(memory(), {page, 0, 12, far, 1}).problem(s), {"token stride is ", "so small"});
    kvmeld::page_table<std::int32_t> const wild{table.data(), far};
    check_text(kvmeld::paged(kvmeld::pool_pages(memory(), wild), P, {page, 0, 12, row, 1}, s, 12).problem(s),
               {"sequence stride of the table is ", "so small"});
  }
  // Numbers of pages that are multiples of four may be of quarter pages.
  for (std::int32_t& x : table) x *= 4;
  CHECK(kvmeld::validate_pages(rows(memory(), {page / 4, 0, 12, row, 1}), s, 32, lengths, table.size())
            .empty());
  check_text(
      kvmeld::validate_pages(rows(memory(), {page / 4 - 12, 0, 12, row, 1}), s, 32, lengths, table.size()),
      {"page stride is 84"});
  // A pool of no pages, and a table that begins far behind its end.
  check_text(kvmeld::validate_pages(rows(memory(), {page, 0, 12, row, 1}), s, 0, lengths, table.size()),
             {"number_of_pages is 0; it must be at least 4, because sequence 0 has 64 slots"});
  std::int64_t const first[] = {highest, highest, highest};
  kvmeld::page_table<std::int32_t, std::int64_t> const csr =
      kvmeld::table_csr<std::int32_t, std::int64_t>(first, table.data());
  kvmeld::pool_pages<float, std::int32_t, std::int64_t> const beyond(memory(), csr);
  check_text(kvmeld::validate_pages(kvmeld::paged(beyond, P, {page, 0, 12, row, 1}, s, 12), s, 8, lengths, 8),
             {"number of table entries of sequence 0 is 0; it must be at least 4"});
  void* blocks[8] = {};
  kvmeld::pointed_pages<float> const by_pointer{{blocks, 4}, 2};
  check_text(kvmeld::paged(by_pointer, P, {0, 0, 12, row, 1}, s, 12).problem(s),
             {"offset is 2", "multiple of 4"});
}

}  // namespace refused_strides_cases
