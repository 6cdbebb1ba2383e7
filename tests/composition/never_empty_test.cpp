// A track that holds tokens keeps at least one of them, whatever numbers a policy is given and however small
// its budget is. A policy that could keep nothing at all is refused.
#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "support/brief.hpp"
#include "support/compositions.hpp"
#include "support/learned.hpp"
#include "support/random_cache.hpp"

namespace never_empty_cases {

using cache_test::refusal_of;
using kvmeld::budget;

namespace {

constexpr kvmeld::shape extent{1, 1, 2, 2, 8, 8, 40};
constexpr std::uint32_t tokens = 33;

kvmeld::compose::composed policy_of(std::string const& text) {
  kvmeld::compose::composed policy;
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  kvmeld::compose::read_policy(text, policy, rope);
  policy = support::taught(policy, extent);
  return policy;
}

/// Scores that a policy is shown: usual ones, NaN alone, or scores that reach no threshold.
enum class shown { numbers, nan, low };

/// Shows a policy all that any policy reads.
template <class Cache> void show(Cache& cache, support::dice& d, shown what) {
  std::uint32_t const heads = extent.query_heads();
  constexpr std::uint32_t n = 9;
  std::vector<float> q(std::size_t{heads} * n * extent.key_dim),
      out(std::size_t{heads} * n * extent.value_dim), lse(std::size_t{heads} * n);
  for (float& x : q)
    x = what == shown::nan ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(d.normal());
  kvmeld::query_batch const batch{0, 0, n};
  auto const queries = kvmeld::rows_by_head<float const>(q.data(), n, heads, extent.key_dim);
  kvmeld::attention::attend(cache.executor(), batch, queries, cache.ref(),
                            kvmeld::rows_by_head(out.data(), n, heads, extent.value_dim),
                            kvmeld::rows_by_head(lse.data(), n, heads, 1));
  cache.observe(batch, queries, kvmeld::rows_by_head<float const>(lse.data(), n, heads, 1));
  kvmeld::ledger_ref const& l = cache.ledger();
  if (l.channels.find(kvmeld::channel_tag::given_score) == l.channels.count) return;
  std::vector<float> scores(std::size_t{extent.kv_heads} * tokens);
  for (float& x : scores) {
    x = what == shown::nan   ? std::numeric_limits<float>::quiet_NaN()
        : what == shown::low ? -1e30f + static_cast<float>(d.normal())
                             : static_cast<float>(d.normal());
  }
  cache.set_scores(0, {0}, kvmeld::head_rows<float const>{scores.data(), 0, tokens, 0});
}

/// Compresses `tokens` tokens by `text` to a budget and returns the length of the shortest track; `tokens` if
/// the call is refused.
std::uint32_t shortest_after(kvmeld::compose::composed const& policy, budget allowed, shown what,
                             kvmeld::shortfall fallback = kvmeld::shortfall::evict_lowest) {
  support::engine_memory<float> memory(extent);
  support::dice d(tokens);
  kvmeld::cache_options options;
  options.budgets_over = kvmeld::budget_scope::layer;
  auto cache = support::make_cache(memory, policy, options);
  for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
    kvmeld::track const t = kvmeld::make_track(extent, 0, 0, head);
    for (std::uint32_t i = 0; i < tokens; ++i) {
      std::vector<float> row(extent.key_dim);
      for (float& x : row) x = static_cast<float>(d.normal());
      support::put_row(cache.ref().keys, t, i, row);
      support::put_row(cache.ref().values, t, i, row);
    }
  }
  cache.open(0, tokens);
  show(cache, d, what);
  std::uint32_t most = 0;
  auto const shrink = [&] {
    most = cache.length_after(0, allowed, fallback);
    cache.compress({0}, allowed, fallback);
  };
  if (!refusal_of(shrink).empty()) return tokens;
  std::uint32_t shortest = tokens;
  for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
    std::uint32_t const length = cache.length(0, 0, head);
    shortest = kvmeld::min_of(shortest, length);
    CHECK(length <= most);
    if (cache.exact(fallback) && allowed.among() == kvmeld::budget_scope::head) CHECK(length == most);
  }
  return shortest;
}

}  // namespace

