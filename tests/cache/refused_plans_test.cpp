// Plans that apply refuses: none, outgrown, or edited into something unsound.
#include "refusal.hpp"

#include <kvmeld/cache/plan_readings.hpp>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace refused_plans_cases {

namespace {

using cache_test::refused;
using kvmeld::budget;
using kvmeld::fate;

constexpr kvmeld::shape extent{1, 2, 2, 1, 12, 8, 32};

struct world {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) cache;

  world()
      : cache(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2),
                                  support::with_plan(4))) {
    support::dice d(1);
    memory.fill_sequence(d, 0, 0, 20, support::texture::walk);
    memory.values[19 * extent.value_dim] = kvmeld::bits_float(0x7fc00000u);  // slot 19 of head 0
    cache.open(0, 20, 3);
    cache.open(1, 2);
    cache.plan({0}, budget::entries(20));  // nothing to do: every entry stays
  }
  std::size_t at(std::uint32_t head, kvmeld::slot_t s) const { return cache.current_plan().at(head, s); }
  void send(std::uint32_t head, kvmeld::slot_t from, kvmeld::slot_t to, fate how, std::uint32_t span = 0) {
    kvmeld::plan_ref const& p = cache.current_plan();
    p.fates[at(head, from)] = how;
    p.target[at(head, from)] = to;
    p.span[at(head, from)] = span;
  }
  void refuses(std::initializer_list<char const*> parts) {
    refused(
        cache, memory, [](auto& c) { c.apply(); }, parts);
  }
};

}  // namespace

TEST_CASE("apply refuses where there is no plan, or one the cache has outgrown") {
  world w;
  w.cache.append({0}, {1});
  w.refuses({"apply", "sequence 0", "apply: number of pending entries of sequence 0 is 1", "commit"});
  w.cache.commit({0}, {1});
  w.refuses({"apply", "layer 0, sequence 0, head 0",
             "apply: plan: old_length of track (layer 0, sequence 0, head 0) is 20",
             "it must be 21, the entries that the track holds (plan again)", "plan again"});
  w.cache.compress({0}, budget::entries(20));
  w.refuses({"apply", "apply: plan is missing", "call plan"});
  w.cache.plan({0}, budget::entries(10));
  w.cache.apply();
  CHECK(w.cache.longest(0) == 10);
  w.refuses({"apply", "apply: plan is missing"});
}

TEST_CASE("a plan of rejected drafts' time still holds") {
  world w;
  w.cache.plan({0}, budget::entries(9));
  w.cache.append({0}, {4});
  w.cache.commit({0}, {0});
  w.cache.apply();
  CHECK(w.cache.longest(0) == 9);
}

