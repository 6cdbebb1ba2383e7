// expect: this merge function shares entries, which need centres to live in: use identify::nearest_center
// Members live in centres, not in pivots.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::tiers,
                                   kvmeld::identify::nearest_center<>, kvmeld::merge::shared>;
#else
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::top,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::shared>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
