// expect: this selector ranks entries by score, but the policy.s score gives none
// The best of what?
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::top, kvmeld::identify::evict_rest,
                                   kvmeld::merge::drop>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::top, kvmeld::identify::evict_rest,
                                   kvmeld::merge::drop>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
