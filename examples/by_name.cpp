// A policy picked by name at run time: one type of cache, one virtual call more per call.
#include "support.hpp"

#include <kvmeld/cache/any_cache.hpp>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>

int main(int argc, char** argv) {
  examples::engine_tensors engine;
  auto const holding = [&](auto const& policy) {
    return kvmeld::any_cache(kvmeld::merged_cache{kvmeld::host_executor{}, policy,
                                                  kvmeld::kv{engine.keys(), engine.values()},
                                                  kvmeld::limits{engine.extent}});
  };
  std::map<std::string, std::function<kvmeld::any_cache()>> const makers{
      {"chelsea", [&] { return holding(kvmeld::preset::chelsea::llama3()); }},
      {"h2o", [&] { return holding(kvmeld::preset::h2o::halves()); }},
      {"streaming_llm", [&] { return holding(kvmeld::preset::streaming_llm::with_sinks()); }}};

  auto const maker = makers.find(argc > 1 ? argv[1] : "streaming_llm");
  if (maker == makers.end()) {
    std::cerr << "no such policy; there are";
    for (auto const& [name, make] : makers) std::cerr << ' ' << name;
    std::cerr << '\n';
    return 2;
  }
  kvmeld::any_cache cache = maker->second();
  cache.open(0, 1000);
  if (!cache.needs_attention()) cache.compress({0}, kvmeld::budget::ratio(0.2));
  std::cout << cache.name() << ": " << cache.longest(0) << " entries for " << cache.tokens(0) << " tokens\n";
  return 0;
}
