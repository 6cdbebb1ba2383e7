// Without exceptions and without RTTI, a refusal is a status.
#include <kvmeld/kvmeld.hpp>

#include <vector>

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "compiled with what this program does without"
#endif

int main() {
  kvmeld::shape const extent{1, 1, 2, 1, 16, 16, 400};
  std::vector<float> k(extent.slots() * extent.key_dim, 1.0f), v(extent.slots() * extent.value_dim, 1.0f);
  kvmeld::strided<float> const keys(k.data(), "LSTHC", extent, 16), values(v.data(), "LSTHC", extent, 16);
  kvmeld::merged_cache cache{kvmeld::host_executor{}, kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{keys, values}, kvmeld::cache_options{extent}};
  bool const sound = cache.valid().ok() && cache.open(0, 400).ok() &&
                     cache.compress({0}, kvmeld::budget::entries(100)).ok() && cache.longest(0) == 100;
  kvmeld::status const refused = cache.open(0, 400);
  return sound && !refused.ok() && !refused.text().empty() ? 0 : 1;
}
