// Selectors alone: which entries stay pinned, against loops that look at every entry for every other.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/random_cache.hpp"

using kvmeld::quantity;
using support::dice;

namespace {

// The slots a selector pins among `scores.size()` entries: what a plan that drops the rest keeps.
template <class Select>
std::vector<int> pinned(Select select, std::vector<float> const& scores, std::uint32_t limit,
                        std::uint32_t frozen = 0) {
  std::uint32_t const n = static_cast<std::uint32_t>(scores.size());
  kvmeld::shape const s{1, 2, 1, 1, 1, 1, n + 3};
  support::engine_memory<float> memory(s);
  kvmeld::policy const policy{kvmeld::score::global{}, select, kvmeld::identify::evict_rest{},
                              kvmeld::merge::drop{}};
  auto cache = make_cache(memory, policy, support::with_plan());
  cache.open(1, n, frozen);
  support::set_scores(cache.ledger(), kvmeld::make_track(s, 0, 1, 0), scores);
  cache.plan({1}, kvmeld::budget::entries(limit));
  std::vector<int> out;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (cache.current_plan().fates[i] == kvmeld::fate::keep) out.push_back(static_cast<int>(i));
  }
  return out;
}

// A count in entries for a quantity of a random kind; `limit` and `taken` are without frozen entries.
struct drawn {
  quantity q;
  std::uint32_t count;
};

drawn draw(dice& d, std::uint32_t length, std::uint32_t limit, std::uint32_t taken, std::uint32_t room) {
  switch (d.below(4)) {
  case 0: {
    std::uint32_t const n = d.between(0, room);
    return {quantity::entries(n), n};
  }
  case 1: {
    double const share = d.uniform() * room / (length + 1.0);
    return {quantity::of_length(share), static_cast<std::uint32_t>(share * length + 1e-9)};
  }
  case 2: {
    double const share = d.uniform() * std::min(1.0, room / (limit + 1.0));
    return {quantity::of_budget(share), static_cast<std::uint32_t>(share * limit + 1e-9)};
  }
  default: return {quantity::rest_of_budget(), limit > taken ? limit - taken : 0};
  }
}

}  // namespace

TEST_CASE("quantities: floors with 1e-9, shares of length and budget, the rest") {
  CHECK(quantity::entries(7).resolve(100, 20, 3) == 7);
  CHECK(quantity::of_length(0.45).resolve(20, 5, 0) == 9);  // 0.45 * 20 is 9 everywhere
  CHECK(quantity::of_length(0.29).resolve(100, 5, 0) == 29);
  CHECK(quantity::of_budget(0.5).resolve(100, 7, 0) == 3);
  CHECK(quantity::of_budget(1.0 / 3).resolve(100, 30, 0) == 10);
  CHECK(quantity::rest_of_budget().resolve(100, 20, 3) == 17);
  CHECK(quantity::rest_of_budget().resolve(100, 3, 20) == 0);
  CHECK(kvmeld::share_problem("a", quantity::of_length(1.5)) ==
        "policy: a is 1.5; it must be 0 to 1, a share");
  CHECK(kvmeld::share_problem("a", quantity::of_budget(-0.5)) ==
        "policy: a is -0.5; it must be 0 to 1, a share");
  CHECK(kvmeld::share_problem("a", quantity::entries(9)).empty());
}

