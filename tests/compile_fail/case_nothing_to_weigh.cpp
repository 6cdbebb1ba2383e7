// expect: makes no sets, so there is nothing to weigh: use merge::drop
// The zero class is not averaged.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::evict_rest, kvmeld::merge::drop>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::evict_rest, kvmeld::merge::average>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
