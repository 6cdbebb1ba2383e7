// expect: a guard needs an identifier that makes sets and drops nothing
// Evicted entries are beyond any bound.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using identifier = kvmeld::identify::chunked_bipartite<>;
#else
using identifier = kvmeld::identify::evict_rest;
#endif
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::guarded<identifier, kvmeld::guard::probed<float>>,
                                   kvmeld::merge::degree_weighted>;

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
