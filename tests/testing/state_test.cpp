// The ledger's invariants and the watch: silent about sound operations, and about every broken promise one
// text.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace state_cases {

using kvmeld::testing::invariant_problem;
using kvmeld::testing::watch;

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 1, 8, 6, 40};
constexpr kvmeld::track first{0, 0, 0, 0};

auto merging() {
  using kvmeld::quantity;
  return kvmeld::preset::chelsea::with_schedule({}, quantity::entries(1), quantity::entries(2));
}

// Two sequences of 30 tokens, the first with two frozen ones, to be merged to 15.
struct world {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, merging())) cache;

  world() : cache(support::make_cache(memory, merging(), options())) {
    support::dice d(3);
    for (std::uint32_t q = 0; q < 2; ++q) {
      memory.fill_sequence(d, q, 0, 40, support::texture::walk);
      cache.open(q, 30, q == 0 ? 2 : 0);
    }
  }
  static kvmeld::cache_options options() {
    kvmeld::cache_options options = support::with_plan(12);
    options.zero_emptied = true;
    return options;
  }
  // What the watch says when `harm` is done on top of compressing sequence 0.
  template <class Harm> std::string after(Harm harm) {
    watch const before(cache);
    cache.compress({0}, kvmeld::budget::entries(15));
    harm(cache.ledger());
    return before.after_compress(cache, {0});
  }
  void spoil(std::vector<float>& tensor, std::uint32_t channels, kvmeld::track t, kvmeld::slot_t s) {
    tensor[(std::size_t{t.index} * extent.capacity + s) * channels] += 1;
  }
};

template <class Harm> std::string after(Harm harm) {
  world w;
  return w.after([&](kvmeld::ledger_ref const& l) { harm(w, l); });
}

template <class Harm> std::string broken(Harm harm) {
  world w;
  w.cache.append({0}, {3});
  harm(w.cache.ledger());
  return invariant_problem(w.cache);
}

}  // namespace

TEST_CASE("a cache keeps its invariants through its life") {
  world w;
  CHECK(invariant_problem(w.cache) == "");
  w.cache.append({0, 1}, {4, 0});
  CHECK(invariant_problem(w.cache) == "");
  w.cache.commit({0}, {2});
  CHECK(invariant_problem(w.cache) == "");
  watch const before(w.cache);
  CHECK(before.unchanged(w.cache) == "");
  w.cache.plan({0, 1}, kvmeld::budget::entries(23));
  CHECK(before.unchanged(w.cache) == "");
  w.cache.apply();
  CHECK(before.after_compress(w.cache, {0, 1}) == "");
  CHECK(before.after_compress(w.cache, {0}) != "");
  CHECK(before.unchanged(w.cache) == "track (layer 0, sequence 0, head 0) went from 32 to 23 entries");
  watch const short_ones(w.cache);
  w.cache.compress({0, 1}, kvmeld::budget::entries(23));
  CHECK(short_ones.unchanged(w.cache) == "");
  CHECK(short_ones.after_compress(w.cache, {0, 1}) == "");
  w.cache.close(1);
  w.cache.ledger().degree[w.cache.ledger().at(kvmeld::make_track(extent, 0, 1, 0), 0)] = -1;
  CHECK(invariant_problem(w.cache) == "");  // nobody's
  CHECK(short_ones.unchanged(w.cache) == "sequence 1 changed its counters");
}

TEST_CASE("neither compressions nor plans nor refusals change a score's table") {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options;
  options.whole_plan = true;
  auto cache = support::make_cache(memory, kvmeld::preset::expected_attention::with_rope({}), options);
  cache.open(0, 30);
  watch const before(cache);
  CHECK(before.unchanged(cache) == "");
  cache.ledger().table_of(kvmeld::make_track(extent, 0, 0, 0))[2] = 5;
  CHECK(before.unchanged(cache) == "a table of the score changed");
  CHECK(before.after_compress(cache, {0}) == "a table of the score changed");
}

