// Observing some of the queries, log-sum-exps to either base, and what policies say that they need.
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using cache_test::refusal_of;
using kvmeld::compose::composed;
using kvmeld::compose::composed_of;
using support::dice;

namespace {

// Which of `queries` queries are sampled, ascending, found by walking back from the last.
std::vector<std::uint32_t> sampled_among(std::uint32_t queries, kvmeld::query_sample const& p) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t q = queries, behind = 0; q-- > 0; ++behind) {
    if (p.last != 0 && behind >= p.last) break;
    if (behind % p.stride == 0) out.insert(out.begin(), q);
  }
  return out;
}

using observed_row = std::vector<double>;

// What scores keep of the rows that they were shown, as lists of rows.
struct row_lists {
  std::vector<observed_row> all, past, current;

  void take(std::vector<observed_row> const& block, std::size_t window) {
    all.insert(all.end(), block.begin(), block.end());
    if (block.empty()) return;
    if (block.size() >= window) {
      past.clear();
      current.assign(block.end() - static_cast<std::ptrdiff_t>(window), block.end());
      return;
    }
    if (current.size() + block.size() > window) {
      past = std::exchange(current, {});
    } else if (current.size() + block.size() == window) {
      past.clear();
    }
    current.insert(current.end(), block.begin(), block.end());
  }
};
double sum_of(std::vector<observed_row> const& rows, std::size_t entry) {
  double sum = 0;
  for (auto const& r : rows) sum += entry < r.size() ? r[entry] : 0.0;
  return sum;
}

constexpr std::uint32_t window = 7;

// Chunks of a text, of which some queries are observed; expected sums come from the reference's attention.
void observe_some(dice& d, composed const& policy, bool local) {
  kvmeld::shape const s{1, 2, 2, d.between(1, 4), 16, 4, 260};
  support::engine_memory<kvmeld::float16> memory(s);
  auto cache = make_cache(memory, policy, {}, 2);
  std::uint32_t const slot = d.below(2);
  cache.open(slot);
  kvmeld::attention_params params;
  reference::attention_options o;
  o.scale = 0.25;
  params.causal = o.causal = d.chance(0.8);
  if (d.chance(0.3)) params.softcap = static_cast<float>(o.softcap = 2.0);
  if (params.causal && d.chance(0.4)) params.window = static_cast<std::uint32_t>(o.window = 40);
  bool const two = d.chance(0.5);
  std::vector<row_lists> expected(s.kv_heads);
  std::uint32_t observed = 0;
  for (int chunk = 0; chunk < 4; ++chunk) {
    std::uint32_t const count = d.pick({1u, 3u, 16u, 40u, 60u}), first = cache.longest(slot);
    cache.append({slot}, {count});
    cache.commit({slot}, {count});
    memory.fill_sequence(d, slot, first, count, support::texture::walk);
    kvmeld::query_sample const sample{d.chance(0.5) ? 0 : d.between(1, 50), d.pick({1u, 1u, 2u, 3u, 10u})};
    auto const chosen = sampled_among(count, sample);
    CHECK(sample.count(count) == chosen.size());
    for (std::uint32_t q = 0, p = 0; q < count; ++q) {
      bool const is = p < chosen.size() && chosen[p] == q;
      CHECK(sample.index_of(count, q) == (is ? p : kvmeld::query_sample::none));
      if (is) CHECK(sample.query_of(count, p++) == q);
    }
    observed += static_cast<std::uint32_t>(chosen.size());

    std::uint32_t const heads = s.query_heads();
    std::vector<float> q(std::size_t{count} * heads * s.key_dim);
    for (float& x : q) x = static_cast<float>(d.normal());
    std::vector<float> lse(std::size_t{count} * heads);
    o.last_position = static_cast<long>(first + count) - 1;
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      auto const track = support::read_track(cache.ref(), kvmeld::make_track(s, 0, slot, h));
      o.position = track.position;
      std::vector<observed_row> block(chosen.size(), observed_row(track.size(), 0.0));
      for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g) {
        reference::matrix rows;
        std::uint32_t const head = h * s.queries_per_kv_head + g;
        for (std::uint32_t r = 0; r < count; ++r) {
          float const* const from = q.data() + (std::size_t{r} * heads + head) * s.key_dim;
          rows.emplace_back(from, from + s.key_dim);
        }
        auto const a = reference::attend(rows, track, o);
        for (std::uint32_t r = 0; r < count; ++r)
          lse[std::size_t{head} * count + r] = static_cast<float>(a.lse[r] / (two ? std::log(2.0) : 1.0));
        for (std::size_t p = 0; p < chosen.size(); ++p) {
          for (std::size_t j = 0; j < track.size(); ++j)
            block[p][j] += a.probability[chosen[p]][j] / s.queries_per_kv_head;
        }
      }
      expected[h].take(block, window);
    }
    kvmeld::log_sums<float const> sums = kvmeld::rows_by_head<float const>(lse.data(), count, heads, 1);
    if (two) sums = kvmeld::in_base_two(sums.rows);
    // Queries that are not sampled are not read.
    for (std::uint32_t r = 0; r < count; ++r) {
      if (sample.index_of(count, r) != kvmeld::query_sample::none) continue;
      for (std::uint32_t i = 0; i < heads * s.key_dim; ++i) q[std::size_t{r} * heads * s.key_dim + i] = 1e30f;
    }
    cache.observe({0, slot, count}, kvmeld::rows_by_token<float const>(q.data(), count, heads, s.key_dim),
                  sums, params, sample);
    double worst = 0;
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, 0, slot, h);
      for (std::uint32_t j = 0; j < cache.ref().length(t); ++j) {
        double const want =
            local ? sum_of(expected[h].past, j) + sum_of(expected[h].current, j) : sum_of(expected[h].all, j);
        worst = std::max(worst, std::fabs(support::score_of(cache.ledger(), t, j) - want));
      }
      CHECK(cache.ledger().word(t, kvmeld::track_word::observed_rows) == observed);
      if (local) CHECK(cache.ledger().word(t, kvmeld::track_word::window_rows) == expected[h].current.size());
    }
    CHECK(worst < 2e-4);
  }
}

}  // namespace

