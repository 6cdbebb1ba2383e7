// The ten lines of examples/preset.cpp on Kokkos: the executor is another, and Kokkos is up while it is used.
#include <Kokkos_Core.hpp>
#include <kvmeld/kokkos.hpp>

#include "support.hpp"

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  examples::engine_tensors engine;
  auto policy = kvmeld::preset::chelsea::llama3();
  kvmeld::merged_cache cache{kvmeld::kokkos_executor<Kokkos::DefaultExecutionSpace>{}, policy,
                             kvmeld::kv{engine.keys(), engine.values()}, kvmeld::limits{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.2));
  return cache.longest(0) == 200 ? 0 : 1;
}
