// Random calls on small caches, right and wrong ones, beside a naive model: any policy, tensors in any order
// or in pages.
#include "choices.hpp"
#include "compositions.hpp"
#include "paged_memory.hpp"
#include "support/shadowed_life.hpp"

#include <exception>
#include <string>
#include <utility>

namespace {

using fuzz::choices;
using kvmeld::compose::composed;
using support::shadow;

template <class Memory, class Policy>
void live(Memory memory, Policy const& policy, shadow known, choices const& c, std::uint64_t seed) {
  support::shadowed_life<Memory, Policy, choices> life(std::move(memory), policy, known, c, seed);
  try {
    for (std::size_t i = 0; i < 600 && life.more(); ++i) life.step(i);
  } catch (std::exception const& e) {
    fuzz::fail(kvmeld::name_of_policy(policy) + ": " + e.what());
  }
}

composed policy_of(shadow known, choices& c) {
  using namespace kvmeld;
  quantity const sinks = quantity::entries(support::shadowed_sinks);
  switch (known) {
  case shadow::streaming:
    return compose::composed_of(preset::streaming_llm::with_sinks(support::shadowed_sinks));
  case shadow::h2o: return compose::composed_of(preset::h2o::defaults());
  case shadow::chelsea: {
    auto policy = preset::chelsea::with_schedule({0.4, 0.0, 0, 0.05}, sinks, quantity::entries(2));
    policy.identify.chunk = 6;
    return compose::composed_of(policy);
  }
  default: return c.pick(fuzz::compositions());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices c(data, size);
  constexpr shadow kinds[] = {shadow::streaming, shadow::h2o, shadow::chelsea, shadow::any, shadow::any};
  shadow const known = c.pick(kinds);
  composed const policy = policy_of(known, c);
  kvmeld::shape const extent{c.between(1, 2), c.between(1, 4), c.between(1, 2), 1, 4, 2, c.between(6, 40)};
  std::uint64_t const seed = c.below(0x10000);
  if (c.chance(0.15)) {
    live(support::engine_memory<float>(extent), fuzz::sharing(), shadow::any, c, seed);
  } else if (c.chance(0.5)) {
    constexpr char const* orders[] = {"LSHTC", "LSTHC", "SLHTC", "LSHCT", "TSLHC"};
    support::engine_memory<float> memory(extent, c.pick(orders));
    live(std::move(memory), policy, known, c, seed);
  } else {
    constexpr char const* orders[] = {"LPTHC", "LPHTC", "PLHCT"};
    std::uint32_t const page_size = c.between(1, 9);
    fuzz::paged_memory memory(extent, page_size, c.pick(orders), seed);
    live(std::move(memory), policy, known, c, seed);
  }
  return 0;
}