TEST_CASE("top by hand: ends, ties to the lower slot, NaN lowest, a frozen beginning") {
  float const nan = kvmeld::bits_float(0x7fc00000u);
  kvmeld::select::top const heavy2{quantity::entries(1), quantity::entries(1), quantity::entries(2)};
  // Slots 0 and 5 are ends; of 4 9 4 4 the 9 and the first 4.
  CHECK(pinned(heavy2, {0, 4, 9, 4, 4, 0}, 4) == std::vector<int>{0, 1, 2, 5});
  CHECK(pinned(heavy2, {0, 4, 4, 4, 4, 0}, 4) == std::vector<int>{0, 1, 2, 5});
  // -0 equals +0; NaN is below everything, and taken when nothing else is left.
  CHECK(pinned(heavy2, {0, -1, -0.0f, 0, nan, 0}, 4) == std::vector<int>{0, 2, 3, 5});
  CHECK(pinned(heavy2, {0, nan, nan, -5, nan, 0}, 4) == std::vector<int>{0, 1, 3, 5});
  // Frozen 3: slots 0 to 2, in place of one sink.
  CHECK(pinned(heavy2, {0, 9, 9, 1, 7, 8, 0}, 6, 3) == std::vector<int>{0, 1, 2, 4, 5, 6});
  CHECK(pinned(kvmeld::select::sinks_and_recents{quantity::entries(2), quantity::entries(1)}, {0, 9, 9, 1, 7},
               3) == std::vector<int>{0, 1, 4});
}

TEST_CASE("selectors against counting loops") {
  dice d(41);
  std::uint32_t cases = 0;
  while (cases < 1500) {
    std::uint32_t const n = d.between(2, 90), limit = d.between(1, n - 1),
                        frozen = d.chance(0.3) ? d.below(limit) : 0;
    // Sinks, recents, heavy within the budget; what does not fit is refused, which tests/cache covers.
    std::uint32_t const free = limit - frozen;
    drawn const sinks = draw(d, n, free, 0, limit / 3);
    std::uint32_t const first = std::max(frozen, std::min(n, sinks.count));
    drawn const recents = draw(d, n, free, first - frozen, limit / 3);
    std::uint32_t const last = std::min(n - first, recents.count);
    drawn const heavy = draw(d, n, free, first - frozen + last, limit);
    std::uint32_t const best = std::min(n - first - last, heavy.count);
    if (first + last + best > limit) continue;
    ++cases;
    std::vector<float> scores(n);
    for (float& x : scores) x = static_cast<float>(d.below(9)) - 3;  // many ties
    if (d.chance(0.3)) scores[d.below(n)] = kvmeld::bits_float(d.chance(0.5) ? 0x7fc00000u : 0xff800001u);
    auto const lowest = [&](std::uint32_t i) { return kvmeld::order_key(scores[i]) == 0; };
    std::vector<int> expected, ends;
    for (std::uint32_t i = 0; i < n; ++i) {
      bool const end = i < first || i >= n - last;
      std::uint32_t better = 0;  // middle entries that come before i
      for (std::uint32_t j = first; j < n - last; ++j) {
        bool const higher = lowest(i) ? !lowest(j) : !lowest(j) && scores[j] > scores[i];
        bool const equal = lowest(i) ? lowest(j) : !lowest(j) && scores[j] == scores[i];
        better += higher || (equal && j < i) ? 1 : 0;
      }
      if (end || better < best) expected.push_back(static_cast<int>(i));
      if (end) ends.push_back(static_cast<int>(i));
    }
    // A track never becomes empty: the best entry stays, or the last one. Counts of nothing at all are
    // refused.
    std::uint32_t highest = 0;
    for (std::uint32_t i = 1; i < n; ++i) {
      if (!lowest(i) && (lowest(highest) || scores[i] > scores[highest])) highest = i;
    }
    if (expected.empty()) expected.push_back(static_cast<int>(highest));
    if (ends.empty()) ends.push_back(static_cast<int>(n - 1));
    auto const check = [&](auto const& select, std::vector<int> const& wanted) {
      if (select.pinned(kvmeld::largest::capacity, kvmeld::largest::capacity - 1, 0).total() != 0) {
        CHECK(pinned(select, scores, limit, frozen) == wanted);
      } else {
        CHECK_THROWS_AS(pinned(select, scores, limit, frozen), kvmeld::invalid_argument);
      }
    };
    check(kvmeld::select::top{sinks.q, recents.q, heavy.q}, expected);
    check(kvmeld::select::sinks_and_recents{sinks.q, recents.q}, ends);
  }
}

