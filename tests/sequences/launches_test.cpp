// How many launches calls make where the host cannot look at lengths, with those that bring lists: what the
// driver of a GPU has to do.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "support/fenced_executor.hpp"

namespace launches_cases {

namespace {

// Counts launches and makes none. As many workers as a device of 132 multiprocessors has.
class counting_executor : public support::fenced_executor {
public:
  using support::fenced_executor::fenced_executor;
  std::uint32_t workers() const { return 66; }
  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    if (rehearses()) return support::fenced_executor::run(phase, extent, items, source);
    ++*launches_;
  }
  kvmeld::index_list stage(kvmeld::index_list list) {
    ++*launches_;
    return support::fenced_executor::stage(list);
  }
  std::uint32_t launches() const { return *launches_; }

private:
  std::shared_ptr<std::uint32_t> launches_ = std::make_shared<std::uint32_t>(0);
};

// Keys and values at addresses that nobody reads.
auto no_rows(kvmeld::shape const& extent) {
  using element = kvmeld::float16;
  auto const at = [&](std::size_t address) {
    element* p;
    std::memcpy(&p, &address, sizeof(p));
    return kvmeld::strided<element>(p, "LSHTC", extent, extent.key_dim);
  };
  return kvmeld::kv{at(std::size_t{1} << 40), at(std::size_t{1} << 41)};
}

// Launches of the calls of a step, call by call.
std::vector<std::uint32_t> launches_of_step(std::uint32_t tokens) {
  kvmeld::shape const extent{32, 4, 8, 4, 128, 128, 640};
  kvmeld::merged_cache cache{counting_executor(), kvmeld::preset::streaming_llm::with_sinks(),
                             no_rows(extent), kvmeld::cache_options{extent}};
  std::vector<std::uint32_t> out;
  auto const count = [&](auto call) {
    std::uint32_t const before = cache.executor().launches();
    call();
    out.push_back(cache.executor().launches() - before);
  };
  for (std::uint32_t sequence : {0u, 2u}) cache.open(sequence, 100);
  count([&] { cache.append({0, 2}, {tokens, 1}); });
  count([&] { cache.commit({0, 2}, {1, 1}); });
  return out;
}

template <class Policy>
std::uint32_t launches_of(Policy const& policy, kvmeld::shape const& extent, std::uint32_t tokens,
                          std::uint32_t left) {
  kvmeld::cache_options options{extent};
  if (kvmeld::shares_entries<typename Policy::merge_type>::value) options.members = 2 * left;
  kvmeld::merged_cache cache{counting_executor(), policy, no_rows(extent), options};
  std::vector<std::uint32_t> all(extent.sequences);
  std::iota(all.begin(), all.end(), 0u);
  std::vector<float> const weights(std::size_t{extent.query_heads()} * tokens);
  for (std::uint32_t sequence : all) {
    cache.open(sequence, tokens);
    for (std::uint32_t l = 0; l < extent.layers; ++l)
      cache.observe_rows({l, sequence, 1},
                         kvmeld::rows_by_head<float const>(weights.data(), 1, extent.query_heads(), tokens));
  }
  std::uint32_t const before = cache.executor().launches();
  cache.compress(all, kvmeld::budget::entries(left));
  return cache.executor().launches() - before;
}

}  // namespace

TEST_CASE("launches of a compression") {
  namespace preset = kvmeld::preset;
  kvmeld::shape const one{32, 1, 8, 4, 128, 128, 640}, many{32, 32, 8, 4, 128, 128, 640},
      layer{1, 1, 8, 4, 128, 128, 65536};
  CHECK(launches_of(preset::streaming_llm::with_sinks(), one, 576, 512) == 13);
  CHECK(launches_of(preset::h2o::defaults(), one, 576, 512) == 13);
  CHECK(launches_of(preset::kvmerger::for_budget(), one, 576, 512) == 20);
  CHECK(launches_of(preset::d2o::defaults(), one, 576, 512) == 20);
  CHECK(launches_of(preset::ems::shared(), one, 576, 512) == 24);
  CHECK(launches_of(preset::chelsea::llama3(), one, 576, 512) == 22);
  CHECK(launches_of(preset::chelsea::llama3(), many, 576, 512) == 7 * 20 + 2);
  CHECK(launches_of(preset::chelsea::llama3(), layer, 65536, 13107) == 76);
}

TEST_CASE("a policy that is chosen at run time and only evicts launches nothing for sets") {
  using kvmeld::compose::composed_of;
  kvmeld::shape const one{32, 1, 8, 4, 128, 128, 640};
  auto const of = [&](auto const& policy) { return launches_of(composed_of(policy), one, 576, 512); };
  CHECK(of(kvmeld::preset::streaming_llm::with_sinks()) == 14);
  CHECK(of(kvmeld::preset::h2o::defaults()) == 14);
}

TEST_CASE("launches of a decode step: lists travel together, and few entries take one launch") {
  CHECK(launches_of_step(1) == std::vector<std::uint32_t>{2, 2});
  CHECK(launches_of_step(16) == std::vector<std::uint32_t>{2, 2});
  CHECK(launches_of_step(17) == std::vector<std::uint32_t>{3, 2});
}

}  // namespace launches_cases
