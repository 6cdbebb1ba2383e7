// Observation against the reference: queries with their log-sum-exp, or rows of probabilities, become column
// sums.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/scores.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using support::dice;

namespace {

// Queries of one observation, in the library's and the reference's form.
template <class Q> struct query_block {
  std::uint32_t rows, heads, channels;
  std::vector<Q> data;                  // [query][head][channel]
  std::vector<float> lse, probability;  // [head][query], [head][query][slot of `width`]
  std::uint32_t width;
  std::vector<reference::matrix> queries;  // per query head

  query_block(dice& d, kvmeld::shape const& s, std::uint32_t count)
      : rows(count),
        heads(s.query_heads()),
        channels(s.key_dim),
        lse(std::size_t{heads} * rows),
        probability(std::size_t{heads} * rows * s.capacity),
        width(s.capacity),
        queries(heads) {
    for (std::uint32_t r = 0; r < rows; ++r) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        reference::row row;
        for (std::uint32_t c = 0; c < channels; ++c) {
          data.push_back(kvmeld::element_traits<Q>::from_float(static_cast<float>(d.normal())));
          row.push_back(static_cast<double>(kvmeld::element_traits<Q>::to_float(data.back())));
        }
        queries[h].push_back(row);
      }
    }
  }
  auto query_view() const { return kvmeld::rows_by_token(data.data(), rows, heads, channels); }
  auto lse_view() const { return kvmeld::rows_by_head(lse.data(), rows, heads, 1); }
  auto probability_view() const { return kvmeld::rows_by_head(probability.data(), rows, heads, width); }
};

// What the reference says the block adds to a track, and what an engine would hand over: log-sum-exps, rows.
template <class Q>
std::vector<double> reference_sums(query_block<Q>& block, reference::track_state const& track,
                                   kvmeld::track t, std::uint32_t group, std::uint32_t window,
                                   reference::attention_options const& o) {
  std::vector<reference::matrix> const queries(block.queries.begin() + t.kv_head * group,
                                               block.queries.begin() + (t.kv_head + 1) * group);
  std::vector<std::vector<double>> lse;
  for (std::uint32_t h = 0; h < group; ++h) {
    auto const attended = reference::attend(queries[h], track, o);
    lse.push_back(attended.lse);
    for (std::uint32_t r = 0; r < block.rows; ++r) {
      std::size_t const at = std::size_t{t.kv_head * group + h} * block.rows + r;
      block.lse[at] = static_cast<float>(attended.lse[r]);
      for (std::size_t j = 0; j < track.size(); ++j)
        block.probability[at * block.width + j] = static_cast<float>(attended.probability[r][j]);
    }
  }
  return reference::last_window_sums(queries, track.keys, track.degree, lse, window, o);
}

struct setting {
  kvmeld::attention_params params;
  reference::attention_options options;
};

setting choose(dice& d, std::uint32_t channels) {
  setting s;
  s.options.scale = 1 / std::sqrt(static_cast<double>(channels));
  if (d.chance(0.3)) s.params.scale = static_cast<float>(s.options.scale = 0.125);
  if (d.chance(0.3)) s.params.softcap = static_cast<float>(s.options.softcap = d.chance(0.5) ? 1.5 : 30.0);
  s.params.causal = s.options.causal = d.chance(0.7);
  return s;
}

