// What apply refuses: every way in which an edited or outgrown plan is not sound, by name, value and what is
// allowed.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "hand_made.hpp"
#include "support/random_cache.hpp"

using hand_made::send;
using kvmeld::fate;

namespace {

// Track (1, 0, 0) of eight entries, two of them frozen, slot 6 with NaN; `edit` makes the plan unsound.
template <class Edit> std::string refused(Edit edit) {
  kvmeld::shape const s{2, 1, 1, 1, 2, 2, 10};
  support::engine_memory<float> memory(s);
  support::dice d(1);
  memory.fill_sequence(d, 0, 0, 8, support::texture::noise);
  kvmeld::track const t = kvmeld::make_track(s, 1, 0, 0);
  support::write_row(memory.tensors().values, t, 6, {kvmeld::bits_float(0x7fc00000u)});
  auto cache = make_cache(memory, hand_made::policy(), support::with_plan(3));
  cache.open(0, 8, 2);
  cache.plan({0}, kvmeld::budget::entries(10));
  support::engine_memory<float> const before = memory;
  edit(cache, cache.current_plan(), 1u);
  std::string text;
  try {
    cache.apply();
  } catch (kvmeld::invalid_argument const& e) {
    text = e.what();
  }
  CHECK(memory == before);  // a refused call leaves everything as it was
  CHECK(cache.length(1, 0, 0) >= 8);
  return text;
}

std::string slot(char const* what, int n, char const* rest) {
  return std::string("apply: plan: ") + what + " of slot " + std::to_string(n) +
         " of track (layer 1, sequence 0, head 0) is " + rest;
}

}  // namespace

TEST_CASE("apply refuses plans that are not sound") {
  CHECK(refused([](auto&, auto const&, auto) {}).empty());
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          p.fates[p.at(item, 3)] = static_cast<fate>(7);
        }) == slot("fate", 3, "7; it must be 0 to 4"));
  for (int which = 0; which < 3; ++which) {
    CHECK(refused([&](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
            float* const weights[] = {p.key_weight, p.value_weight, p.degree_weight};
            weights[which][p.at(item, 4)] = kvmeld::bits_float(which == 0 ? 0x7f800000u : 0x7fc00000u);
          }) == slot(which == 0   ? "key_weight"
                     : which == 1 ? "value_weight"
                                  : "degree_weight",
                     4,
                     which == 0 ? "inf; it must be a number of magnitude at most 8.50706e+37"
                                : "nan; it must be a number of magnitude at most 8.50706e+37"));
  }
  for (float largest : {kvmeld::largest::plan_weight, -kvmeld::largest::plan_weight}) {
    CHECK(refused([&](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
            p.key_weight[p.at(item, 4)] = largest;
            p.value_weight[p.at(item, 4)] = largest;
          }).empty());
  }
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::merge, 4, 1, 1, -1);
        }) == slot("degree_weight", 3, "-1; it must be at least 0"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          p.degree_weight[p.at(item, 3)] = 0;
        }) == slot("degree_weight", 3, "0; it must be above 0, because the entry is kept"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) { p.target[p.at(item, 4)] = 5; }) ==
        slot("target", 4, "5; it must be 4, because the entry is kept"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 1, fate::drop, 1, 1, 1, 1);
        }) ==
        slot("fate", 1, "drop; it must be keep, because the slot lies in the frozen beginning of 2 entries"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 6, fate::merge, 5, 1, 1, 1);
        }) == slot("fate", 6, "merge; it must be keep or drop, because the row holds NaN or infinity"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::merge, 8, 1, 1, 1);
        }) == slot("target", 3, "8; it must be less than 8, the entries of the track"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::spread, 4, 1, 1, 1, 0);
        }) == slot("span", 3, "0; it must be 1 to 4, the entries from target 4 on"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::spread, 7, 1, 1, 1, 2);
        }) == slot("span", 3, "2; it must be 1 to 1, the entries from target 7 on"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::spread, 7, 1, 1, 1, 0xffffffffu);
        }) == slot("span", 3, "4294967295; it must be 1 to 1, the entries from target 7 on"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::merge, 4, 1, 1, 1);
          send(p, item, 4, fate::merge, 5, 1, 1, 1);
        }) == slot("target", 3, "4; it must be a slot that is kept"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::merge, 3, 1, 1, 1);
        }) == slot("target", 3, "3; it must be a slot that is kept"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::share, 6, 1, 1, 1);
        }) == slot("target", 3, "6; it must be a slot whose row holds no NaN or infinity"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 3, fate::merge, 1, 1, 1, 1);
        }) == slot("target", 3, "1; it must be at least 2, because the entries before are frozen"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 2, fate::merge, 4, 1, 1, 1);
          send(p, item, 7, fate::spread, 3, 1, 1, 1, 3);
        }) == slot("target", 7, "4; it must be a slot that takes in either a set or a spread, not both"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 2, fate::spread, 3, 1, 1, 1, 3);
          send(p, item, 7, fate::share, 5, 1, 1, 1);
        }) == slot("target", 7, "5; it must be a slot that takes in either a set or a spread, not both"));
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          for (std::uint32_t s : {3u, 4u, 5u, 7u}) send(p, item, s, fate::share, 2, 1, 1, 1);
        }) ==
        "apply: plan: number of members of track (layer 1, sequence 0, head 0) is 4; it must be at most 3, "
        "the options.members");
  CHECK(refused([](auto&, kvmeld::plan_ref const& p, std::uint32_t item) {
          send(p, item, 2, fate::share, 3, 1, 1, 1);
          send(p, item, 4, fate::merge, 3, 1, 1, 1);
        }) == slot("set", 3,
                   "one of merged and shared entries; it must be one of either merged or shared entries"));
  CHECK(refused([](auto& cache, kvmeld::plan_ref const&, std::uint32_t) {
          cache.append({0}, {1});
          cache.commit({0}, {1});
        }) == "apply: plan: old_length of track (layer 0, sequence 0, head 0) is 8; it must be 9, the "
              "entries that the track holds (plan again)");
  CHECK(refused([](auto& cache, kvmeld::plan_ref const&, std::uint32_t) { cache.append({0}, {1}); }) ==
        "apply: number of pending entries of sequence 0 is 1; it must be 0 (call commit first)");
  CHECK(refused([](auto& cache, kvmeld::plan_ref const&, std::uint32_t) {
          cache.compress({0}, kvmeld::budget::entries(10));
        }) == "apply: plan is missing; it must be made first (call plan)");
}

