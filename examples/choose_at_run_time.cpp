// A policy picked by name when the program starts, composed of named parts, behind one type of cache.
// Usage: example_choose_at_run_time [score select identify merge]
#include "support.hpp"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace kvmeld;
  std::vector<std::string> names{"none", "sinks_and_recents", "chunked_bipartite:top_share",
                                 "degree_weighted"};
  for (int i = 1; i < argc && i <= 4; ++i) names[static_cast<std::size_t>(i - 1)] = argv[i];

  compose::composed policy;
  bool const known = compose::find(names[0], policy.score) && compose::find(names[1], policy.select) &&
                     compose::find(names[2], policy.identify) && compose::find(names[3], policy.merge);
  if (!known) {
    std::cerr << "scores: " << compose::names_of<compose::any_score>()
              << "\nselectors: " << compose::names_of<compose::any_selector>()
              << "\nidentifiers: " << compose::names_of<compose::any_identifier>()
              << "\nmerge functions: " << compose::names_of<compose::any_merge>() << "\n";
    return 2;
  }
  examples::engine_tensors engine;
  try {
    std::unique_ptr<any_cache> const cache = make_any_cache(merged_cache{
        host_executor{}, policy, kv{engine.keys(), engine.values()}, cache_options{engine.extent}});
    std::cout << cache->name() << "\n";
    cache->open(0, 1000);
    if (cache->needs_observation()) {
      // An engine would pass its queries; here every entry is looked at alike.
      std::vector<float> const rows(std::size_t{engine.extent.query_heads()} * engine.extent.capacity, 1e-3f);
      for (std::uint32_t layer = 0; layer < engine.extent.layers; ++layer) {
        cache->observe_rows(
            {layer, 0, 1}, rows_by_head(rows.data(), 1, engine.extent.query_heads(), engine.extent.capacity));
      }
    }
    cache->compress({0}, budget::ratio(0.3));
    std::cout << "1000 tokens in " << cache->longest(0) << " entries per head\n";
    return 0;
  } catch (
      invalid_argument const& problem) {  // parts that make no policy together, a budget that is too small
    std::cerr << problem.what() << "\n";
    return 1;
  }
}