// Chunks of a prompt, each observed as it comes: the sums of the queries equal those of the rows and the
// reference's. After the first chunks the cache may be compressed, so that degrees enter the logits.
template <class T, class Q> void observe_chunks(dice& d) {
  constexpr std::uint32_t dims[] = {8, 24, 64};
  kvmeld::shape const s{2, 2, d.between(1, 2), d.between(1, 4), d.pick(dims), 4, 220};
  support::engine_memory<T> memory(s);
  kvmeld::policy const policy{kvmeld::score::global{},
                              kvmeld::select::top{kvmeld::quantity::entries(1), kvmeld::quantity::entries(1),
                                                  kvmeld::quantity::entries(0)},
                              kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{},
                              kvmeld::merge::degree_weighted{}};
  auto by_query = make_cache(memory, policy);
  auto by_rows = make_cache(memory, policy);
  setting const how = choose(d, s.key_dim);
  std::uint32_t const q = d.below(2), layer = d.below(2);
  by_query.open(q);
  by_rows.open(q);
  std::vector<std::vector<double>> expected(s.kv_heads);
  for (int chunk = 0; chunk < 4; ++chunk) {
    std::uint32_t const count = d.pick({1u, 3u, 16u, 17u, 40u}), first = by_query.longest(q);
    by_query.append({q}, {count});
    by_rows.append({q}, {count});
    memory.fill_sequence(d, q, first, count, support::texture::walk);
    by_query.commit({q}, {count});
    by_rows.commit({q}, {count});
    query_block<Q> block(d, s, d.between(1, count));
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, layer, q, h);
      auto const track = support::read_track(by_query.ref(), t);
      auto const sums = reference_sums(block, track, t, s.queries_per_kv_head, block.rows, how.options);
      expected[h].resize(track.size(), 0.0);
      for (std::size_t j = 0; j < sums.size(); ++j) expected[h][j] += sums[j];
    }
    std::uint32_t const listed[] = {q}, counts[] = {block.rows};
    kvmeld::query_batch const batch{layer, {listed, 1}, {counts, 1}};
    by_query.observe(batch, block.query_view(), block.lse_view(), how.params);
    by_rows.observe_rows(batch, block.probability_view(), how.params);
    double worst = 0, between = 0;
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, layer, q, h);
      kvmeld::track const other = kvmeld::make_track(s, 1 - layer, q, h);
      for (std::uint32_t j = 0; j < by_query.ref().length(t); ++j) {
        double const a = support::score_of(by_query.ledger(), t, j),
                     b = support::score_of(by_rows.ledger(), t, j);
        worst = std::max(worst, std::fabs(a - expected[h][j]) / (1 + expected[h][j]));
        between = std::max(between, std::fabs(a - b) / (1 + expected[h][j]));
        CHECK(support::score_of(by_query.ledger(), other, j) == 0);  // the other layer saw nothing
      }
    }
    CHECK(worst < 2e-5);
    CHECK(between < 2e-5);
    if (chunk != 1 || by_query.longest(q) < 12) continue;
    // Both caches share K and V: one merges, the other's ledger follows from its copy.
    auto const limit = kvmeld::budget::entries(by_query.longest(q) * 2 / 3);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      by_query.ledger().word(t, kvmeld::track_word::observed_rows) = 1;  // the layer that was not observed
    });
    by_query.compress({q}, limit);
    by_rows = support::twin_of(by_query);
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, layer, q, h);
      double before = 0, after = 0, degrees = 0;
      for (double x : expected[h]) before += x;
      expected[h].clear();
      for (std::uint32_t j = 0; j < by_query.ref().length(t); ++j) {
        expected[h].push_back(support::score_of(by_query.ledger(), t, j));
        after += expected[h].back();
        degrees += static_cast<double>(by_query.ref().degree(t, j));
      }
      CHECK(after == Approx(before).epsilon(1e-4));
      CHECK(degrees == by_query.ledger().seen[q]);
    }
    support::for_tracks(s, q, [&](kvmeld::track t) {
      if (t.layer == layer) return;
      for (std::uint32_t j = 0; j < s.capacity; ++j) {
        CHECK(by_query.ledger().channel_data[0][by_query.ledger().at(t, j)] == 0);
      }
    });
  }
}

}  // namespace

TEST_CASE("observed queries and observed rows are the reference's column sums, chunk by chunk") {
  dice d(21);
  for (int i = 0; i < 25; ++i) {
    observe_chunks<float, float>(d);
    observe_chunks<kvmeld::float16, kvmeld::float16>(d);
    observe_chunks<kvmeld::bfloat16, float>(d);
  }
}