TEST_CASE("observing the last queries, or every n-th, to either base, sums the rows of those queries alone") {
  dice d(61);
  for (int i = 0; i < 25; ++i) {
    observe_some(d, composed_of(kvmeld::preset::h2o::defaults()), false);
    observe_some(d, composed_of(kvmeld::preset::snapkv::with_window(window)), true);
  }
}

TEST_CASE("rows of probabilities: the same queries as by hand") {
  kvmeld::shape const s{1, 1, 1, 2, 1, 1, 8};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, composed_of(kvmeld::preset::h2o::defaults()));
  cache.open(0, 8);
  std::vector<float> rows(2 * 5 * 8);  // [head][query][slot]: query r gives slot j 10 r + j, of either head
  for (std::uint32_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i / 8 % 5 * 10 + i % 8);
  cache.observe_rows({0, 0, 5}, kvmeld::rows_by_head<float const>(rows.data(), 5, 2, 8), {},
                     kvmeld::query_sample{4, 2});
  for (std::uint32_t j = 0; j < 8; ++j) {  // queries 2 and 4, which see 6 and 8 entries
    CHECK(cache.ledger().channel_data[0][j] == static_cast<float>((j < 6 ? 20 + j : 0) + 40 + j));
  }
  CHECK(cache.ledger().word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 2);
}

TEST_CASE(
    "attention gives log-sum-exps to the base that is asked for, and to no base where nothing was seen") {
  dice d(62);
  kvmeld::shape const s{1, 2, 2, 2, 8, 4, 40};
  support::engine_memory<float> memory(s);
  memory.fill_sequence(d, 0, 0, 40, support::texture::noise);
  auto cache = make_cache(memory, composed_of(kvmeld::preset::h2o::defaults()));
  cache.open(0, 40);
  cache.open(1, 0);  // its query sees nothing
  std::vector<float> q(2 * 4 * 8), out(2 * 4 * 4), natural(2 * 4), two(2 * 4);
  for (float& x : q) x = static_cast<float>(d.normal());
  std::uint32_t const slots[] = {0, 1}, counts[] = {1, 1};
  kvmeld::query_batch const batch{0, {slots, 2}, {counts, 2}};
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), 1, 4, 8);
  auto const to = kvmeld::rows_by_token(out.data(), 1, 4, 4);
  kvmeld::attention::attend(cache.executor(), batch, rows, cache.ref(), to,
                            kvmeld::rows_by_head(natural.data(), 1, 4, 1));
  kvmeld::attention::attend(cache.executor(), batch, rows, cache.ref(), to,
                            kvmeld::in_base_two(kvmeld::rows_by_head(two.data(), 1, 4, 1)));
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(static_cast<double>(two[i]) ==
          doctest::Approx(static_cast<double>(natural[i]) / std::log(2.0)).epsilon(1e-6));
    CHECK(two[4 + i] == kvmeld::element_traits<float>::lowest);
    CHECK(natural[4 + i] == two[4 + i]);
  }
  // Such a row counts for nothing when it is read back.
  kvmeld::log_sums<float const> const back{kvmeld::rows_by_head<float const>(two.data(), 1, 4, 1),
                                           kvmeld::lse_base::two};
  CHECK_FALSE(kvmeld::is_usable_lse(back.read(1, 0, 0)));
  CHECK(static_cast<double>(back.read(0, 1, 0)) ==
        doctest::Approx(static_cast<double>(natural[1])).epsilon(1e-6));
}

