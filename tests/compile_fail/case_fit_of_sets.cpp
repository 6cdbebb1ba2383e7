// expect: this merge function fits what an eviction leaves, but the policy.s identifier makes sets or spans
// Outputs before the call are computed from the keys that are there when a plan is applied.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using identifier = kvmeld::identify::evict_rest;
#else
using identifier = kvmeld::identify::chunked_bipartite<>;
#endif
using composition = kvmeld::policy<kvmeld::score::keeping_queries<kvmeld::score::global>, kvmeld::select::top,
                                   identifier, kvmeld::merge::fitted>;

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
