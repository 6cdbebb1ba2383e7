// A prompt that does not fit: it is read in chunks, and compressed after each. The cache never holds more
// than the budget and one chunk, however long the prompt is.
#include "all_printed.h"
#include "support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using namespace kvmeld;
  constexpr std::uint32_t prompt = 4000, kept = 256, chunk = 128;
  examples::engine_tensors engine({1, 1, 2, 2, 64, 64, kept + chunk});  // room for no more
  shape const& extent = engine.extent;
  merged_cache cache{host_executor{1}, preset::leverage_dropkv::for_budget(),
                     kv{engine.keys(), engine.values()}, cache_options{extent}};
  cache.open(0);
  std::uint32_t const heads = extent.query_heads(), d = extent.key_dim;
  std::vector<float> q(std::size_t{heads} * chunk * d), out(q.size()), lse(std::size_t{heads} * chunk);
  std::uint32_t most = 0;
  for (std::uint32_t read = 0; read < prompt;) {
    std::uint32_t const n = std::min(chunk, prompt - read);
    cache.append({0}, {n});  // n rows more in every track, behind its last entry: the engine writes them
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      track const t = cache.ref().where(0, 0, head);
      slot_t const first = cache.ref().length(t) - n;
      for (std::uint32_t i = 0; i < n * d; ++i) {
        engine.keys().locate(t, first + i / d).base[i % d] = uniform01({1, 0, head, read, i}) - 0.5f;
        engine.values().locate(t, first + i / d).base[i % d] = uniform01({2, 0, head, read, i}) - 0.5f;
      }
    }
    cache.commit({0}, {n});
    most = std::max(most, cache.longest(0));

    // Each query attends to the entries left of earlier chunks, and to its own chunk up to its own token.
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] = 2 * uniform01({3, 0, 0, read, static_cast<std::uint32_t>(i)}) - 1;
    query_batch const batch{0, 0, n};
    attention::attend(cache.executor(), batch, rows_by_token<float const>(q.data(), n, heads, d), cache.ref(),
                      rows_by_token(out.data(), n, heads, d), rows_by_head(lse.data(), n, heads, 1));
    cache.observe(batch, rows_by_token<float const>(q.data(), n, heads, d),
                  rows_by_head<float const>(lse.data(), n, heads, 1));

    cache.compress({0}, budget::entries(kept));
    read += n;
  }
  std::cout << cache.tokens(0) << " tokens read; the cache held " << most
            << " entries per head at most, and now " << cache.longest(0) << "\n";
  return cache.tokens(0) == prompt && most == kept + chunk && cache.longest(0) == kept && all_printed() ? 0
                                                                                                        : 1;
}