TEST_CASE("a plan is applied once, and members fill up") {
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 2, 10});
  support::dice d(2);
  memory.fill_sequence(d, 0, 0, 8, support::texture::noise);
  auto cache = make_cache(memory, hand_made::policy(), support::with_plan(3));
  cache.open(0, 8);
  auto const go = [&](kvmeld::slot_t from, fate how, kvmeld::slot_t to) {
    cache.plan({0}, kvmeld::budget::entries(10));
    send(cache.current_plan(), 0, from, how, to, 1, 1, 1, 1);
    hand_made::dump::renumber(cache.current_plan(), 0);
    cache.apply();
  };
  go(1, fate::share, 0);
  CHECK(cache.ledger().members.count[0] == 1);
  CHECK_THROWS_WITH(cache.apply(), "apply: plan is missing; it must be made first (call plan)");
  for (auto [from, how, to] :
       {std::tuple{1u, fate::merge, 0u}, {0u, fate::merge, 1u}, {0u, fate::spread, 1u}}) {
    CHECK_THROWS_WITH(go(from, how, to),
                      "apply: plan: set of slot 0 of track (layer 0, sequence 0, head 0) is one that merges "
                      "or spreads; it must be one of shared entries, because members belong to the slot (its "
                      "fate is keep, share or drop)");
  }
  go(2, fate::share, 1);  // slot 1 was 2, slot 2 was 3
  CHECK(cache.ledger().members.count[0] == 2);
  go(0, fate::share, 1);  // an owner takes its member along
  REQUIRE(cache.ledger().members.count[0] == 3);
  for (std::uint32_t m = 0; m < 3; ++m) CHECK(cache.ledger().members.owner[m] == 0);
  CHECK(cache.ledger().members.position[0] == 1);
  CHECK(cache.ledger().members.position[1] == 3);
  CHECK(cache.ledger().members.position[2] == 0);
  CHECK(cache.ref().degree({0, 0, 0, 0}, 0) == 4);
  CHECK_THROWS_WITH(go(2, fate::share, 1), "apply: plan: number of members of track (layer 0, sequence 0, "
                                           "head 0) is 4; it must be at most 3, the options.members");
  CHECK(cache.longest(0) == 5);

  // Members that the plan gives up go, and their owner stands for one token less.
  cache.plan({0}, kvmeld::budget::entries(10));
  cache.current_plan().members.kept[1] = 0;
  send(cache.current_plan(), 0, 2, fate::share, 1, 1, 1, 1);
  hand_made::dump::renumber(cache.current_plan(), 0);
  cache.apply();
  REQUIRE(cache.ledger().members.count[0] == 3);
  CHECK(cache.ref().degree({0, 0, 0, 0}, 0) == 3);
  CHECK(cache.ledger().members.position[1] == 0);
  CHECK(cache.ledger().members.owner[2] == 1);

  // Dropping an owner drops its members; moving it renames them.
  auto kept = make_cache(memory, hand_made::policy(), support::with_plan(6));
  kept.open(0, 6);
  kept.plan({0}, kvmeld::budget::entries(10));
  send(kept.current_plan(), 0, 0, fate::share, 1, 1, 1, 1);
  send(kept.current_plan(), 0, 3, fate::share, 5, 1, 1, 1);
  hand_made::dump::renumber(kept.current_plan(), 0);
  kept.apply();  // 1 2 4 5 stay
  CHECK(kept.ledger().members.count[0] == 2);
  kept.plan({0}, kvmeld::budget::entries(10));
  send(kept.current_plan(), 0, 0, fate::drop, 0, 1, 1, 1);
  send(kept.current_plan(), 0, 1, fate::drop, 1, 1, 1, 1);
  hand_made::dump::renumber(kept.current_plan(), 0);
  kept.apply();
  REQUIRE(kept.ledger().members.count[0] == 1);
  CHECK(kept.ledger().members.owner[0] == 1);
  CHECK(kept.ledger().members.position[0] == 3);
}
