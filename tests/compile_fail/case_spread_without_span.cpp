// expect: this merge function spreads entries over spans of slots, but the policy.s identifier makes none
// The zero class says nothing about where values could go.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::local_span, kvmeld::merge::additive>;
#else
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::evict_rest, kvmeld::merge::additive>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
