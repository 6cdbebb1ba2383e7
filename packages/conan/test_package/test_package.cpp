#include <kvmeld/kvmeld.hpp>

#include <vector>

int main() {
  kvmeld::shape const extent{1, 1, 2, 1, 16, 16, 400};
  std::vector<float> k(extent.slots() * extent.key_dim, 1.0f), v(extent.slots() * extent.value_dim, 1.0f);
  kvmeld::strided<float> const keys(k.data(), "LSTHC", extent, 16), values(v.data(), "LSTHC", extent, 16);
  kvmeld::merged_cache cache{kvmeld::host_executor{}, kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{keys, values}, kvmeld::cache_options{extent}};
  cache.open(0, 400);
  cache.compress({0}, kvmeld::budget::entries(100));
  return cache.longest(0) == 100 ? 0 : 1;
}
