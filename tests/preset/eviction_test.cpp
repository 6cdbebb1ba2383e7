// StreamingLLM, H2O and SnapKV against the reference: which entries stay, bit by bit as they were.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/eviction.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace eviction_cases {

using support::dice;

namespace {

namespace preset = kvmeld::preset;

// Random tracks of one kind, compressed to ragged budgets; `choose(track before, budget)` is the reference.
template <class T, class Policy, class Feed, class Choose>
void compare(dice& d, Policy const& policy, std::uint32_t min_budget, Feed feed, Choose choose,
             support::tally& count) {
  constexpr std::uint32_t dims[] = {16, 33, 64, 128};
  std::uint32_t const most = min_budget + d.pick({8u, 50u, 200u, 900u});
  kvmeld::shape const s{d.between(1, 2), d.between(1, 3), d.between(1, 3),  d.between(1, 4),
                        d.pick(dims),    d.pick(dims),    most + d.below(5)};
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : "HTLSC");
  auto cache = make_cache(memory, policy);
  std::vector<reference::track_state> before(s.tracks());
  std::vector<std::uint32_t> slots, budgets(s.tracks());
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(min_budget, most);
    cache.open(q, n);
    memory.fill_sequence(d, q, 0, n, support::texture::noise);
    feed(cache, q);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      if (d.chance(0.2))
        support::write_row(cache.ref().keys, t, d.below(n), {kvmeld::bits_float(0x7fc00000u)});
      before[t.index] = support::read_track(cache.ref(), t);
      budgets[t.index] = d.between(min_budget, n + 1);
    });
  }
  cache.compress(slots, kvmeld::budget::per_track(budgets.data()));
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::track_state const& was = before[t.index];
      reference::outcome const expected = reference::evict(was, choose(was, budgets[t.index]));
      CHECK(cache.ref().length(t) == expected.after.size());
      if (expected.margin < support::decision_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, was, support::read_track(cache.ref(), t)) == "");
    });
  }
}

// The last `rows` queries' attention in random numbers that float adds without error, so that ties are ties.
// One block, or several where `pieces` is larger.
template <class Cache>
void observe_random(dice& d, Cache& cache, std::uint32_t q, std::uint32_t rows, std::uint32_t pieces) {
  kvmeld::shape const s = cache.options().extent;
  kvmeld::attention_params all;
  all.causal = false;
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      std::vector<float> p(std::size_t{s.query_heads()} * rows * s.capacity);
      for (float& x : p) x = static_cast<float>(d.below(d.chance(0.2) ? 4096 : 256)) / 4096.0f;
      auto const view = kvmeld::rows_by_head<float const>(p.data(), rows, s.query_heads(), s.capacity);
      cache.observe_rows({layer, q, rows}, view, all);
    }
  }
}

std::vector<long> positions(kvmeld::ledger_ref const& l, kvmeld::track t) {
  return {l.position + l.at(t, 0), l.position + l.at(t, l.length[t.index])};
}

// Ten entries of the given scores, compressed to `budget`; the positions that stay.
template <class Policy>
std::vector<long> ten(Policy const& policy, std::vector<float> const& scores, std::uint32_t budget) {
  kvmeld::shape const s{1, 1, 1, 1, 2, 2, 10};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, policy);
  cache.open(0, 10);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  if (!scores.empty()) support::set_scores(cache.ledger(), t, scores);
  cache.compress({0}, kvmeld::budget::entries(budget));
  return positions(cache.ledger(), t);
}

}  // namespace

