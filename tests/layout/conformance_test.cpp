// load_tile, encode_row and copy_row of the test layouts, on one lane and on several, and what counts as a
// layout.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_layout.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cstdint>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "support/any_track.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"
#include "tensors.hpp"

namespace conformance_cases {

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 1, 24, 24, 23};

// Rows are written, read as tiles, moved by raw bits and written again, on a team.
template <class Layout> struct exercise {
  Layout layout;
  float const* rows;  // [capacity][channels]
  float* tiles;       // [2][5][channels - 3]

  template <class Team> void play(Team const& team, kvmeld::track t) const {
    std::uint32_t const d = layout.channels();
    for (kvmeld::slot_t s = 0; s < extent.capacity; ++s)
      layout.encode_row(team, t, s, [&](std::uint32_t c) { return rows[std::size_t{s} * d + c]; });
    team.sync();
    layout.load_tile(team, t, 4, 5, 2, d - 3, tiles, d - 3);
    layout.copy_row(team, t, 0, 9);
    layout.copy_row(team, t, 9, 17);
    layout.copy_row(team, t, 17, 22);
    team.sync();
    layout.load_tile(team, t, 6, 5, 2, d - 3, tiles + std::size_t{5} * (d - 3), d - 3);
  }
};

template <class Layout> struct exercise_phase {
  exercise<Layout> what;
  kvmeld::track where;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    what.play(team, where);
  }
};

using support::any_track;

template <class Tensor> void conforms() {
  Tensor tensor(extent, extent.key_dim);
  auto const layout = tensor.view();
  CHECK(kvmeld::is_layout<decltype(tensor.view())>::value);
  CHECK(kvmeld::testing::layout_problem(layout, extent, extent.key_dim) == "");

  // Lanes that run at the same time do what one does.
  std::uint32_t const d = layout.channels();
  support::dice dice(13);
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 1);
  std::vector<float> rows(std::size_t{extent.capacity} * d);
  for (float& x : rows) x = static_cast<float>(dice.normal());
  std::vector<float> serial(10 * (d - 3));
  exercise<std::decay_t<decltype(layout)>> const all{layout, rows.data(), serial.data()};
  all.play(kvmeld::serial_team(nullptr, 0), t);
  support::byte_list const memory = tensor.bytes();
  for (std::uint32_t lanes : {2u, 5u, 32u}) {
    std::vector<float> together(serial.size());
    kvmeld::testing::lane_executor(lanes).run(
        exercise_phase<std::decay_t<decltype(layout)>>{{layout, rows.data(), together.data()}, t}, extent, 1,
        any_track{});
    CHECK(support::same_bits(serial, together));
    CHECK(memory == tensor.bytes());
  }
}

struct no_layout {};
struct not_trivially_copyable : kvmeld::strided<float> {
  using kvmeld::strided<float>::strided;
  not_trivially_copyable(not_trivially_copyable const& other) : kvmeld::strided<float>(other) {}
};

}  // namespace

TEST_CASE("layouts load, store and move rows on any number of lanes") {
  using namespace layout_test;
  SUBCASE("strided float") { conforms<strided_tensor<float>>(); }
  SUBCASE("strided half") { conforms<strided_tensor<kvmeld::float16>>(); }
  SUBCASE("relocatable bfloat16") { conforms<relocatable_tensor<kvmeld::bfloat16>>(); }
  SUBCASE("transposed bfloat16") { conforms<transposed_tensor<kvmeld::bfloat16>>(); }
  SUBCASE("paged float, pages of 7") { conforms<paged_tensor<float, 7>>(); }
  SUBCASE("paged half, pages of 16") { conforms<paged_tensor<kvmeld::float16, 16>>(); }
  SUBCASE("interleaved half") { conforms<interleaved_tensor<kvmeld::float16>>(); }
  SUBCASE("vLLM's keys") { conforms<vllm_keys_tensor<kvmeld::float16, 16>>(); }
  SUBCASE("vLLM's values, CSR tables") { conforms<vllm_values_tensor<float, 3>>(); }
  SUBCASE("a pointer per block") { conforms<blocks_tensor<kvmeld::bfloat16>>(); }
  SUBCASE("a ring behind sinks") { conforms<ring_tensor<float>>(); }
  SUBCASE("rows of int8") { conforms<int8_tensor>(); }
}

TEST_CASE("what is a layout") {
  CHECK(kvmeld::is_layout<kvmeld::strided<float>>::value);
  CHECK(kvmeld::is_layout<kvmeld::transposed<kvmeld::float16>>::value);
  CHECK(kvmeld::is_layout<kvmeld::relocatable<support::paged<float>>>::value);
  CHECK_FALSE(kvmeld::is_always_writable<kvmeld::relocatable<support::paged<float>>>::value);
  CHECK(kvmeld::runs_along_tokens<kvmeld::relocatable<kvmeld::transposed<float>>>);
  CHECK(kvmeld::is_layout<support::int8_rows>::value);
  CHECK_FALSE(kvmeld::is_layout<no_layout>::value);
  CHECK_FALSE(kvmeld::is_layout<int>::value);
  CHECK_FALSE(kvmeld::is_layout<not_trivially_copyable>::value);
  CHECK(kvmeld::runs_along_tokens<kvmeld::transposed<float>>);
  CHECK_FALSE(kvmeld::runs_along_tokens<kvmeld::strided<float>>);
  CHECK_FALSE(kvmeld::runs_along_tokens<support::paged<float>>);
  CHECK(kvmeld::is_always_writable<kvmeld::strided<float>>::value);
  CHECK_FALSE(kvmeld::is_always_writable<support::paged<float>>::value);
}

}  // namespace conformance_cases