TEST_CASE("observation by hand: causal alignment, group mean, degrees") {
  // Two equal keys, zero queries: the first of two queries sees one entry, the second both. Sums 1 + 1/2,
  // 1/2. Head 1 hands over an lse larger by ln 2, which halves its rows: the mean is 3/4 of head 0's.
  kvmeld::shape const s{1, 1, 1, 2, 1, 1, 4};
  support::engine_memory<float> memory(s);
  memory.fill(kvmeld::make_track(s, 0, 0, 0), 0, {{1}, {1}}, {{0}, {0}});
  auto cache = make_cache(memory, kvmeld::preset::h2o::defaults());
  cache.open(0, 2);
  std::vector<float> const zeros(4, 0.0f);
  float const ln2 = std::log(2.0f);
  std::vector<float> const lse{0, ln2, ln2, 2 * ln2};  // [head][query]
  auto const queries = kvmeld::rows_by_token(zeros.data(), 2, 2, 1);
  cache.observe({0, 0, 2}, queries, kvmeld::rows_by_head(lse.data(), 2, 2, 1));
  float const* const sum = cache.ledger().channel_data[0];
  CHECK(sum[0] == Approx(0.75 * 1.5));
  CHECK(sum[1] == Approx(0.75 * 0.5));

  // Degree 3 for slot 0: exp(0 + ln 3 - ln 4) = 3/4 and 1/4 from one query that sees both; not if degrees are
  // off.
  cache.ledger().degree[0] = 3;
  std::vector<float> const ln4(2, 2 * ln2);
  cache.observe({0, 0, 1}, kvmeld::rows_by_token(zeros.data(), 1, 2, 1),
                kvmeld::rows_by_head(ln4.data(), 1, 2, 1));
  CHECK(sum[0] == Approx(0.75 * 1.5 + 0.75));
  CHECK(sum[1] == Approx(0.75 * 0.5 + 0.25));
  kvmeld::attention_params plain;
  plain.use_degree = false;
  cache.observe({0, 0, 1}, kvmeld::rows_by_token(zeros.data(), 1, 2, 1),
                kvmeld::rows_by_head(ln4.data(), 1, 2, 1), plain);
  CHECK(sum[0] == Approx(0.75 * 1.5 + 0.75 + 0.25));
  // No query: nothing happens. Rows count once per observation.
  cache.observe({0, 0, 0}, queries, kvmeld::rows_by_head(lse.data(), 2, 2, 1));
  CHECK(cache.ledger().word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 4);
}

TEST_CASE("the log-sum-exp that attention gives out is the one observation takes") {
  // Every row of probabilities sums to 1, so that the scores of all entries sum to the number of queries.
  dice d(22);
  for (int i = 0; i < 20; ++i) {
    kvmeld::shape const s{1, 1, 2, d.between(1, 3), 24, 8, 90};
    support::engine_memory<kvmeld::float16> memory(s);
    auto cache = make_cache(memory, kvmeld::preset::h2o::defaults());
    std::uint32_t const n = d.between(10, 90), count = d.between(1, n);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    for (std::uint32_t j = 0; j < n; ++j) cache.ledger().degree[j] = static_cast<float>(d.between(1, 5));
    setting const how = choose(d, s.key_dim);
    query_block<float> block(d, s, count);
    std::vector<float> out(std::size_t{count} * s.query_heads() * s.value_dim);
    std::uint32_t const listed[] = {0}, counts[] = {count};
    kvmeld::query_batch const batch{0, {listed, 1}, {counts, 1}};
    auto const lse = kvmeld::rows_by_head(block.lse.data(), count, s.query_heads(), 1);
    kvmeld::attention::attend(cache.executor(), batch, block.query_view(), cache.ref(),
                              kvmeld::rows_by_token(out.data(), count, s.query_heads(), s.value_dim), lse,
                              how.params);
    cache.observe(batch, block.query_view(), block.lse_view(), how.params);
    for (std::uint32_t h = 0; h < 2; ++h) {
      double sum = 0;
      for (std::uint32_t j = 0; j < n; ++j)
        sum += support::score_of(cache.ledger(), kvmeld::make_track(s, 0, 0, h), j);
      CHECK(sum == Approx(count).epsilon(1e-4));
    }
  }
}

namespace {

// A track as a sliding-window engine has it: unrotated keys, gaps in the positions, degrees, sinks.
struct windowed {
  kvmeld::shape extent;
  support::engine_memory<kvmeld::float16> memory;
  decltype(make_cache(memory, kvmeld::preset::h2o::defaults())) by_query, by_rows;
  std::vector<float> sinks;
  kvmeld::attention_params params;

  explicit windowed(dice& d)
      : extent{1, 1, 2, d.between(1, 3), 24, 8, 150},
        memory(extent),
        by_query(make_cache(memory, kvmeld::preset::h2o::defaults())),
        by_rows(make_cache(memory, kvmeld::preset::h2o::defaults())) {
    std::uint32_t const n = d.between(30, 150);
    by_query.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    auto const& l = by_query.ledger();
    l.seen[0] = 4 * n;
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      for (std::uint32_t j = 0; j < n; ++j) {
        l.degree[l.at(t, j)] = static_cast<float>(d.between(1, 5));
        std::uint32_t const ago = n - 1 - j;  // the last twenty tokens are all there
        l.position[l.at(t, j)] = static_cast<kvmeld::position_t>(4 * n - 1 - (ago < 20 ? ago : 4 * ago - 60));
      }
    });
    by_rows = support::twin_of(by_query);
    for (std::uint32_t h = 0; h < extent.query_heads(); ++h) sinks.push_back(static_cast<float>(d.normal()));
    if (d.chance(0.7)) params.sink = sinks.data();
    if (d.chance(0.7)) params.window = d.pick({5u, 60u, 300u});
    if (params.window != 0 && d.chance(0.5)) params.window_sinks = 30;
    if (d.chance(0.5)) params.softcap = 2;
    params.use_degree = d.chance(0.7);
    if (d.chance(0.7)) params.rope.pairing = kvmeld::rope_pairing::half_split;
    if (d.chance(0.3)) params.rope.positions = kvmeld::rope_positions::slot;
    if (d.chance(0.5)) params.rope.rotary_dim = 10;
  }
};

}  // namespace