TEST_CASE("broken ledgers are told by track and slot") {
  std::string const track = "track (layer 0, sequence 0, head 0)";
  CHECK(broken([](auto const&) {}) == "");
  CHECK(broken([](auto const& l) { l.length[0] = 41; }) == track + " holds 41 entries, but has capacity 40");
  CHECK(broken([](auto const& l) { l.frozen[0] = 31; }) ==
        track + " holds 33 entries, fewer than its 31 frozen and 3 pending ones");
  CHECK(broken([](auto const& l) { l.seen[0] = 29; }) ==
        track + " holds 33 entries, more than the 29 tokens seen and 3 pending");
  CHECK(broken([](auto const& l) { l.degree[5] = 0; }) ==
        "slot 5 of " + track + " has degree 0; it must be a finite number above 0");
  CHECK(broken([](auto const& l) { l.degree[5] = kvmeld::bits_float(0x7f800000u); }) ==
        "slot 5 of " + track + " has degree inf; it must be a finite number above 0");
  CHECK(broken([](auto const& l) { l.degree[34] = 1; }).empty());  // behind the entries anything may lie
  CHECK(broken([](auto const& l) { l.position[7] = 6; }) ==
        "slot 7 of " + track + " is stored at position 6, and the slot before it at 6; positions ascend");
  CHECK(broken([](auto const& l) { l.position[32] = 33; }) ==
        "slot 32 of " + track + " is stored at position 33, but 33 tokens are known (seen and pending)");
  CHECK(broken([](auto const& l) { l.degree[31] = 2; }) ==
        "slot 31 of " + track + " is pending, but has degree 2 and position 31; expected are 1 and 31");
  CHECK(broken([](auto const& l) { l.members.count[0] = 13; }) == track + " has 13 members, but room for 12");
  auto const member = [](std::uint32_t owner, float norm) {
    return [=](auto const& l) {
      l.members.count[0] = 2;
      l.members.owner[1] = owner;
      l.members.norm[1] = norm;
    };
  };
  CHECK(broken(member(32, 1)) == "");
  CHECK(broken(member(33, 1)) ==
        "member 1 of " + track + " belongs to slot 33, but the track holds 33 entries");
  CHECK(broken([](auto const& l) {
          l.members.count[0] = 2;
          l.members.owner[0] = 4;
          l.members.owner[1] = 3;
        }) == "member 1 of " + track +
                  " belongs to slot 3, and the one before it to slot 4; members are ordered by owner");
  CHECK(broken(member(3, -1)) == "member 1 of " + track + " has norm -1");
}

TEST_CASE("members that change where nothing may are told") {
  world w;
  watch const before(w.cache);
  kvmeld::ledger_ref const& l = w.cache.ledger();
  l.members.count[0] = 1;
  l.members.owner[0] = 3;
  l.members.norm[0] = 1;
  CHECK(before.unchanged(w.cache) != "");
  l.degree[3] += 1;  // what a member brings along
  CHECK(before.unchanged(w.cache) == "track (layer 0, sequence 0, head 0) changed its members");
  CHECK(before.after_compress(w.cache, {0, 1}) == "track (layer 0, sequence 0, head 0) changed its members");
}

TEST_CASE("emptied rows are poisoned, and no others") {
  world w;
  watch const before(w.cache);
  w.cache.compress({0}, kvmeld::budget::entries(15));
  watch const after(w.cache);
  CHECK(before.poison_emptied(w.cache, {1}) == 0);
  CHECK(after.unchanged(w.cache) == "");
  CHECK(before.poison_emptied(w.cache, {0}) == extent.layers * extent.kv_heads * 2 * 15);
  auto const ref = w.cache.ref();
  for (std::uint32_t q = 0; q < 2; ++q) {
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < 40; ++s) {
        bool const emptied = q == 0 && s >= 15 && s < 30;
        for (auto const& row : {support::get_row(ref.keys, t, s), support::get_row(ref.values, t, s)})
          for (float const x : row) CHECK(std::isnan(x) == emptied);
      }
    });
  }
}

