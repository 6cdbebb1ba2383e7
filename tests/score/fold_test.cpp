// How attention of several heads and rows becomes one number, against naive loops: from queries, from rows of
// probabilities, from logits, with tuned and with generic loops.
#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using kvmeld::attention_fold;
using kvmeld::head_fold;
using kvmeld::row_fold;
using support::dice;

namespace {

// All attention so far, folded in a way that is chosen at run time.
struct folded : kvmeld::score::global {
  attention_fold how;
  KVMELD_HD attention_fold fold() const { return how; }
};

double of_heads(head_fold how, std::vector<double> const& p) {
  double sum = 0, largest = 0, squares = 0;
  for (double x : p) {
    sum += x;
    squares += x * x;
    largest = std::max(largest, x);
  }
  double const n = static_cast<double>(p.size());
  return how == head_fold::mean ? sum / n : how == head_fold::max ? largest : std::sqrt(squares / n);
}

struct fixture {
  kvmeld::shape extent;
  support::engine_memory<float> memory;
  std::vector<float> queries, lse, weights;
  std::uint32_t entries, count;
  kvmeld::query_sample sample{};

  explicit fixture(dice& d)
      : extent{1, 1, d.between(1, 2), d.between(1, 5), d.pick({8u, 24u, 40u}), 4, 150},
        memory(extent),
        entries(d.between(20, 150)),
        count(d.between(1, 40)) {
    count = std::min(count, entries);
    memory.fill_sequence(d, 0, 0, entries, support::texture::noise);
    queries.resize(std::size_t{count} * extent.query_heads() * extent.key_dim);
    for (float& x : queries) x = static_cast<float>(d.normal());
    lse.resize(std::size_t{count} * extent.query_heads());
    for (std::uint32_t r = 0; r < count; ++r) weights.push_back(static_cast<float>(3 * d.uniform()));
    if (d.chance(0.5)) sample.weights = weights.data();
  }
  auto cache_of(attention_fold how, kvmeld::tuning t = kvmeld::tuning::on) {
    kvmeld::policy const p{folded{{}, how}, kvmeld::preset::h2o::defaults().select,
                           kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
    kvmeld::merged_cache cache(kvmeld::host_executor(1, t), p, memory.tensors(),
                               kvmeld::cache_options{extent});
    cache.open(0, entries);
    return cache;
  }
  auto query_rows() const {
    return kvmeld::rows_by_token(queries.data(), count, extent.query_heads(), extent.key_dim);
  }
  auto lse_rows() { return kvmeld::rows_by_head(lse.data(), count, extent.query_heads(), 1); }
};

// [entry] what the rows give, by naive loops; fills the log-sum-exps and the probabilities of [head][query].
template <class Ref>
std::vector<double> expected(fixture& f, Ref const& ref, std::uint32_t kv_head, attention_fold how,
                             std::vector<double> so_far, std::vector<float>& probability) {
  std::uint32_t const group = f.extent.queries_per_kv_head, d = f.extent.key_dim;
  auto const track = support::read_track(ref, kvmeld::make_track(f.extent, 0, 0, kv_head));
  reference::attention_options o;
  o.scale = 1 / std::sqrt(static_cast<double>(d));
  o.causal = true;
  std::vector<reference::attention_result> heads;
  for (std::uint32_t h = 0; h < group; ++h) {
    std::uint32_t const head = kv_head * group + h;
    reference::matrix rows;
    for (std::uint32_t r = 0; r < f.count; ++r) {
      float const* const from = f.queries.data() + (std::size_t{r} * f.extent.query_heads() + head) * d;
      rows.emplace_back(from, from + d);
    }
    heads.push_back(reference::attend(rows, track, o));
    for (std::uint32_t r = 0; r < f.count; ++r) {
      f.lse[std::size_t{head} * f.count + r] = static_cast<float>(heads.back().lse[r]);
      for (std::uint32_t j = 0; j < f.entries; ++j) {
        probability[(std::size_t{head} * f.count + r) * f.extent.capacity + j] =
            static_cast<float>(heads.back().probability[r][j]);
      }
    }
  }
  so_far.resize(f.entries, 0.0);
  for (std::uint32_t j = 0; j < f.entries; ++j) {
    for (std::uint32_t r = 0; r < f.count; ++r) {
      std::vector<double> p;
      double const weight = f.sample.weights == nullptr ? 1.0 : static_cast<double>(f.weights[r]);
      for (auto const& head : heads) p.push_back(weight * head.probability[r][j]);
      double const x = of_heads(how.heads, p);
      so_far[j] = how.rows == row_fold::max ? std::max(so_far[j], x) : so_far[j] + x;
    }
  }
  return so_far;
}

}  // namespace

TEST_CASE("folds over heads and rows are those of naive loops, from every source of attention") {
  dice d(31);
  for (int i = 0; i < support::cases(40); ++i) {
    fixture f(d);
    for (head_fold heads : {head_fold::mean, head_fold::max, head_fold::root_mean_square}) {
      for (row_fold rows : {row_fold::sum, row_fold::max}) {
        attention_fold const how{heads, rows};
        auto tuned = f.cache_of(how), generic = f.cache_of(how, kvmeld::tuning::off), given = f.cache_of(how),
             fused = f.cache_of(how);
        std::vector<std::vector<double>> wanted(f.extent.kv_heads);
        for (int block = 0; block < 2; ++block) {  // the second one adds to what the first one left
          for (float& x : f.queries) x = static_cast<float>(d.normal());
          std::vector<float> probability(std::size_t{f.extent.query_heads()} * f.count * f.extent.capacity);
          for (std::uint32_t h = 0; h < f.extent.kv_heads; ++h)
            wanted[h] = expected(f, tuned.ref(), h, how, wanted[h], probability);
          kvmeld::query_batch const batch{0, 0, f.count};
          tuned.observe(batch, f.query_rows(), f.lse_rows(), {}, f.sample);
          generic.observe(batch, f.query_rows(), f.lse_rows(), {}, f.sample);
          given.observe_rows(
              batch,
              kvmeld::rows_by_head(probability.data(), f.count, f.extent.query_heads(), f.extent.capacity),
              {}, f.sample);
          std::vector<float> memory(kvmeld::attention::observed_floats(f.extent, 1, f.count));
          std::vector<float> out(std::size_t{f.count} * f.extent.query_heads() * f.extent.value_dim);
          REQUIRE(kvmeld::attention::attend_and_observe(
                      fused, batch, f.query_rows(),
                      kvmeld::rows_by_token(out.data(), f.count, f.extent.query_heads(), f.extent.value_dim),
                      {memory.data(), memory.size()}, {}, {}, f.sample)
                      .ok());
        }
        double worst = 0;
        for (std::uint32_t h = 0; h < f.extent.kv_heads; ++h) {
          kvmeld::track const t = kvmeld::make_track(f.extent, 0, 0, h);
          for (std::uint32_t j = 0; j < f.entries; ++j) {
            for (auto const* ledger :
                 {&tuned.ledger(), &generic.ledger(), &given.ledger(), &fused.ledger()}) {
              double const got = support::score_of(*ledger, t, j);
              worst = std::max(worst, std::fabs(got - wanted[h][j]) / (1 + wanted[h][j]));
            }
          }
        }
        CHECK(worst < 2e-5);
      }
    }
  }
}

TEST_CASE("max_attention: the most of any head and row, and of any member") {
  kvmeld::shape const s{1, 1, 1, 2, 1, 1, 8};
  support::engine_memory<float> memory(s);
  auto policy = kvmeld::preset::merging(
      kvmeld::preset::kvzip::for_budget(kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)),
      kvmeld::quantity::entries(0));
  auto cache = make_cache(memory, policy);
  CHECK(cache.needs_observation().when == kvmeld::observation::replay);
  CHECK(cache.needs_observation().rows == 0);
  memory.fill(kvmeld::make_track(s, 0, 0, 0), 0, {{1}, {1}, {1}, {1}}, {{0}, {0}, {0}, {0}});
  cache.open(0, 4);
  cache_test::check_text(cache_test::refusal_of([&] { cache.compress({0}, kvmeld::budget::entries(2)); }),
                         {"number of observed rows", "is 0; it must be at least 1"});
  std::vector<float> const rows{0.1f, 0.2f,  0.3f, 0.4f,   // head 0, query 0
                                0.7f, 0.1f,  0.1f, 0.1f,   // head 0, query 1
                                0.0f, 0.25f, 0.5f, 0.0f,   // head 1, query 0
                                0.2f, 0.3f,  0.0f, 0.5f};  // head 1, query 1
  kvmeld::attention_params all;
  all.causal = false;
  cache.observe_rows({0, 0, 2}, kvmeld::rows_by_head(rows.data(), 2, 2, 4), all);
  float const* const got = cache.ledger().channel_data[0];
  CHECK(got[0] == 0.7f);
  CHECK(got[1] == 0.3f);
  CHECK(got[2] == 0.5f);
  CHECK(got[3] == 0.5f);
  cache.compress({0}, kvmeld::budget::entries(1));
  REQUIRE(cache.entries(0) == 1);
  CHECK(cache.ledger().channel_data[0][0] == 0.7f);
}

