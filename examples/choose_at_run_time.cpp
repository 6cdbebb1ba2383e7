// A policy from a text when the program starts, behind one type of cache.
// Usage: example_choose_at_run_time [policy], such as "snapkv", or
// "score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64".
#include "all_printed.h"
#include "support.hpp"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/policy_text.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace kvmeld;
  std::string const text = argc > 1 ? argv[1] : "chelsea chunk=128";

  examples::engine_tensors engine;
  try {
    compose::composed policy;
    compose::read_policy(text, policy);
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
    return all_printed() ? 0 : 1;
  } catch (invalid_argument const& problem) {  // a text that is no policy, a budget that is too small
    std::cerr << problem.what() << "\n";
    return 1;
  }
}
