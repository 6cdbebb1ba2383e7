// expect: this merge function weighs by score, but the policy.s score gives none
// Weights by score need one.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::score_weighted>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::score_weighted>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
