// expect: this merge function spreads entries over spans of slots, but the policy.s identifier makes none
// Sets are weighed, not spread.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::average>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::additive>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