TEST_CASE("eviction by hand, on ten entries") {
  // StreamingLLM, 2 sinks, budget 5: 0, 1 and the last 3.
  CHECK(ten(preset::streaming_llm::with_sinks(2), {}, 5) == std::vector<long>{0, 1, 7, 8, 9});
  CHECK(ten(preset::streaming_llm::with_sinks(), {}, 6) == std::vector<long>{0, 1, 2, 3, 8, 9});
  CHECK(ten(preset::streaming_llm::with_sinks(4), {}, 4) == std::vector<long>{0, 1, 2, 3});
  CHECK(ten(preset::streaming_llm::with_sinks(), {}, 10).size() == 10);

  // H2O, budget 5: recents floor(5/2) = 2 (8, 9), then the 3 best of the rest: 9 (slot 3), 7 (slot 6), and of
  // the three 5s (slots 1, 4, 7) the lowest slot, 1. The scores of 8 and 9 do not matter.
  std::vector<float> const scores{1, 5, 2, 9, 5, 0, 7, 5, 0, 99};
  CHECK(ten(preset::h2o::defaults(), scores, 5) == std::vector<long>{1, 3, 6, 8, 9});
  CHECK(ten(preset::h2o::defaults(), scores, 4) == std::vector<long>{3, 6, 8, 9});
  CHECK(ten(preset::h2o::defaults(), scores, 1) == std::vector<long>{9});  // no recents: 99 counts

  // SnapKV, window 2, kernel 3, budget 5. Slots 0 to 7 hold 1 5 2 9 5 0 7 5; means of the neighbours that
  // exist: 3, 8/3, 16/3, 16/3, 14/3, 4, 4, 6: the best three are 7 (6), 2 and 3 (5.33). Zero padding lowers
  // only the ends: 7 has 12/3 = 4, so 4 (14/3) comes in. Maxima: 5 5 9 9 9 7 7 7: 2, 3, 4. Unpooled: 3, 6,
  // and the first 5.
  auto const snap = [&](kvmeld::pooling_mode mode, std::uint32_t kernel) {
    return ten(preset::snapkv::with_window(2, {kernel, mode}), scores, 5);
  };
  CHECK(snap(kvmeld::pooling_mode::mean, 3) == std::vector<long>{2, 3, 7, 8, 9});
  CHECK(snap(kvmeld::pooling_mode::zero_padded, 3) == std::vector<long>{2, 3, 4, 8, 9});
  CHECK(snap(kvmeld::pooling_mode::max, 3) == std::vector<long>{2, 3, 4, 8, 9});
  CHECK(snap(kvmeld::pooling_mode::mean, 1) == std::vector<long>{1, 3, 6, 8, 9});
}

TEST_CASE("StreamingLLM keeps the reference's entries") {
  dice d(11);
  support::tally count;
  auto const nothing = [](auto&, std::uint32_t) {};
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const sinks = d.between(0, 9);
    auto const choose = [&](reference::track_state const& was, std::uint32_t budget) {
      return reference::streaming_llm(was.size(), sinks, budget);
    };
    auto const policy = preset::streaming_llm::with_sinks(sinks);
    compare<float>(d, policy, sinks + 1, nothing, choose, count);
    compare<kvmeld::float16>(d, policy, sinks + 1, nothing, choose, count);
    compare<kvmeld::bfloat16>(d, policy, sinks + 1, nothing, choose, count);
  }
  CHECK(count.compared > 500);
  CHECK(count.skipped == 0);
}

TEST_CASE("H2O keeps the reference's entries") {
  dice d(12);
  support::tally count;
  auto const feed = [&](auto& cache, std::uint32_t q) {
    std::uint32_t const queries = d.between(1, 6), pieces = d.between(1, 3);
    observe_random(d, cache, q, queries, pieces);
  };
  auto const choose = [](reference::track_state const& was, std::uint32_t budget) {
    return reference::h2o(was.score, budget);  // the score the ledger holds: ties and all
  };
  for (int i = 0; i < 30; ++i) {
    compare<float>(d, preset::h2o::defaults(), 7, feed, choose, count);
    compare<kvmeld::float16>(d, preset::h2o::defaults(), 7, feed, choose, count);
    compare<kvmeld::bfloat16>(d, preset::h2o::defaults(), 7, feed, choose, count);
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 300);
  CHECK(count.share() < 0.05);
}

TEST_CASE("SnapKV keeps the reference's entries under every pooling") {
  dice d(13);
  support::tally count;
  struct mode {
    kvmeld::pooling_mode ours;
    reference::pooling theirs;
  };
  constexpr mode modes[] = {{kvmeld::pooling_mode::mean, reference::pooling::mean},
                            {kvmeld::pooling_mode::max, reference::pooling::maximum},
                            {kvmeld::pooling_mode::zero_padded, reference::pooling::zero_padded_mean}};
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const window = d.pick({1u, 4u, 32u, 100u}), kernel = d.pick({1u, 3u, 7u, 7u, 13u});
    mode const m = d.pick(modes);
    auto const feed = [&](auto& cache, std::uint32_t q) {
      observe_random(d, cache, q, std::min(window, cache.longest(q)), 1);
    };
    auto const choose = [&](reference::track_state const& was, std::uint32_t budget) {
      return reference::snapkv(was.score, window, m.theirs, budget, kernel);
    };
    auto const policy = preset::snapkv::with_window(window, {kernel, m.ours});
    compare<float>(d, policy, window + 1, feed, choose, count);
    compare<kvmeld::float16>(d, policy, window + 1, feed, choose, count);
    compare<kvmeld::bfloat16>(d, policy, window + 1, feed, choose, count);
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 500);
  CHECK(count.share() < 0.1);
}

}  // namespace eviction_cases
