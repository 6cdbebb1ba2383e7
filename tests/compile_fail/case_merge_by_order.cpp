// expect: this policy computes with scores .*, but its score only orders entries: use one that gives weights
// Negative scores are no weights.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using score = kvmeld::score::local;
#else
using score = kvmeld::score::key_difference;
#endif
using composition = kvmeld::policy<score, kvmeld::select::top, kvmeld::identify::chunked_bipartite<>,
                                   kvmeld::merge::score_weighted>;

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
