// Kokkos::View as a layout: every element where the View has it, and a cache over Views as over any other
// tensors.
#include "device.hpp"

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace views_cases {

namespace {

using space = Kokkos::DefaultHostExecutionSpace;
template <class Data, class Layout> using host_view = Kokkos::View<Data, Layout, Kokkos::HostSpace>;

constexpr kvmeld::shape extent{2, 3, 4, 1, 5, 5, 7};

// element(track, slot, channel) is the View's own way to it.
template <class View, class Element>
void same_places(View const& view, kvmeld::shape const& s, Element element) {
  auto const layout = kvmeld::from_view<space>(view);
  CHECK(layout.channels() == s.key_dim);
  CHECK(layout.capacity() == s.capacity);
  std::size_t wrong = 0;
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      for (std::uint32_t slot = 0; slot < s.capacity; ++slot) {
        auto const row = layout.locate(t, slot);
        for (std::uint32_t c = 0; c < s.key_dim; ++c)
          wrong += row.base + c * row.channel_stride == element(t, slot, c) ? 0 : 1;
      }
    });
  }
  CHECK(wrong == 0);
}

template <class Layout> void same_places_of_all_ranks() {
  host_view<float*****, Layout> const five("five", 2, 3, 4, 7, 5);
  same_places(five, extent, [&](kvmeld::track t, std::uint32_t i, std::uint32_t c) {
    return &five(t.layer, t.sequence, t.kv_head, i, c);
  });
  kvmeld::shape one_layer = extent;
  one_layer.layers = 1;
  host_view<float****, Layout> const four("four", 3, 4, 7, 5);
  same_places(four, one_layer, [&](kvmeld::track t, std::uint32_t i, std::uint32_t c) {
    return &four(t.sequence, t.kv_head, i, c);
  });
  kvmeld::shape one_sequence = one_layer;
  one_sequence.sequences = 1;
  host_view<float***, Layout> const three("three", 4, 7, 5);
  same_places(three, one_sequence,
              [&](kvmeld::track t, std::uint32_t i, std::uint32_t c) { return &three(t.kv_head, i, c); });
}

}  // namespace

TEST_CASE("Views of LayoutRight and LayoutLeft are where they say") {
  same_places_of_all_ranks<Kokkos::LayoutRight>();
  same_places_of_all_ranks<Kokkos::LayoutLeft>();
}

TEST_CASE("Views with strides of their own are where they say: K and V of one allocation") {
  // [layer][2][sequence][head][slot][channel]: a subview has gaps between its layers.
  host_view<float******, Kokkos::LayoutRight> const both("both", 2, 2, 3, 4, 7, 5);
  auto const values =
      Kokkos::subview(both, Kokkos::ALL(), 1, Kokkos::ALL(), Kokkos::ALL(), Kokkos::ALL(), Kokkos::ALL());
  same_places(values, extent, [&](kvmeld::track t, std::uint32_t i, std::uint32_t c) {
    return &both(t.layer, 1, t.sequence, t.kv_head, i, c);
  });
  // Token-major memory seen as (sequence, head, slot, channel).
  Kokkos::LayoutStride const token_major(3, 4 * 7 * 5, 4, 5, 7, 4 * 5, 5, 1);
  host_view<float****, Kokkos::LayoutStride> const turned("turned", token_major);
  kvmeld::shape one_layer = extent;
  one_layer.layers = 1;
  same_places(turned, one_layer, [&](kvmeld::track t, std::uint32_t i, std::uint32_t c) {
    return turned.data() + ((t.sequence * 7 + i) * 4 + t.kv_head) * 5 + c;
  });
}

TEST_CASE("a cache over Views compresses as over plain tensors") {
  kvmeld::shape const s{2, 2, 2, 1, 12, 8, 60};
  support::dice d(3);
  std::vector<float> k(s.slots() * s.key_dim), v(s.slots() * s.value_dim);
  for (float& x : k) x = static_cast<float>(d.normal());
  for (float& x : v) x = static_cast<float>(d.normal());
  host_view<float*****, Kokkos::LayoutRight> const keys("k", 2, 2, 2, 60, 12);
  host_view<float*****, Kokkos::LayoutLeft> const values("v", 2, 2, 2, 60, 8);
  kvmeld::strided<float> const plain_keys(k.data(), "LSHTC", s, s.key_dim),
      plain_values(v.data(), "LSHTC", s, s.value_dim);
  auto const viewed_keys = kvmeld::from_view<space>(keys), viewed_values = kvmeld::from_view<space>(values);
  auto const each_row = [&](auto f) {
    for (std::uint32_t q : {0u, 1u}) {
      support::for_tracks(s, q, [&](kvmeld::track t) {
        for (std::uint32_t i = 0; i < s.capacity; ++i) f(t, i);
      });
    }
  };
  each_row([&](kvmeld::track t, std::uint32_t i) {
    support::put_row(viewed_keys, t, i, support::get_row(plain_keys, t, i));
    support::put_row(viewed_values, t, i, support::get_row(plain_values, t, i));
  });
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.45, 0.05, 3, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(6));
  auto const compress = [&](auto executor, auto x) {
    kvmeld::merged_cache cache{executor, policy, x, kvmeld::cache_options{s}};
    cache.open(0, 60);
    cache.open(1, 41);
    cache.compress({0, 1}, kvmeld::budget::ratio(0.4));
    return support::ledger_bytes(cache);
  };
  auto const off = kvmeld::tuning::off;
  auto const plain = compress(kvmeld::host_executor(1, off), kvmeld::kv{plain_keys, plain_values});
  auto const viewed =
      compress(kvmeld::kokkos_executor<space>({}, 1, off), kvmeld::kv{viewed_keys, viewed_values});
  CHECK(plain == viewed);
  std::size_t wrong = 0;
  each_row([&](kvmeld::track t, std::uint32_t i) {
    wrong += support::get_row(viewed_keys, t, i) == support::get_row(plain_keys, t, i) ? 0 : 1;
    wrong += support::get_row(viewed_values, t, i) == support::get_row(plain_values, t, i) ? 0 : 1;
  });
  CHECK(wrong == 0);
}

}  // namespace views_cases