TEST_CASE("policies say what they have to be shown") {
  namespace preset = kvmeld::preset;
  using kvmeld::observation;
  static_assert(kvmeld::observation_of<preset::streaming_llm::type> == observation::none);
  static_assert(kvmeld::observation_of<decltype(preset::chelsea::llama3())> == observation::none);
  static_assert(kvmeld::observation_of<preset::snapkv::type> == observation::prefill_window);
  static_assert(kvmeld::observation_of<preset::h2o::type> == observation::every_step);
  static_assert(kvmeld::observation_of<preset::scissorhands::type> == observation::every_step);
  static_assert(kvmeld::observation_of<preset::kvmerger::type> == observation::every_step);
  static_assert(kvmeld::observation_of<decltype(preset::ems::shared())> == observation::every_step);
  static_assert(kvmeld::observation_of<composed> == observation::every_step);  // at most

  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 16};
  support::engine_memory<float> memory(s);
  auto const told = [&](auto const& policy) {
    auto const held = kvmeld::make_any_cache(make_cache(memory, policy));
    kvmeld::any_cache& cache = *held;
    return std::pair(cache.needs_observation().when, cache.needs_observation().rows);
  };
  using answer = std::pair<observation, std::uint32_t>;
  CHECK(told(composed_of(preset::streaming_llm::with_sinks())) == answer(observation::none, 0));
  CHECK(told(composed_of(preset::chelsea::llama3())) == answer(observation::none, 0));
  CHECK(told(composed_of(preset::snapkv::with_window(24))) == answer(observation::prefill_window, 24));
  CHECK(told(composed_of(preset::h2o::defaults())) == answer(observation::every_step, 0));
  CHECK(told(composed_of(preset::cam::over_h2o())) == answer(observation::every_step, 0));
  CHECK(told(composed_of(preset::scissorhands::defaults(50))) == answer(observation::every_step, 50));
  CHECK(make_cache(memory, preset::snapkv::with_window(9)).needs_observation().rows == 9);
  CHECK(kvmeld::need_of(preset::ems::shared()).when == observation::every_step);
}

TEST_CASE(
    "scores that the caller has are handed in as a row: the best of them stay, NaN ranks below all numbers") {
  // Two query heads per KV head, whose rows are averaged: (6, 2, ...) and (2, 2, ...) score (4, 2, ...).
  kvmeld::shape const s{1, 1, 1, 2, 1, 1, 8};
  support::engine_memory<float> memory(s);
  float const nan = kvmeld::bits_float(0x7fc00000u);
  kvmeld::select::top const best{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0),
                                 kvmeld::quantity::rest_of_budget()};
  auto const kept = [&](std::vector<float> const& rows, std::uint32_t budget) {
    auto cache = make_cache(memory, kvmeld::policy{kvmeld::score::global{}, best,
                                                   kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
    cache.open(0, 6);
    std::uint32_t const layer = 0, slot = 0;
    auto const scores = kvmeld::rows_by_head<float const>(rows.data(), 1, 2, 6);
    cache.observe_rows({layer, slot, 1}, scores);
    cache.compress({0}, kvmeld::budget::entries(budget));
    std::vector<int> out;
    auto const now = cache.ref();
    kvmeld::track const t = now.where(0, 0, 0);
    for (std::uint32_t i = 0; i < now.length(t); ++i) out.push_back(now.position(t, i));
    return out;
  };
  CHECK(kept({6, 2, 9, 1, 0, 70, /**/ 2, 2, 1, 3, 0, 80}, 3) == std::vector<int>{0, 2, 5});
  // Negative numbers are numbers.
  CHECK(kept({-1, -2, -3, -4, -5, -6, /**/ -1, -2, -3, -4, -5, -6}, 2) == std::vector<int>{0, 1});
  CHECK(kept({nan, -9, -8, nan, -7, -6, /**/ 0, -9, -8, 0, -7, -6}, 4) == std::vector<int>{1, 2, 4, 5});
}

TEST_CASE("refusals of a query sample") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 16};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, composed_of(kvmeld::preset::h2o::defaults()));
  cache.open(0, 16);
  std::vector<float> q(16, 0.0f);
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), 4, 1, 4);
  auto const lse = kvmeld::rows_by_head<float const>(q.data(), 4, 1, 1);
  std::string const stride = "observe: sample.stride is 0; it must be at least 1";
  CHECK(refusal_of([&] { cache.observe({0, 0, 4}, rows, lse, {}, {2, 0}); }) == stride);
  CHECK(refusal_of([&] { cache.observe_rows({0, 0, 4}, rows, {}, {0, 0}); }) == stride);
  CHECK(refusal_of([&] {
          cache.observe_logits({0, 0, 4}, {}, lse, {});
        }) == "observe: logits.data is null; it must be the rows of the attention that is observed");
  CHECK(refusal_of([&] {
          cache.observe({0, 0, 4}, rows, {}, {});
        }) == "observe: lse.data is null; it must be the rows of the attention that is observed");
  CHECK(cache.ledger().word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 0);
}