TEST_CASE("what compression must not do is told") {
  std::string const slot = " of track (layer 0, sequence 0, head 0)";
  kvmeld::track const other = kvmeld::make_track(extent, 1, 1, 0);
  CHECK(after([](world&, auto const&) {}) == "");
  CHECK(after([](world&, auto const& l) { l.seen[0] += 1; }) ==
        "sequence 0: open, seen, pending, frozen or id changed");
  CHECK(after([](world&, auto const& l) { l.degree[3] = 0; }) ==
        "slot 3" + slot + " has degree 0; it must be a finite number above 0");
  CHECK(after([](world& w, auto const&) { w.spoil(w.memory.keys, 8, first, 1); }) ==
        "slot 1" + slot + " changed its key, though it is frozen");
  CHECK(after([](world& w, auto const&) { w.spoil(w.memory.values, 6, first, 0); }) ==
        "slot 0" + slot + " changed its value, though it is frozen");
  CHECK(after([](world&, auto const& l) { l.degree[0] = 2; }) ==
        "slot 0" + slot + " changed its degree, position or scores, though it is frozen");
  CHECK(after([](world& w, auto const&) { w.spoil(w.memory.keys, 8, first, 35); }) ==
        "slot 35" + slot + " changed its key, though it was not in use");
  CHECK(after([](world& w, auto const&) { w.spoil(w.memory.values, 6, first, 15); }) ==
        "slot 15" + slot + " was emptied, but its value is not zero");
  CHECK(
      after([&](world& w, auto const&) { w.spoil(w.memory.values, 6, other, 4); }) ==
      "slot 4 of track (layer 1, sequence 1, head 0) changed its value, though its sequence was not listed");
  CHECK(after([&](world&, auto const& l) { l.degree[l.at(other, 4)] = 2; }) ==
        "slot 4 of track (layer 1, sequence 1, head 0) changed its degree, position or scores, though its "
        "sequence was not listed");
  CHECK(after([](world&, auto const& l) { l.degree[5] += 1; }) ==
        "track (layer 0, sequence 0, head 0) stands for 31 tokens after, but for 30 before");
  // A position between two others, which no entry had: the tokens before were at even ones.
  world w;
  for (std::uint32_t i = 0; i < 30; ++i)
    w.cache.ledger().position[i] = static_cast<kvmeld::position_t>(2 * i);
  w.cache.ledger().seen[0] = 60;
  CHECK(w.after([](auto const& l) { l.position[14] -= 1; }) ==
        "slot 14" + slot + " is stored at position 57, which no entry had before");
  // Nothing to do is a bitwise no-op.
  watch const before(w.cache);
  w.cache.compress({1}, kvmeld::budget::entries(30));
  CHECK(before.after_compress(w.cache, {1}) == "");
  w.spoil(w.memory.keys, 8, other, 9);
  CHECK(before.after_compress(w.cache, {1}) ==
        "slot 9 of track (layer 1, sequence 1, head 0) changed its key, though its track kept its length");
  CHECK(before.unchanged(w.cache) == "slot 9 of track (layer 1, sequence 1, head 0) changed its key");
  w.cache.append({1}, {1});
  CHECK(before.after_compress(w.cache, {1}) == "sequence 1: open, seen, pending, frozen or id changed");
  w.cache.commit({1}, {0});
  w.cache.ledger().length[other.index] = 31;
  CHECK(before.after_compress(w.cache, {1}) != "");
}

TEST_CASE("the plan validator speaks for the whole cache") {
  using kvmeld::testing::plan_problem;
  world w;
  CHECK(plan_problem(w.cache) == "apply: plan is missing; it must be made first (call plan)");
  w.cache.plan({1, 0}, kvmeld::budget::entries(15));
  CHECK(plan_problem(w.cache) == "");
  kvmeld::plan_ref const p = w.cache.current_plan();
  std::size_t const i = p.at(7, 0);  // layer 1, sequence 0, head 1; slot 0 is frozen
  p.fates[i] = kvmeld::fate::drop;
  CHECK(plan_problem(w.cache) == "plan: fate of slot 0 of track (layer 1, sequence 0, head 1) is drop; it "
                                 "must be keep, because the slot lies in the frozen beginning of 2 entries");
  kvmeld::keep_entry(p, 7, 0);
  CHECK(plan_problem(w.cache) == "");
  w.cache.append({1}, {1});
  CHECK(plan_problem(w.cache) == "plan: old_length of track (layer 0, sequence 1, head 0) is 30; it must be "
                                 "31, the entries that the track holds (plan again)");
}

}  // namespace state_cases
