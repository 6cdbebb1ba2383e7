// expect: this type is not a score
// A score that cannot be evaluated.
#include <kvmeld/kvmeld.hpp>

struct opinion {};

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global, kvmeld::select::top, kvmeld::identify::zero_class,
                                   kvmeld::merge::drop>;
#else
using composition =
    kvmeld::policy<opinion, kvmeld::select::top, kvmeld::identify::zero_class, kvmeld::merge::drop>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::limits{}};
}
