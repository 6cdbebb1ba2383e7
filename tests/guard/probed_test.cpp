// Merging measured with probes: no probe's output moves by more than epsilon, and by as much as the cache
// says; and what guarded policies refuse.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace probed_cases {

using kvmeld::quantity;
using support::dice;

namespace {

namespace preset = kvmeld::preset;
using probed = kvmeld::guard::probed<float>;

auto clustered(std::uint32_t recents) {
  auto p = preset::chelsea::guarded(
      probed{1.0f},
      preset::chelsea::with_schedule({0.6, 0.1, 3, 0.3}, quantity::entries(0), quantity::entries(recents)));
  p.identify.chunk = 16;
  return p;
}
auto consecutive(std::uint32_t recents) {
  return preset::kvmerger::guarded(
      probed{1.0f}, preset::kvmerger::for_budget(quantity::entries(recents), quantity::entries(0)));
}

struct tally {
  std::uint32_t caches = 0, reached = 0, short_of = 0, untouched = 0;
  std::size_t tokens = 0, merged = 0;
};

// A cache, probes of all its layers and heads, and what became of their outputs.
template <class T, class Policy>
void live(dice& d, Policy const& policy, std::uint32_t recents, tally& count) {
  kvmeld::shape const s{d.between(1, 2),  2, d.between(1, 2), d.between(1, 3), d.pick({3u, 16u}),
                        d.pick({2u, 8u}), 64};
  std::uint32_t const probes = d.between(1, 5), heads = s.query_heads();
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, policy);
  std::vector<std::uint32_t> const lengths{d.between(30, 64), d.between(20, 64)};
  for (std::uint32_t q = 0; q < 2; ++q) {
    cache.open(q, lengths[q]);
    memory.fill_sequence(d, q, 0, lengths[q], support::texture::clusters);
    if constexpr (kvmeld::observation_of<Policy> != kvmeld::observation::none) {
      support::for_tracks(s, q, [&](kvmeld::track t) {
        support::set_scores(cache.ledger(), t, support::random_scores(d, lengths[q]));
      });
    }
  }
  // Queries [layer][sequence][probe][head]; their log-sum-exps from the reference.
  std::size_t const per_sequence = std::size_t{probes} * heads, per_layer = per_sequence * 2;
  std::vector<float> query(per_layer * s.layers * s.key_dim), lse(per_layer * s.layers), sinks(heads);
  for (float& x : query) x = static_cast<float>(1.5 * d.normal());
  for (float& x : sinks) x = static_cast<float>(d.normal());
  probed guard{static_cast<float>(0.002 * std::exp(7 * d.uniform()))};
  guard.params.causal = recents >= probes;
  guard.params.softcap = d.chance(0.3) ? 2.0f : 0.0f;
  if (d.chance(0.3)) guard.params.sink = sinks.data();
  auto const options_of = [&](std::uint32_t head) {
    reference::attention_options o;
    o.scale = 1 / std::sqrt(static_cast<double>(s.key_dim));
    o.softcap = static_cast<double>(guard.params.softcap);
    o.causal = guard.params.causal;
    o.has_sink = guard.params.sink != nullptr;
    o.sink = static_cast<double>(sinks[head]);
    return o;
  };
  auto const results = [&] {
    std::vector<reference::attention_result> out;  // per layer, sequence, query head
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      for (std::uint32_t q = 0; q < 2; ++q) {
        for (std::uint32_t h = 0; h < heads; ++h) {
          reference::matrix rows;
          for (std::uint32_t i = 0; i < probes; ++i) {
            float const* const row =
                query.data() + (l * per_layer + q * per_sequence + i * heads + h) * s.key_dim;
            rows.emplace_back(row, row + s.key_dim);
          }
          out.push_back(reference::attend(
              rows, support::read_track(cache.ref(), kvmeld::make_track(s, l, q, h / s.queries_per_kv_head)),
              options_of(h)));
        }
      }
    }
    return out;
  };
  auto const before = results();
  for (std::uint32_t l = 0, n = 0; l < s.layers; ++l) {
    for (std::uint32_t q = 0; q < 2; ++q) {
      for (std::uint32_t h = 0; h < heads; ++h, ++n) {
        for (std::uint32_t i = 0; i < probes; ++i)
          lse[l * per_layer + q * per_sequence + i * heads + h] = static_cast<float>(before[n].lse[i]);
      }
    }
  }
  std::vector<float> room(kvmeld::guard::probe_room(s, probes));
  guard.probes.query = kvmeld::rows_by_token<float const>(query.data(), probes, heads, s.key_dim);
  guard.probes.lse = kvmeld::rows_by_token<float const>(lse.data(), probes, heads, 1);
  guard.probes.query_layer_stride = static_cast<std::int64_t>(per_layer * s.key_dim);
  guard.probes.lse_layer_stride = static_cast<std::int64_t>(per_layer);
  guard.probes.count = probes;
  guard.probes.room = room.data();
  cache.set_guard(guard);
  std::uint32_t const limit = recents + d.between(4, 12);
  cache.compress({0, 1}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
  auto const after = results();
  for (std::uint32_t l = 0; l < s.layers; ++l) {
    for (std::uint32_t q = 0; q < 2; ++q) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
        double worst = 0;
        for (std::uint32_t h = head * s.queries_per_kv_head; h < (head + 1) * s.queries_per_kv_head; ++h) {
          std::size_t const n = (l * 2 + q) * heads + h;
          for (std::uint32_t i = 0; i < probes; ++i) {
            double square = 0;
            for (std::uint32_t c = 0; c < s.value_dim; ++c)
              square += std::pow(after[n].output[i][c] - before[n].output[i][c], 2);
            worst = std::max(worst, std::sqrt(square));
          }
        }
        auto const said = static_cast<double>(cache.guarded_error(l, q, head));
        CHECK(worst <= static_cast<double>(guard.epsilon));
        CHECK(std::fabs(worst - said) <= 2e-5 + 1e-3 * worst);
        std::uint32_t const length = cache.length(l, q, head);
        CHECK(length >= limit);
        (length == limit ? count.reached : count.short_of) += 1;
        count.untouched += length == lengths[q] ? 1 : 0;
        count.tokens += lengths[q];
        count.merged += lengths[q] - length;
      }
    }
  }
  // The next compression has nothing to do.
  cache.compress({0, 1}, kvmeld::budget::entries(s.capacity), kvmeld::shortfall::keep);
  for (std::uint32_t l = 0; l < s.layers; ++l) {
    for (std::uint32_t q = 0; q < 2; ++q) {
      for (std::uint32_t h = 0; h < s.kv_heads; ++h) CHECK(cache.guarded_error(l, q, h) == 0.0f);
    }
  }
  ++count.caches;
}