TEST_CASE("a second reading: the most that its queries gave an entry of the prompt") {
  dice d(33);
  for (int i = 0; i < 20; ++i) {
    // An engine that reads its prompt of n tokens twice: both readings are in its memory, the cache holds
    // one.
    std::uint32_t const n = d.between(5, 60), layer = 0, slot = 0;
    kvmeld::shape const s{1, 1, d.between(1, 2), d.between(1, 3), 16, 4, 2 * n};
    support::engine_memory<float> memory(s);
    auto both = make_cache(memory, kvmeld::preset::streaming_llm::with_sinks());
    auto cache = make_cache(memory, kvmeld::preset::kvzip::for_budget());
    both.open(0, 2 * n);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, 2 * n, support::texture::walk);
    std::vector<float> data(std::size_t{n} * s.query_heads() * s.key_dim), out(data.size()),
        sums(std::size_t{n} * s.query_heads());
    for (float& x : data) x = static_cast<float>(2 * d.normal());
    auto const queries =
        kvmeld::rows_by_token(static_cast<float const*>(data.data()), n, s.query_heads(), s.key_dim);
    kvmeld::attention::attend(both.executor(), {layer, slot, n}, queries, both.ref(),
                              kvmeld::rows_by_token(out.data(), n, s.query_heads(), s.value_dim),
                              kvmeld::rows_by_token(sums.data(), n, s.query_heads(), 1));
    auto const lse = kvmeld::rows_by_token(static_cast<float const*>(sums.data()), n, s.query_heads(), 1);

    kvmeld::attention_params const params;
    kvmeld::attention_params again = params;
    again.causal = false;
    // The cache holds the n tokens of the prompt. queries and lse are those of the second reading.
    cache.observe({layer, slot, n}, queries, lse, again);

    reference::attention_options o;
    o.scale = 0.25;
    o.causal = true;
    double worst = 0;
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, 0, 0, h);
      auto const track = support::read_track(both.ref(), t);
      std::vector<double> most(n, 0.0);
      for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g) {
        reference::matrix rows;
        for (std::uint32_t r = 0; r < n; ++r) {
          float const* const from =
              data.data() + (std::size_t{r} * s.query_heads() + h * s.queries_per_kv_head + g) * s.key_dim;
          rows.emplace_back(from, from + s.key_dim);
        }
        auto const attended = reference::attend(rows, track, o);
        for (auto const& row : attended.probability)
          for (std::uint32_t j = 0; j < n; ++j) most[j] = std::max(most[j], row[j]);
      }
      for (std::uint32_t j = 0; j < n; ++j)
        worst = std::max(worst, std::fabs(support::score_of(cache.ledger(), t, j) - most[j]));
    }
    CHECK(worst < 2e-5);
  }
}