TEST_CASE("selectors refuse shares that cannot be, by name") {
  kvmeld::select::top t;
  CHECK(t.problem().empty());
  t.heavy = quantity::of_budget(2);
  CHECK(t.problem() == "policy: select::top.heavy is 2; it must be 0 to 1, a share");
  kvmeld::select::sinks_and_recents s;
  s.recents = quantity::of_length(-1);
  CHECK(s.problem() == "policy: select::sinks_and_recents.recents is -1; it must be 0 to 1, a share");
}

TEST_CASE("what is pinned is never more than a track has") {
  auto const counts = [](quantity sinks, quantity recents, quantity heavy, std::uint32_t length,
                         std::uint32_t limit, std::uint32_t frozen) {
    kvmeld::pins const p = kvmeld::resolve_pins(sinks, recents, heavy, length, limit, frozen);
    return std::vector<std::uint32_t>{p.sinks, p.recents, p.heavy};
  };
  using list = std::vector<std::uint32_t>;
  quantity const few = quantity::entries(4), many = quantity::entries(20);
  CHECK(counts(few, few, few, 30, 20, 0) == list{4, 4, 4});
  CHECK(counts(few, many, few, 10, 9, 0) == list{4, 6, 0});  // recents end where sinks do
  CHECK(counts(many, many, many, 10, 9, 0) == list{10, 0, 0});
  CHECK(counts(few, few, many, 10, 9, 0) == list{4, 4, 2});
  CHECK(counts(few, many, few, 10, 9, 7) == list{7, 3, 0});  // a frozen beginning counts as sinks
  // Shares are of the 60 that 40 frozen entries leave of 100, and so is the rest.
  quantity const half = quantity::of_budget(0.5), third = quantity::of_budget(1.0 / 3),
                 rest = quantity::rest_of_budget();
  CHECK(counts(few, third, half, 300, 100, 40) == list{40, 20, 30});
  CHECK(counts(few, third, rest, 300, 100, 40) == list{40, 20, 40});
  CHECK(counts(half, third, rest, 300, 100, 10) == list{45, 30, 25});
  CHECK(counts(third, half, rest, 300, 100, 120) == list{120, 0, 0});
  CHECK(counts(few, few, few, 10, 9, 2) == list{4, 4, 2});
}

namespace {

// A selector of one's own: it pins every entry whose score is at least `bar`, however many there are.
struct above : kvmeld::select::defaults {
  static constexpr kvmeld::select_facts facts{&kvmeld::select_facts::needs_score};
  float bar = 0.0f;
  KVMELD_HD kvmeld::role choose(kvmeld::select_view const& track, std::uint32_t i) const {
    return track.score(i) >= bar ? kvmeld::role::pinned : kvmeld::role::mergeable;
  }
};

// A selector that asks for all that a view tells.
struct by_place : kvmeld::select::defaults {
  KVMELD_HD kvmeld::role choose(kvmeld::select_view const& track, std::uint32_t i) const {
    bool const whole = track.degree(i) == 1.0f && track.position(i) == static_cast<kvmeld::position_t>(i) &&
                       track.where().sequence == 1 && track.members() == 0;
    return whole && i + track.limit() >= track.length() ? kvmeld::role::pinned : kvmeld::role::irrelevant;
  }
};

}  // namespace

TEST_CASE("a selector that chooses entry by entry") {
  above by;
  by.bar = 5.0f;
  CHECK(pinned(by, {9, 1, 5, 2, 7, 0}, 4) == std::vector<int>{0, 2, 4});
  CHECK(pinned(by, {9, 1, 5, 2, 7, 0}, 4, 2) == std::vector<int>{0, 1, 2, 4});  // 0 and 1 are frozen
  CHECK(pinned(by, {1, 3, 1}, 2) == std::vector<int>{1});                 // none of them: the best stays
  CHECK(pinned(by, {9, 6, 5, 8, 7, 0}, 3) == std::vector<int>{0, 3, 4});  // above the budget the lowest go
  CHECK(pinned(by_place{}, {1, 2, 3, 4, 5}, 2) == std::vector<int>{3, 4});
}