template <class T, class Make> tally live_many(std::uint64_t seed, int caches, Make make) {
  dice d(seed);
  tally count;
  for (int i = 0; i < caches; ++i) {
    std::uint32_t const recents = d.chance(0.5) ? 6 : 0;
    live<T>(d, make(recents), recents, count);
  }
  MESSAGE(count.merged, " of ", count.tokens, " entries merged; ", count.reached,
          " tracks at their budgets, ", count.short_of, " above, ", count.untouched, " untouched");
  return count;
}

}  // namespace

TEST_CASE("probes of clustered entries move by epsilon at most") {
  tally const t = live_many<float>(1, 60, clustered);
  CHECK(t.reached > 20);
  CHECK(t.short_of > 20);
  CHECK(t.merged > t.tokens / 4);
}

TEST_CASE("probes of KVMerger's sets move by epsilon at most") {
  tally const t = live_many<kvmeld::float16>(2, 60, consecutive);
  CHECK(t.reached > 10);
  CHECK(t.short_of > 20);
  CHECK(t.merged > t.tokens / 5);
}

TEST_CASE("guards and calls that make no sense are refused") {
  using cache_test::check_text;
  using cache_test::refusal_of;
  support::engine_memory<float> memory({1, 1, 2, 1, 8, 8, 32});
  auto const construction = [&](probed const& guard, kvmeld::cache_options sizes = {}) {
    auto p = preset::chelsea::guarded(guard);
    return refusal_of([&] { make_cache(memory, p, sizes); });
  };
  auto paper = preset::kvmerger::guarded(probed{0.1f});
  paper.merge.degrees = false;
  check_text(kvmeld::configuration_problem(paper), {"leaves degrees out", "whose degrees add"});

  probed g{1.0f};
  CHECK(construction(g).empty());
  check_text(construction(probed{-1.0f}), {"guard::probed.epsilon is -1", "above 0"});
  g.params.window = 5;
  check_text(construction(g), {"guard::probed.params.window is 5", "policy: guard::"});
  g.params = {};
  g.params.use_degree = false;
  check_text(construction(g), {"guard::probed.params.use_degree is false", "true"});
  g.params = {};
  g.params.rope.pairing = kvmeld::rope_pairing::half_split;
  check_text(construction(g), {"guard::probed.params.rope", "lie rotated"});
  g = probed{1.0f};
  g.rounds = 0;
  check_text(construction(g), {"guard::probed.rounds is 0", "it must be at least 1"});
  kvmeld::cache_options sizes;
  sizes.scope = kvmeld::plan_scope::layer;
  check_text(construction(probed{1.0f}, sizes),
             {"merged_cache: options: scope is plan_scope::layer", "guarded", "plan_scope::head"});
  sizes = {};
  sizes.ignore_degree = true;
  check_text(construction(probed{1.0f}, sizes),
             {"merged_cache: options: ignore_degree is true", "guarded",
              "it must be false, because a guarded policy's bound counts with log degrees"});

  sizes = {};
  sizes.whole_plan = true;
  sizes.budgets_over = kvmeld::budget_scope::layer;
  auto cache = make_cache(memory, clustered(0), sizes);
  cache.open(0, 32);
  auto const budget = kvmeld::budget::entries(10);
  cache_test::refused(
      cache, memory,
      [&](auto& c) { c.compress({0}, budget.over(kvmeld::budget_scope::layer), kvmeld::shortfall::keep); },
      {"budget_scope::layer", "compress: scope of the budget is budget_scope::layer", "budget_scope::head"});
  cache_test::refused(cache, memory, [&](auto& c) { c.compress({0}, budget, kvmeld::shortfall::keep); },
                      {"guard::probed.probes.count is 0", "set_guard"});
  g = probed{1.0f};
  g.probes.count = 1;
  cache.set_guard(g);
  cache_test::refused(cache, memory, [&](auto& c) { c.compress({0}, budget, kvmeld::shortfall::keep); },
                      {"compress: guard::probed.probes.query.data is null",
                       "it must be an array of the probes (give probes by set_guard)"});
  std::vector<float> some(1000);
  g.probes.query.data = some.data();
  g.probes.lse.data = some.data();
  g.probes.room = some.data();
  cache.set_guard(g);
  cache_test::refused(cache, memory, [&](auto& c) { c.compress({0}, budget); },
                      {"shortfall::evict_lowest", "guarded", "shortfall::keep"});
  cache_test::refused(cache, memory, [&](auto& c) { c.set_guard(probed{0.0f}); },
                      {"guard::probed.epsilon is 0"});
  CHECK(refusal_of([&] { (void)cache.guarded_error(0, 0, 2); }).find("head is 2") != std::string::npos);
  CHECK(cache.guarded_error(0, 0, 1) == 0.0f);
  CHECK_FALSE(cache.exact());
  // A plan measured with one guard is not applied with another.
  cache.plan({0}, budget, kvmeld::shortfall::keep);
  cache.set_guard(g);
  cache_test::refused(cache, memory, [](auto& c) { c.apply(); }, {"apply: plan is missing"});
}

}  // namespace probed_cases