TEST_CASE("kvzip: which entries stay after a second reading, over all layers and heads") {
  // Two layers; rows of 20 queries that see the whole prompt.
  dice d(32);
  for (int i = 0; i < 20; ++i) {
    kvmeld::shape const s{2, 1, d.between(1, 3), d.between(1, 3), 8, 4, 60};
    support::engine_memory<float> memory(s);
    kvmeld::cache_options options;
    options.budgets_over = kvmeld::budget_scope::all_layers;
    auto cache = make_cache(
        memory, kvmeld::preset::kvzip::for_budget(kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)),
        options);
    std::uint32_t const n = d.between(20, 60), count = 20;
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    std::vector<std::pair<float, std::uint32_t>> all;  // score, track * 100 + entry
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> rows(std::size_t{s.query_heads()} * count * n);
      for (float& x : rows) x = static_cast<float>(d.uniform());
      kvmeld::attention_params whole;
      whole.causal = false;
      cache.observe_rows({layer, 0, count}, kvmeld::rows_by_head(rows.data(), count, s.query_heads(), n),
                         whole);
      for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
        for (std::uint32_t j = 0; j < n; ++j) {
          float most = 0;
          for (std::uint32_t q = 0; q < count * s.queries_per_kv_head; ++q)
            most = std::max(most, rows[(std::size_t{h} * s.queries_per_kv_head * count + q) * n + j]);
          all.emplace_back(most, kvmeld::make_track(s, layer, 0, h).index * 100 + j);
        }
      }
    }
    std::uint32_t const tracks = 2 * s.kv_heads, kept = n / 4;
    std::sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.first > b.first; });
    bool tie = false;
    std::vector<std::uint32_t> wanted, got;
    for (std::uint32_t k = 0; k < kept * tracks; ++k) wanted.push_back(all[k].second);
    tie = all[kept * tracks - 1].first == all[kept * tracks].first;
    cache.compress({0}, kvmeld::budget::entries(kept).over(kvmeld::budget_scope::all_layers));
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      for (std::uint32_t j = 0; j < cache.ref().length(t); ++j)
        got.push_back(t.index * 100 +
                      static_cast<std::uint32_t>(cache.ledger().position[cache.ledger().at(t, j)]));
    });
    std::sort(wanted.begin(), wanted.end());
    std::sort(got.begin(), got.end());
    if (!tie) CHECK(got == wanted);
    CHECK(got.size() == wanted.size());
  }
}

