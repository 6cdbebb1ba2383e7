// A preset in ten lines: Chelsea shrinks 1,000 cached tokens to a fifth, in place.
#include "all_printed.h"
#include "support.hpp"

#include <iostream>

int main() {
  examples::engine_tensors engine;  // yours: any tensors with strides

  auto policy = kvmeld::preset::chelsea::llama3();
  kvmeld::merged_cache cache{kvmeld::host_executor{}, policy, kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);                              // sequence 0 has 1,000 tokens in K and V
  cache.compress({0}, kvmeld::budget::ratio(0.2));  // every layer and head, in place

  auto ref = cache.ref();  // what your attention kernel reads: lengths and degrees
  kvmeld::track head = ref.where(0, 0, 0);
  std::cout << "entries left: " << ref.length(head) << ", the 20th stands for " << ref.degree(head, 20)
            << " tokens: add " << ref.log_degree(head, 20) << " to its logit\n";
  return ref.length(head) == 200 && all_printed() ? 0 : 1;
}
