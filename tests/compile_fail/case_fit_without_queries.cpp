// expect: this merge function fits to reference queries, but the policy.s score keeps none
// Attention alone does not tell what the queries are.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using score = kvmeld::score::keeping_queries<kvmeld::score::global>;
#else
using score = kvmeld::score::global;
#endif
using composition =
    kvmeld::policy<score, kvmeld::select::top, kvmeld::identify::evict_rest, kvmeld::merge::fitted>;

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