TEST_CASE("apply refuses plans that are not sound") {
  world w;
  kvmeld::plan_ref const& p = w.cache.current_plan();
  SUBCASE("a fate that is none") {
    p.fates[w.at(1, 7)] = static_cast<fate>(9);
    w.refuses({"apply: plan: fate of slot 7 of track (layer 0, sequence 0, head 1) is 9", "it must be 0 to 4",
               "0 to 4"});
  }
  SUBCASE("weights that are not finite") {
    for (float** list : {const_cast<float**>(&p.key_weight), const_cast<float**>(&p.value_weight),
                         const_cast<float**>(&p.degree_weight)}) {
      (*list)[w.at(0, 4)] = kvmeld::bits_float(0x7f800000u);
      w.refuses({"slot 4", "_weight of slot 4 of track (layer 0, sequence 0, head 0) is inf",
                 "it must be a number of magnitude at most 8.50706e+37"});
      (*list)[w.at(0, 4)] = 1.0f;
    }
  }
  SUBCASE("a kept entry that goes elsewhere") {
    p.target[w.at(0, 6)] = 5;
    w.refuses({"slot 6", "kept", "apply: plan: target of slot 6 of track (layer 0, sequence 0, head 0) is 5",
               "it must be 6, because the entry is kept"});
  }
  SUBCASE("the frozen beginning moves") {
    w.send(0, 2, 8, fate::merge);
    w.refuses({"apply: plan: fate of slot 2 of track (layer 0, sequence 0, head 0) is ",
               "frozen beginning of 3", "keep"});
    w.send(0, 2, 2, fate::drop);
    w.refuses({"apply: plan: fate of slot 2 of track (layer 0, sequence 0, head 0) is ",
               "frozen beginning of 3", "keep"});
  }
  SUBCASE("a frozen target") {
    w.send(0, 8, 2, fate::merge);
    w.refuses(
        {"slot 8", "apply: plan: target of slot 8 of track (layer 0, sequence 0, head 0) is 2", "frozen"});
  }
  SUBCASE("a row that is no number, as source and as target") {
    w.send(0, 19, 8, fate::merge);
    w.refuses(
        {"NaN or infinity", "apply: plan: fate of slot 19 of track (layer 0, sequence 0, head 0) is merge"});
    w.send(0, 19, 19, fate::keep);
    w.send(0, 8, 19, fate::merge);
    w.refuses({"slot 8", "apply: plan: target of slot 8 of track (layer 0, sequence 0, head 0) is 19",
               "NaN or infinity"});
    w.send(0, 8, 8, fate::keep);
    w.send(0, 19, 19, fate::drop);
    w.cache.apply();
    CHECK(w.cache.length(0, 0, 0) == 19);
  }
  SUBCASE("a target beyond the track") {
    w.send(0, 8, 20, fate::merge);
    w.refuses({"slot 8", "apply: plan: target of slot 8 of track (layer 0, sequence 0, head 0) is 20",
               "of slot 8 of track (layer 0, sequence 0, head 0) is"});
  }
  SUBCASE("spans of nothing and beyond the track") {
    w.send(0, 8, 10, fate::spread, 0);
    w.refuses({"slot 8", "apply: plan: span of slot 8 of track (layer 0, sequence 0, head 0) is 0",
               "it must be 1 to 10, the entries from target 10 on"});
    w.send(0, 8, 10, fate::spread, 11);
    w.refuses({"slot 8", "apply: plan: span of slot 8 of track (layer 0, sequence 0, head 0) is 11",
               "of slot 8 of track (layer 0, sequence 0, head 0) is"});
    w.send(0, 8, 10, fate::spread, 0xffffffffu);
    w.refuses({"slot 8", "of slot 8 of track (layer 0, sequence 0, head 0) is"});
  }
  SUBCASE("a target that is not kept") {
    w.send(0, 8, 9, fate::merge);
    w.send(0, 9, 10, fate::merge);
    w.refuses({"slot 8", "apply: plan: target of slot 8 of track (layer 0, sequence 0, head 0) is 9",
               "it must be a slot that is kept"});
  }
  SUBCASE("a target of a set and of a spread") {
    w.send(0, 8, 12, fate::merge);
    w.send(0, 9, 11, fate::spread, 3);
    w.refuses({"apply: plan: target of slot 9 of track (layer 0, sequence 0, head 0) is 12",
               "it must be a slot that takes in either a set or a spread, not both"});
  }
  SUBCASE("more members than there is room for") {
    for (kvmeld::slot_t s : {8u, 9u, 10u, 11u, 12u}) w.send(1, s, 6, fate::share);
    w.refuses({"head 1", "apply: plan: number of members of track (layer 0, sequence 0, head 1) is 5",
               "it must be at most 4, the options.members"});
    w.send(1, 12, 12, fate::keep);
    w.cache.apply();
    CHECK(w.cache.ledger().members.count[1] == 4);
  }
}

TEST_CASE("a plan in words") {
  world w;
  w.send(0, 8, 6, fate::merge);
  w.send(0, 9, 6, fate::merge);
  w.send(0, 4, 4, fate::drop);
  w.send(0, 5, 5, fate::drop);
  w.send(1, 8, 10, fate::spread, 3);
  std::ostringstream out;
  print_plan(out, w.cache);
  std::string const text = out.str();
  cache_test::check_text(text, {"head 0", "head 1", "20 -> 20", "merge 8", "+ 9", "into 6", "drop 4-5",
                                "spread 8 over 10 to 12", "15 entries stay"});
}

}  // namespace refused_plans_cases