TEST_CASE("the root of the mean square over all queries of all heads, in one call or in several") {
  dice d(37);
  for (int i = 0; i < 20; ++i) {
    fixture f(d);
    auto policy = kvmeld::preset::attention_matching::for_budget();
    auto cache = support::make_cache(f.memory, policy);
    cache.open(0, f.entries);
    std::vector<float> p(std::size_t{f.extent.query_heads()} * f.count * f.extent.capacity);
    std::vector<std::vector<double>> squares;
    for (std::uint32_t h = 0; h < f.extent.kv_heads; ++h) {
      auto of_track = expected(f, cache.ref(), h, {head_fold::root_mean_square, row_fold::sum}, {}, p);
      for (std::uint32_t j = 0; j < f.entries; ++j) {
        of_track[j] = 0;
        for (std::uint32_t g = 0; g < f.extent.queries_per_kv_head * f.count; ++g) {
          std::size_t const row = std::size_t{h} * f.extent.queries_per_kv_head * f.count + g;
          of_track[j] += std::pow(static_cast<double>(p[row * f.extent.capacity + j]), 2);
        }
      }
      squares.push_back(of_track);
    }
    std::uint32_t const layer = 0, slot = 0, times = d.between(1, 2);
    for (std::uint32_t again = 0; again < times; ++again)
      cache.observe({layer, slot, f.count}, f.query_rows(), f.lse_rows());
    support::for_tracks(f.extent, 0, [&](kvmeld::track t) {
      kvmeld::ledger_ref const& l = cache.ledger();
      kvmeld::score_view const view(l, t, f.entries, f.entries);
      for (std::uint32_t j = 0; j < f.entries; ++j) {
        double const mean = squares[t.kv_head][j] / f.extent.queries_per_kv_head;
        CHECK(policy.score.importance(view, j) == doctest::Approx(std::sqrt(times * mean)).epsilon(1e-3));
      }
    });
  }
}