TEST_CASE("every preset keeps an entry, with counts of nothing and tiny ones, for every budget from 1") {
  std::uint64_t turn = support::test_run();
  std::uint32_t refused = 0, kept = 0;
  std::string const values[] = {"", "0", "1", "0%", "1%", "40%"};
  for (auto const& named : kvmeld::compose::named_policies()) {
    for (std::string const& sinks : values) {
      for (std::string const& recents : values) {
        for (std::string const& heavy : values) {
          bool const nothing = sinks == "0" && recents == "0" && heavy == "0";
          if (turn++ % (support::brief() ? 41 : 15) != 0 && !nothing) continue;
          std::string text = named.name;
          if (!sinks.empty()) text += " sinks=" + sinks;
          if (!recents.empty()) text += " recents=" + recents;
          if (!heavy.empty()) text += " heavy=" + heavy;
          kvmeld::compose::composed policy;
          std::string const problem = refusal_of([&] { policy = policy_of(text); });
          CAPTURE(text);
          if (!problem.empty()) {  // no such count, or nothing would ever stay
            bool const emptying =
                problem.find("number of entries that the selector pins is 0") != std::string::npos;
            CHECK((emptying || problem.find("policy: ") == 0));
            refused += emptying ? 1 : 0;
            continue;
          }
          for (shown what : {shown::numbers, shown::nan, shown::low}) {
            for (std::uint32_t n : {1u, 2u, 3u, 5u, 8u, 20u}) {
              if ((turn + n) % (what == shown::numbers ? 1 : 3) != 0) continue;
              CAPTURE(n);
              CHECK(shortest_after(policy, budget::entries(n), what) > 0);
              ++kept;
            }
            CHECK(shortest_after(policy, budget::ratio(0.001), what) > 0);
            CHECK(shortest_after(policy, budget::entries(2).over(kvmeld::budget_scope::layer, 0.0), what) >
                  0);
          }
        }
      }
    }
  }
  CHECK(refused > 0);
  CHECK(kept > 500);
}

TEST_CASE("what stays is the best entry, or without scores the last one") {
  struct {
    char const* text;
    kvmeld::position_t position;
  } const cases[] = {
      {"score=key_norm select=top recents=1% heavy=1%", 12},
      {"streaming_llm sinks=1% recents=1%", tokens - 1},
      {"kvzap threshold=1000 recents=0 sinks=0", 12},
  };
  for (auto const& c : cases) {
    CAPTURE(c.text);
    support::engine_memory<float> memory(extent);
    auto cache = support::make_cache(memory, policy_of(c.text));
    std::vector<float> scores(std::size_t{extent.kv_heads} * tokens, 0.5f);
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      for (std::uint32_t i = 0; i < tokens; ++i) {
        std::vector<float> const row(extent.key_dim, i == 12 ? 0.125f : 1.0f + static_cast<float>(i));
        support::put_row(cache.ref().keys, kvmeld::make_track(extent, 0, 0, head), i, row);
        support::put_row(cache.ref().values, kvmeld::make_track(extent, 0, 0, head), i, row);
      }
      scores[head * tokens + 12] = 0.75f;
    }
    cache.open(0, tokens);
    if (c.text[0] == 'k')
      cache.set_scores(0, {0}, kvmeld::head_rows<float const>{scores.data(), 0, tokens, 0});
    cache.compress({0}, budget::entries(20));
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(extent, 0, 0, head);
      REQUIRE(cache.ref().length(t) == 1);
      CHECK(cache.ledger().position[cache.ledger().at(t, 0)] == c.position);
    }
  }
}

TEST_CASE("a policy that would keep nothing is refused") {
  cache_test::check_text(
      refusal_of([] { policy_of("h2o recents=0 heavy=0 sinks=0"); }),
      {"policy global x top x evict_rest x drop: number of entries that the selector pins is 0",
       "it must be at least 1, because the identifier drops the others (raise sinks, recents "
       "or heavy)"});
  support::engine_memory<float> memory(extent);
  using kvmeld::quantity;
  cache_test::check_text(refusal_of([&] {
                           support::make_cache(
                               memory, kvmeld::policy{kvmeld::score::none{},
                                                      kvmeld::select::sinks_and_recents{
                                                          quantity::entries(0), quantity::of_budget(0.0)},
                                                      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
                         }),
                         {"merged_cache: policy none x sinks_and_recents x evict_rest x drop: number of "
                          "entries that the selector "
                          "pins is 0"});
  CHECK_NOTHROW(policy_of("h2o recents=0 heavy=1 sinks=0"));
  CHECK_NOTHROW(
      policy_of("score=key_norm select=top identify=chunked_bipartite merge=average sinks=0 recents=0 "
                "heavy=0"));  // which merges the others
}

namespace {

/// A selector of a user that wants nothing to stay.
struct nothing : kvmeld::select::defaults {
  static constexpr char const* name = "nothing";
  KVMELD_HD kvmeld::role choose(kvmeld::select_view const&, std::uint32_t) const {
    return kvmeld::role::irrelevant;
  }
};

}  // namespace

TEST_CASE("own selectors cannot empty a track") {
  auto const left = [](auto const& policy) {
    support::engine_memory<float> memory(extent);
    auto cache = support::make_cache(memory, policy);
    cache.open(0, tokens);
    cache.compress({0}, budget::entries(20));
    return cache.longest(0);
  };
  CHECK(left(kvmeld::policy{kvmeld::score::none{}, nothing{}, kvmeld::identify::evict_rest{},
                            kvmeld::merge::drop{}}) == 1);
  CHECK(left(kvmeld::policy{kvmeld::score::none{}, nothing{}, kvmeld::identify::chunked_bipartite<>{},
                            kvmeld::merge::average{}}) == 1);
}

}  // namespace never_empty_cases
