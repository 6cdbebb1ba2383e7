// expect: this type is not a selector
// A selector that only counts.
#include <kvmeld/kvmeld.hpp>

struct counts_only {
  kvmeld::pins pinned(unsigned, unsigned, unsigned) const { return {}; }
};

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::zero_class, kvmeld::merge::drop>;
#else
using composition =
    kvmeld::policy<kvmeld::score::none, counts_only, kvmeld::identify::zero_class, kvmeld::merge::drop>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::limits{}};
}
