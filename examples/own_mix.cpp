// A mix of one's own: SnapKV's score and selection, Chelsea's matching in chunks of 64, weights by attention.
// Nobody published it; it is one line. The plan is printed before anything is touched.
#include "all_printed.h"
#include "support.hpp"

#include <kvmeld/cache/plan_readings.hpp>

#include <cmath>
#include <iostream>
#include <vector>

int main() {
  examples::engine_tensors engine;
  using namespace kvmeld;
  policy mix{score::local{32},
             select::top{quantity::entries(4), quantity::entries(32), quantity::of_budget(0.5)},
             identify::chunked_bipartite<admit::exact_budget>{64}, merge::score_weighted{}};
  cache_options options{engine.extent};
  options.whole_plan = true;  // memory for a plan that can be looked at
  merged_cache cache{host_executor{}, mix, kv{engine.keys(), engine.values()}, options};
  cache.open(0, 1000);

  // Scores need attention: the queries of the last 32 tokens, with the log-sum-exps that attention gave.
  std::uint32_t const n = 32, heads = engine.extent.query_heads(), d = engine.extent.key_dim;
  std::vector<float> q(n * heads * d), out(q.size()), lse(n * heads);
  for (std::uint32_t i = 0; i < q.size(); ++i) q[i] = 2 * uniform01({3, 0, 0, 0, i}) - 1;
  for (std::uint32_t layer = 0; layer < engine.extent.layers; ++layer) {
    attention::attend(cache.executor(), {layer, 0, n}, rows_by_token(q.data(), n, heads, d), cache.ref(),
                      rows_by_token(out.data(), n, heads, d), rows_by_token(lse.data(), n, heads, 1));
    float const* const seen = lse.data();
    cache.observe({layer, 0, n}, rows_by_token(q.data(), n, heads, d), rows_by_token(seen, n, heads, 1));
  }
  cache.plan({0}, budget::entries(700));
  print_plan(std::cout, cache.ref().where(0, 0, 0), cache.current_plan(), 0);
  cache.apply();
  std::cout << "entries left: " << cache.length(0, 0, 0) << "\n";
  return cache.length(0, 0, 0) == 700 && all_printed() ? 0 : 1;
}
