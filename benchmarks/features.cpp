#include "features.hpp"

#include <kvmeld/kvmeld.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld_bench {
namespace {

using element = kvmeld::bfloat16;
constexpr std::uint32_t length = 4096;

template <class Policy>
using cache_of =
    kvmeld::merged_cache<kvmeld::host_executor, Policy, kvmeld::strided<element>, kvmeld::strided<element>>;

/// Compressions to a fifth by one policy.
template <class Policy>
void run(session& s, tensors<element>& x, std::string const& preset, std::string const& feature,
         Policy const& policy, kvmeld::budget_scope among, bool figures) {
  std::string const name = "feature/" + preset + "/" + feature, plain = "feature/" + preset + "/plain";
  if (!s.wants(name, x.of())) return;
  kvmeld::cache_options options{x.extent()};
  options.budgets_over = among;
  options.stats = figures;
  x.restore();
  cache_of<Policy> cache(kvmeld::host_executor(s.threads()), policy, x.rows(), options);
  cache.open(0, x.of().n);
  fill_scores(cache.ledger());
  std::vector<std::byte> const begun = cache.save(0);
  std::array<std::uint32_t, 1> const slots{0};
  s.measure(
      name, x.of(), [&] { begin_again(x, cache, begun); },
      [&] { cache.compress(slots, kvmeld::budget::ratio(kept_share).over(among)); }, [] { return 0.0; },
      [&] {
        references r;
        for (row const& a : s.rows()) {
          if (a.name == plain && a.of.n == x.of().n && a.of.dtype == x.of().dtype) r.plain = a.seconds;
        }
        return r;
      });
}

template <class Policy>
void run_all(session& s, tensors<element>& x, std::string const& preset, Policy const& policy) {
  run(s, x, preset, "plain", policy, kvmeld::budget_scope::head, false);
  if (kvmeld::stays_by_score(policy))
    run(s, x, preset, "budget_over_layer", policy, kvmeld::budget_scope::layer, false);
  run(s, x, preset, "figures", policy, kvmeld::budget_scope::head, true);
}

}  // namespace

void run_features(session& s, tensors<element>& x) {
  namespace preset = kvmeld::preset;
  if (x.of().n != length) return;
  run_all(s, x, "snapkv", preset::snapkv::with_window());
  run_all(s, x, "kvmerger", preset::kvmerger::for_budget());
  run_all(s, x, "chelsea", preset::chelsea::llama3());
}

}  // namespace kvmeld_bench
