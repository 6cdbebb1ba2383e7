// expect: this type is not an identifier
// An identifier that never admits.
#include <kvmeld/kvmeld.hpp>

struct proposes_only {
  static constexpr bool repeats = false, meets_budget = false, needs_score = false, makes_sets = true,
                        needs_keys = false;
};

#if defined(KVMELD_CONTROL)
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                   kvmeld::identify::chunked_bipartite<>, kvmeld::merge::average>;
#else
using composition = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents, proposes_only,
                                   kvmeld::merge::average>;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::limits{}};
}
