// expect: this identifier decides by score, but the policy.s score gives none
// The pivot with the highest score needs one.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::consecutive_threshold<>, kvmeld::merge::average>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::consecutive_threshold<>, kvmeld::merge::average>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
