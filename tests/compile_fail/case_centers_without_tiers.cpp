// expect: this identifier merges into centres, but the selector makes none: use select::tiers
// Pinned entries are no centres.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::tiers,
                                   kvmeld::identify::nearest_center<>, kvmeld::merge::collapsed>;
#else
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::top,
                                   kvmeld::identify::nearest_center<>, kvmeld::merge::collapsed>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
