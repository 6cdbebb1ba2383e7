// expect: this merge function shares entries, but the score does not score members
// A score for entries only would lose sight of members.
#include <kvmeld/kvmeld.hpp>

struct entries_only : kvmeld::score::global {
#if !defined(KVMELD_CONTROL)
  void importance() const = delete;
  template <class Team> void evaluate(Team const&, kvmeld::score_view const&, float*) const {}
#endif
};
using composition = kvmeld::policy<entries_only, kvmeld::select::tiers, kvmeld::identify::nearest_center<>,
                                   kvmeld::merge::shared>;

auto use(kvmeld::kv<kvmeld::strided<float>, kvmeld::strided<float>> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
}
