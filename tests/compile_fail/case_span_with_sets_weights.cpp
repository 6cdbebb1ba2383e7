// expect: this identifier spreads entries over spans of slots, but the policy.s merge function weighs sets
// Spans have no pivot to average at.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::local_span, kvmeld::merge::drop>;
#else
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::local_span, kvmeld::merge::average>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
