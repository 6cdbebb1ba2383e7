// Rows in pieces of 16 bytes: where they may be moved so and where not, and what several lanes make of them.
#include <kvmeld/layout/row_pieces.hpp>

#include <cstring>

#include "scenario.hpp"
#include "support/compositions.hpp"
#include "support/test_layouts.hpp"

namespace pieces_cases {

namespace {

// Rows of both tensors at multiples of 16 bytes; tracks longer than what a compaction looks through at a
// time.
struct aligned_rows {
  using key_type = float;
  using value_type = kvmeld::bfloat16;
  static auto view(float* k, kvmeld::bfloat16* v, kvmeld::shape const& s) {
    return kvmeld::kv{kvmeld::strided<float>(k, "LSHTC", s, s.key_dim),
                      kvmeld::strided<kvmeld::bfloat16>(v, "LSHTC", s, s.value_dim)};
  }
};
constexpr lanes_test::sizes_of_life longer_life{{1, 2, 1, 1, 16, 24, 2600}, 2500, 44, 700, 500};

// Every piece of every row of a random tensor reads what lies there, and writing changes that piece alone.
template <class T> void check_pieces(support::dice& d, char const* order) {
  kvmeld::shape const s{d.between(1, 2), d.between(1, 2), d.between(1, 3), 1, 1, 1, d.between(1, 9)};
  std::uint32_t const channels = d.between(1, 40), shift = d.below(9);
  std::vector<T> memory(shift + s.slots() * channels);
  for (T& x : memory) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.below(1000)));
  kvmeld::strided<T> const layout(memory.data() + shift, order, s, channels);
  constexpr std::uint32_t size = kvmeld::row_piece<T>::size;
  for (int i = 0; i < 20; ++i) {
    kvmeld::track const where =
        kvmeld::make_track(s, d.below(s.layers), d.below(s.sequences), d.below(s.kv_heads));
    kvmeld::slot_t const slot = d.below(s.capacity);
    kvmeld::row_pieces<kvmeld::strided<T>> const rows(layout, where);
    REQUIRE(rows.count() == (channels + size - 1) / size);
    std::uint32_t const index = d.below(rows.count());
    auto piece = rows.read(slot, index);
    std::vector<T> wanted = memory;
    kvmeld::segment<T> const at = layout.locate(where, slot);
    int wrong = 0;
    for (std::uint32_t c = 0; c < size; ++c) {
      bool const there = index * size + c < channels;
      T* const x = at.base + (index * size + c) * at.channel_stride;
      T const expected = there ? *x : T{};
      wrong += std::memcmp(&piece.x[c], &expected, sizeof(T)) != 0 ? 1 : 0;
      piece.x[c] = kvmeld::element_traits<T>::from_float(static_cast<float>(1000 + d.below(1000)));
      if (there) wanted[static_cast<std::size_t>(x - memory.data())] = piece.x[c];
    }
    CHECK(wrong == 0);
    rows.write(slot, index, piece);
    CHECK(std::memcmp(memory.data(), wanted.data(), memory.size() * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("pieces are read and written wherever rows lie", T, float, kvmeld::float16,
                   kvmeld::bfloat16) {
  support::dice d(41);
  for (int i = 0; i < 40; ++i) {
    for (char const* order : {"LSHTC", "SLTHC", "LSHCT"}) check_pieces<T>(d, order);
  }
}

TEST_CASE("layouts made of elements have pieces and quantised ones have not") {
  CHECK(kvmeld::has_row_pieces<kvmeld::strided<kvmeld::float16>>::value);
  CHECK(kvmeld::has_row_pieces<support::paged<float>>::value);
  CHECK_FALSE(kvmeld::has_row_pieces<support::int8_rows>::value);
}

TEST_CASE("rows at multiples of 16 bytes, on any number of lanes") {
  auto const run = [](char const* name, auto const& p) {
    lanes_test::same_on_all_lanes<aligned_rows>(name, p, kvmeld::shortfall::keep, longer_life);
  };
  run("h2o", kvmeld::preset::h2o::defaults());
  run("chelsea", kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(3),
                                                        kvmeld::quantity::entries(5)));
}

}  // namespace pieces_cases
