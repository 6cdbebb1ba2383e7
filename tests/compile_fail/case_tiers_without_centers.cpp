// expect: this selector spends the budget on centres, but the identifier does not merge into them
// Pairs of a chunk take no notice of tiers.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::tiers,
                                   kvmeld::identify::nearest_center<>, kvmeld::merge::score_weighted>;
#else
using composition = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::tiers,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::score_weighted>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
