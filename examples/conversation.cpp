// The life of a sequence: a prompt, compression, drafts of which some are rejected, a second answer from the
// same point, going back, and a pause that outlives the program.
#include "all_printed.h"
#include "support.hpp"

#include <cstddef>
#include <iostream>
#include <vector>

int main() {
  using namespace kvmeld;
  examples::engine_tensors engine({1, 3, 2, 2, 64, 64, 600});  // three sequences
  merged_cache cache{host_executor{}, preset::chelsea::llama3(), kv{engine.keys(), engine.values()},
                     cache_options{engine.extent}};
  auto const tell = [&](char const* what, std::uint32_t slot) {
    std::cout << what << ": " << cache.tokens(slot) << " tokens, " << cache.longest(slot)
              << " entries per head\n";
  };
  cache.open(0, 500);  // the engine has the prompt's K and V for sequence 0 already
  cache.compress({0}, budget::entries(200));
  tell("prompt, compressed", 0);

  cache.append({0},
               {4});  // four drafts: the engine writes their rows behind the last entry, and verifies them
  cache.commit({0}, {3});  // the fourth was rejected
  tell("three of four drafts accepted", 0);

  cache.fork(0, 1);  // another answer to the same prompt: entries, degrees and scores, K and V
  cache.append({1}, {20});
  cache.commit({1}, {20});
  tell("a fork that went on", 1);

  cache.truncate(1, 503);  // and back to where it began
  tell("the fork, taken back", 1);

  std::vector<std::byte> const bytes =
      cache.save(0);  // with the engine's K and V, all that it takes to go on
  cache.close(0);
  cache.resume(2, bytes);  // as another sequence, whose rows the engine has copied back
  tell("paused and resumed", 2);
  std::cout << "a paused sequence is " << bytes.size() << " bytes beside K and V\n";
  return cache.tokens(2) == 503 && cache.longest(2) == 203 && cache.longest(1) == 203 && all_printed() ? 0
                                                                                                       : 1;
}
