// expect: this identifier decides by score, but the policy.s score gives none
// CaM's rate compares accumulated attention: StreamingLLM's own score is none.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::local_span, kvmeld::merge::additive>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::local_span, kvmeld::merge::additive>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
