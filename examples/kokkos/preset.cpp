// A preset in ten lines, on Kokkos: Chelsea shrinks 1,000 cached tokens to a fifth, in place, on the default
// execution space.
#include "../all_printed.h"

#include <kvmeld/kokkos.hpp>

#include <iostream>

int main(int count, char** arguments) {
  Kokkos::ScopeGuard const kokkos(count, arguments);
  kvmeld::shape const extent{2, 1, 8, 4, 64, 64, 1024};
  // Yours: [layer][sequence][head][slot][channel], in any of Kokkos' layouts.
  Kokkos::View<float*****, Kokkos::LayoutRight> const keys("keys", 2, 1, 8, 1024, 64),
      values("values", 2, 1, 8, 1024, 64);

  auto policy = kvmeld::preset::chelsea::llama3();
  kvmeld::merged_cache cache{kvmeld::kokkos_executor<>{}, policy,
                             kvmeld::kv{kvmeld::from_view(keys), kvmeld::from_view(values)},
                             kvmeld::cache_options{extent}};
  cache.open(0, 1000);                              // sequence 0 has 1,000 tokens in K and V
  cache.compress({0}, kvmeld::budget::ratio(0.2));  // every layer and head, in place

  cache.sync_lengths(0);  // waits where the space is a device
  std::cout << "entries left: " << cache.longest(0) << ", on " << Kokkos::DefaultExecutionSpace::name()
            << "\n";
  return cache.longest(0) == 200 && all_printed() ? 0 : 1;
}
