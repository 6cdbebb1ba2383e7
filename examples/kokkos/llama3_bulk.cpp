// A cache of Llama-3-8B's shape, all 32 layers, compressed to 20 % on Kokkos' default execution space: the
// time of each group of layers, and of all of them over that of copying as many bytes there. llama3_bulk
// [tokens]
#include "../all_printed.h"
#include "../count_argument.hpp"

#include <kvmeld/kokkos.hpp>

#include <cstdint>
#include <cstdlib>
#include <iomanip>
#include <iostream>

namespace {

using space = Kokkos::DefaultExecutionSpace;
using element = kvmeld::bfloat16;
using tensor =
    Kokkos::View<element*****, Kokkos::LayoutRight, space>;  // [layer][sequence][head][slot][channel]

// Neighbouring tokens resemble one another, as keys do: every 16 share a direction.
struct fill {
  tensor to;
  std::uint32_t seed;
  KOKKOS_INLINE_FUNCTION static float noise(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return static_cast<float>((x ^ (x >> 16)) >> 8) * (1.0f / 8388608.0f) - 1.0f;
  }
  KOKKOS_INLINE_FUNCTION void operator()(int layer, int head, int slot) const {
    auto const row = seed + static_cast<std::uint32_t>(layer * 64 + head) * 0x9e3779b9u;
    for (std::uint32_t c = 0; c < to.extent(4); ++c) {
      float const shared = noise(row + static_cast<std::uint32_t>(slot / 16) * 4096u + c);
      float const own = noise(~row + static_cast<std::uint32_t>(slot) * 128u + c);
      to(layer, 0, head, slot, static_cast<int>(c)) =
          kvmeld::element_traits<element>::from_float(shared + 0.5f * own);
    }
  }
};

void refill(tensor const& to, std::uint32_t seed) {
  auto const n = [&](int rank) { return static_cast<int>(to.extent(rank)); };
  Kokkos::parallel_for(Kokkos::MDRangePolicy<space, Kokkos::Rank<3>>({0, 0, 0}, {n(0), n(2), n(3)}),
                       fill{to, seed});
  Kokkos::fence();
}

}  // namespace

int main(int count, char** arguments) {
  Kokkos::ScopeGuard const kokkos(count, arguments);
  constexpr std::uint32_t layers = 32, group = 4;
  std::uint32_t const tokens = count_argument(count, arguments, 1, 4096, 512, 1u << 20);
  kvmeld::shape const extent{group, 1, 8, 4, 128, 128, tokens};
  tensor const keys("keys", group, 1, 8, tokens, 128), values("values", group, 1, 8, tokens, 128);
  double const megabytes = 2.0 * static_cast<double>(keys.span() * sizeof(element)) / 1e6;
  std::cout << std::fixed << std::setprecision(1) << tokens << " tokens on " << space::name() << ", "
            << space().concurrency() << " threads; K and V of " << group << " layers: " << megabytes
            << " MB\n";

  // Groups of layers one after another in the same memory.
  kvmeld::merged_cache cache{kvmeld::kokkos_executor<>{}, kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{kvmeld::from_view(keys), kvmeld::from_view(values)},
                             kvmeld::cache_options{extent}};
  Kokkos::Timer watch;
  double all = 0;
  for (std::uint32_t first = 0; first < layers; first += group) {
    refill(keys, first);
    refill(values, ~first);
    watch.reset();
    cache.open(0, tokens);
    cache.compress({0}, kvmeld::budget::ratio(0.2));
    Kokkos::fence();
    double const ms = 1e3 * watch.seconds();
    all += ms;
    std::cout << "\rlayers " << first << "-" << first + group - 1 << " of " << layers << ": " << ms << " ms "
              << std::flush;
    cache.sync_lengths(0);
    if (cache.longest(0) != tokens / 5) {
      std::cout << "\n" << cache.longest(0) << " entries are left, " << tokens / 5 << " were to be\n";
      return 1;
    }
    cache.close(0);
  }
  Kokkos::deep_copy(values, keys);
  watch.reset();
  Kokkos::deep_copy(values, keys);
  Kokkos::fence();
  double const bound = 1e3 * watch.seconds() * 2 * layers / group;
  std::cout << "\nall " << layers << " layers: " << all << " ms, " << all / bound
            << " times a copy of K and V there (" << bound << " ms)\n";
  return all_printed() ? 0 : 1;
}
