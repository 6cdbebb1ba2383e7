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
constexpr std::uint32_t probes = 32;

template <class Policy>
using cache_of =
    kvmeld::merged_cache<kvmeld::host_executor, Policy, kvmeld::strided<element>, kvmeld::strided<element>>;

/// Compressions to a fifth by one policy, `prepare(cache)` first; ones that do not get there are timed all
/// the same.
template <class Policy, class Prepare>
void run(session& s, tensors<element>& x, std::string const& preset, std::string const& feature,
         Policy const& policy, kvmeld::budget_scope among, bool figures, Prepare prepare) {
  std::string const name = "feature/" + preset + "/" + feature, plain = "feature/" + preset + "/plain";
  if (!s.wants(name, x.of())) return;
  kvmeld::cache_options sizes{x.extent()};
  sizes.budgets_over = among;
  sizes.stats = figures;
  x.restore();
  cache_of<Policy> cache(kvmeld::host_executor(s.threads()), policy, x.rows(), sizes);
  cache.open(0, x.of().n);
  fill_scores(cache.ledger());
  std::vector<std::byte> const begun = cache.save(0);
  std::array<std::uint32_t, 1> const slots{0};
  auto const fallback = kvmeld::is_guarded<typename Policy::identify_type>::value
                            ? kvmeld::shortfall::keep
                            : kvmeld::shortfall::evict_lowest;
  s.measure(
      name, x.of(),
      [&] {
        begin_again(x, cache, begun);
        prepare(cache);
      },
      [&] { cache.compress(slots, kvmeld::budget::ratio(kept_share).over(among), fallback); },
      [] { return 0.0; },
      [&] {
        references r;
        for (row const& a : s.rows()) {
          if (a.name == plain && a.of.n == x.of().n && a.of.dtype == x.of().dtype) r.plain = a.seconds;
        }
        return r;
      });
}

template <class Policy>
void run_unguarded(session& s, tensors<element>& x, std::string const& preset, Policy const& policy) {
  auto const nothing = [](auto&) {};
  run(s, x, preset, "plain", policy, kvmeld::budget_scope::head, false, nothing);
  if (kvmeld::stays_by_score(policy))
    run(s, x, preset, "budget_over_layer", policy, kvmeld::budget_scope::layer, false, nothing);
  run(s, x, preset, "figures", policy, kvmeld::budget_scope::head, true, nothing);
}

/// Queries as long as keys, and their log-sum-exps over the cache.
struct probing {
  std::vector<element> query;
  std::vector<float> lse, room;

  template <class Cache> kvmeld::guard::probe_set<element> of(Cache& cache) {
    kvmeld::shape const& extent = cache.sizes().extent;
    std::uint32_t const heads = extent.query_heads();
    std::uint32_t state = 11;
    query.resize(std::size_t{probes} * heads * head_dim);
    for (element& q : query) q = kvmeld::element_traits<element>::from_float(noise(state));
    lse.resize(std::size_t{probes} * heads);
    room.resize(kvmeld::guard::probe_room(extent, probes));
    std::vector<float> out(query.size());
    kvmeld::head_rows<element const> const rows =
        kvmeld::rows_by_token<element const>(query.data(), probes, heads, head_dim);
    kvmeld::attention::attend(cache.executor(), {0, 0, probes}, rows, cache.ref(),
                              kvmeld::rows_by_token(out.data(), probes, heads, head_dim),
                              kvmeld::rows_by_token(lse.data(), probes, heads, 1));
    return {rows,       kvmeld::rows_by_token<float const>(lse.data(), probes, heads, 1), 0, 0, probes,
            room.data()};
  }
};

}  // namespace

void run_features(session& s, tensors<element>& x) {
  namespace preset = kvmeld::preset;
  if (x.of().n != length) return;
  run_unguarded(s, x, "snapkv", preset::snapkv::with_window());
  run_unguarded(s, x, "kvmerger", preset::kvmerger::for_budget());
  auto const chelsea = preset::chelsea::llama3();
  run_unguarded(s, x, "chelsea", chelsea);
  probing probe;
  kvmeld::guard::probe_set<element> found;
  kvmeld::guard::probed<element> guard{0.25f};
  run(s, x, "chelsea", "probed", preset::chelsea::guarded(guard, chelsea), kvmeld::budget_scope::head, false,
      [&](auto& cache) {
        if (found.count == 0) found = probe.of(cache);
        guard.probes = found;
        cache.set_guard(guard);
      });
}

}  // namespace kvmeld_bench