TEST_CASE("observation knows sinks, windows and rotation as attention does") {
  dice d(23);
  double min_share = 1;
  for (int i = 0; i < 60; ++i) {
    windowed w(d);
    kvmeld::shape const& s = w.extent;
    std::uint32_t const count = d.between(1, 20);
    query_block<float> block(d, s, count);
    std::vector<float> out(std::size_t{count} * s.query_heads() * s.value_dim);
    kvmeld::query_batch const batch{0, 0, count};
    kvmeld::attention::attend(w.by_query.executor(), batch, block.query_view(), w.by_query.ref(),
                              kvmeld::rows_by_token(out.data(), count, s.query_heads(), s.value_dim),
                              kvmeld::rows_by_head(block.lse.data(), count, s.query_heads(), 1), w.params);
    w.by_query.observe(batch, block.query_view(), block.lse_view(), w.params);

    // The reference, and the probabilities an engine would hand over; what is hidden holds rubbish.
    reference::attention_options o;
    o.scale = 1 / std::sqrt(24.0);
    o.softcap = static_cast<double>(w.params.softcap);
    o.causal = true;
    o.window = w.params.window;
    o.always = w.params.window_sinks;
    o.has_sink = w.params.sink != nullptr;
    o.rope = w.params.rope.active() ? reference::rotation::half_split : reference::rotation::none;
    o.rope_by_slot = w.params.rope.positions == kvmeld::rope_positions::slot;
    o.rotary = w.params.rope.rotary_dim == 0 ? 24 : w.params.rope.rotary_dim;
    o.last_position = long{w.by_query.ledger().seen[0]} - 1;
    for (float& p : block.probability) p = 7;
    std::vector<std::vector<double>> expected(2);
    std::vector<double> sink_mass(2, 0.0);
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      std::uint32_t const kv = head / s.queries_per_kv_head;
      auto track = support::read_track(w.by_query.ref(), kvmeld::make_track(s, 0, 0, kv));
      if (!w.params.use_degree) track.degree.assign(track.size(), 1.0);
      o.position = track.position;
      o.sink = static_cast<double>(w.sinks[head]);
      auto const a = reference::attend(block.queries[head], track, o);
      expected[kv].resize(track.size(), 0.0);
      for (std::uint32_t r = 0; r < count; ++r) {
        std::size_t const at = std::size_t{head} * count + r;
        if (o.has_sink) sink_mass[kv] += std::exp(o.sink - a.lse[r]) / s.queries_per_kv_head;
        for (std::size_t j = 0; j < track.size(); ++j) {
          expected[kv][j] += a.probability[r][j] / s.queries_per_kv_head;
          if (reference::sees(r, count, j, track.size(), track.degree[j], o))
            block.probability[at * block.width + j] = static_cast<float>(a.probability[r][j]);
        }
      }
    }
    w.by_rows.observe_rows(batch, block.probability_view(), w.params);
    for (std::uint32_t h = 0; h < 2; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, 0, 0, h);
      double sum = 0, worst = 0, worst_rows = 0;
      for (std::uint32_t j = 0; j < expected[h].size(); ++j) {
        double const got = support::score_of(w.by_query.ledger(), t, j);
        sum += got;
        worst = std::max(worst, std::fabs(got - expected[h][j]));
        worst_rows =
            std::max(worst_rows, std::fabs(support::score_of(w.by_rows.ledger(), t, j) - expected[h][j]));
      }
      CHECK(worst < 1e-4);
      CHECK(worst_rows < 1e-5);
      CHECK(sum == Approx(count - sink_mass[h]).epsilon(1e-4));  // what the sinks took is nobody's score
      min_share = std::min(min_share, sum / count);
    }
  }
  CHECK(min_share < 0.9);
}
