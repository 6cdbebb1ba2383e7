// Channels of query heads, and KVzip+, whose score is made of them: against plain loops in double precision.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/ragged_call.hpp"
#include "attention/shared_cache.hpp"
#include "cache/refusal.hpp"
#include "reference/row_scores.hpp"
#include "scores_of.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace max_output_cases {

using kvmeld::float16;
using kvmeld::quantity;
using score_test::scores_of;
using support::dice;

namespace {

// W_O of every layer with gaps between heads and rows, of short numbers.
struct projections {
  kvmeld::shape extent;
  std::uint32_t rows;
  std::int64_t head_stride, row_stride;
  std::vector<std::vector<float16>> w;
  std::vector<float16 const*> layers;

  projections(dice& d, kvmeld::shape const& s)
      : extent(s),
        rows(d.between(1, 40)),
        head_stride(s.value_dim + d.below(3)),
        row_stride(head_stride * s.query_heads() + d.below(5)),
        w(s.layers) {
    for (auto& layer : w) {
      for (std::int64_t i = 0; i < row_stride * rows; ++i)
        layer.push_back(
            kvmeld::element_traits<float16>::from_float(static_cast<float>(d.between(0, 16)) / 8.0f - 1.0f));
      layers.push_back(layer.data());
    }
  }
  kvmeld::output_projection<float16> view() const { return {layers.data(), rows, row_stride, head_stride}; }
  // [head of the KV head][row]
  std::vector<std::vector<reference::row>> of(kvmeld::track t) const {
    std::vector<std::vector<reference::row>> out(extent.queries_per_kv_head);
    for (std::size_t h = 0; h < out.size(); ++h) {
      for (std::uint32_t r = 0; r < rows; ++r) {
        auto const head = static_cast<std::int64_t>(t.kv_head * extent.queries_per_kv_head + h);
        float16 const* const from = w[t.layer].data() + r * row_stride + head * head_stride;
        out[h].emplace_back();
        for (std::uint32_t c = 0; c < extent.value_dim; ++c)
          out[h].back().push_back(static_cast<double>(kvmeld::element_traits<float16>::to_float(from[c])));
      }
    }
    return out;
  }
};

// A score that keeps what each query head gave, and one that keeps their mean.
struct by_head : kvmeld::score::global {
  kvmeld::attention_fold how{kvmeld::head_fold::each, kvmeld::row_fold::sum};
  static constexpr kvmeld::score_facts facts = kvmeld::changed_facts(
      kvmeld::score::global::facts, &kvmeld::score_facts::max_channels, kvmeld::max_channels);
  static kvmeld::channel_list channels(kvmeld::shape const& s) {
    return kvmeld::score::max_output<>::channels(s);
  }
  KVMELD_HD kvmeld::attention_fold fold() const { return how; }
  KVMELD_HD kvmeld::channel_update update(std::uint32_t c, std::uint32_t, std::uint32_t) const {
    return {static_cast<std::int32_t>(c), 0};
  }
};
struct of_mean : kvmeld::score::global {
  kvmeld::attention_fold how{};
  KVMELD_HD kvmeld::attention_fold fold() const { return how; }
};

// The mean of the channels of each entry and member.
template <class Cache> std::vector<double> means_of(Cache const& cache) {
  kvmeld::ledger_ref const& l = cache.ledger();
  std::vector<double> out;
  for (std::uint32_t sequence = 0; sequence < l.extent.sequences; ++sequence) {
    support::for_tracks(l.extent, sequence, [&](kvmeld::track t) {
      auto const add = [&](float* const* data, std::size_t i) {
        double sum = 0;
        for (std::uint32_t c = 0; c < l.channels.count; ++c) sum += static_cast<double>(data[c][i]);
        out.push_back(sum / l.channels.count);
      };
      for (std::uint32_t i = 0; i < l.length[t.index]; ++i) add(l.channel_data, l.at(t, i));
      for (std::uint32_t i = 0; Cache::shares && i < l.members.count[t.index]; ++i)
        add(l.members.channel_data, l.members.at(t, i));
    });
  }
  return out;
}

void check_same(std::vector<double> const& got, std::vector<double> const& wanted) {
  REQUIRE(got.size() == wanted.size());
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - wanted[i]) / (1 + wanted[i]));
    sum += wanted[i];
  }
  CHECK(worst < 1e-5);
  CHECK(sum > 0);
}

kvmeld::attention_params all_seen() {
  kvmeld::attention_params params;
  params.causal = false;
  return params;
}

auto no_pins() {
  return kvmeld::preset::kvzip_plus::for_budget<float>({}, quantity::entries(0), quantity::entries(0));
}

}  // namespace

TEST_CASE("KVzip+: the most that an entry added to an output, from every source of attention") {
  dice d(411);
  for (int round = 0; round < 25; ++round) {
    kvmeld::shape const s{2, 1, d.between(1, 2), d.between(1, 8), d.pick({8u, 24u}), d.between(1, 40), 150};
    support::engine_memory<float> memory(s);
    projections const w(d, s);
    bool const projects = d.chance(0.7), weighs = d.chance(0.7);
    auto const policy =
        kvmeld::preset::kvzip_plus::for_budget(projects ? w.view() : kvmeld::output_projection<float16>{});
    std::uint32_t const entries = d.between(20, 150), n = d.between(1, 20), layer = d.below(2), slot = 0;
    memory.fill_sequence(d, 0, 0, entries, support::texture::noise);
    auto cache = support::make_cache(memory, policy), given = support::make_cache(memory, policy),
         fused = support::make_cache(memory, policy);
    kvmeld::merged_cache generic(kvmeld::host_executor(2, kvmeld::tuning::off), policy, memory.tensors(),
                                 kvmeld::cache_options{s});
    cache.open(0, entries), given.open(0, entries), fused.open(0, entries), generic.open(0, entries);
    CHECK(cache.needs_observation().when == kvmeld::observation::replay);
    CHECK_FALSE(cache.needs_observation().queries);
    CHECK(cache.ledger().channels.count == s.queries_per_kv_head);
    std::uint32_t const heads = s.query_heads();
    std::vector<std::vector<double>> most(heads, std::vector<double>(entries));
    for (int block = 0; block < 2; ++block) {  // a second reading in two parts
      std::vector<float> q(std::size_t{n} * heads * s.key_dim), one_over_norms(n),
          out(std::size_t{n} * heads * s.value_dim), norms(std::size_t{n} * heads),
          p(std::size_t{n} * heads * entries);
      for (float& x : q) x = static_cast<float>(d.normal());
      for (float& x : one_over_norms) x = static_cast<float>(0.1 + d.uniform());
      kvmeld::query_sample sample;
      sample.weights = one_over_norms.data();
      if (!weighs) sample = {};
      for (std::uint32_t head = 0; head < heads; ++head) {
        auto const track =
            support::read_track(cache.ref(), kvmeld::make_track(s, layer, 0, head / s.queries_per_kv_head));
        reference::attention_options o;
        o.scale = 1 / std::sqrt(static_cast<double>(s.key_dim));
        o.causal = false;
        reference::matrix rows;
        for (std::uint32_t r = 0; r < n; ++r) {
          float const* const from = q.data() + (std::size_t{r} * heads + head) * s.key_dim;
          rows.emplace_back(from, from + s.key_dim);
        }
        auto const a = reference::attend(rows, track, o);
        for (std::uint32_t r = 0; r < n; ++r) {
          norms[std::size_t{head} * n + r] = static_cast<float>(a.lse[r]);
          for (std::uint32_t i = 0; i < entries; ++i) {
            double const x = a.probability[r][i];
            p[(std::size_t{head} * n + r) * entries + i] = static_cast<float>(x);
            most[head][i] = std::max(most[head][i], weighs ? static_cast<double>(one_over_norms[r]) * x : x);
          }
        }
      }
      kvmeld::query_batch const batch{layer, slot, n};
      auto const queries = kvmeld::rows_by_token<float const>(q.data(), n, heads, s.key_dim);
      auto const lse = kvmeld::rows_by_head<float const>(norms.data(), n, heads, 1);
      kvmeld::attention_params const again = all_seen();
      cache.observe({layer, slot, n}, queries, lse, again, sample);
      generic.observe(batch, queries, lse, all_seen(), sample);
      given.observe_rows(batch, kvmeld::rows_by_head<float const>(p.data(), n, heads, entries), all_seen(),
                         sample);
      std::vector<float> room(kvmeld::attention::observed_floats(s, 1, n));
      REQUIRE(kvmeld::attention::attend_and_observe(fused, batch, queries,
                                                    kvmeld::rows_by_token(out.data(), n, heads, s.value_dim),
                                                    {room.data(), room.size()}, {}, all_seen(), sample)
                  .ok());
    }
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, layer, 0, h);
      auto const first = most.begin() + h * s.queries_per_kv_head;
      auto const wanted =
          reference::max_output(support::read_track(cache.ref(), t), {first, first + s.queries_per_kv_head},
                                projects ? w.of(t) : std::vector<std::vector<reference::row>>{});
      for (auto const& got :
           {scores_of(policy.score, cache.ref(), t, score_test::tuned()),
            scores_of(policy.score, given.ref(), t), scores_of(policy.score, generic.ref(), t),
            scores_of(policy.score, fused.ref(), t)}) {
        double worst = 0;
        for (std::uint32_t i = 0; i < entries; ++i)
          worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]) / (1e-3 + wanted[i]));
        CHECK(worst < 1e-4);
      }
    }
  }
}

TEST_CASE("channels of heads hold what a mean over heads is the mean of") {
  dice d(412);
  for (int i = 0; i < 6; ++i) {
    kvmeld::shape const s{1, 3, d.between(1, 2), d.between(1, 8), 8, 4, 90};
    attention_test::call<float, float> c(s, d, 6);
    auto const observed = [&](auto& cache) {
      kvmeld::attention::attend(cache.executor(), c.batch(0), c.queries(), cache.ref(), c.outputs(),
                                c.sums());
      cache.observe(c.batch(0), c.queries(), c.sums());
      return means_of(cache);
    };
    auto const sharing = [&](auto const& score) {
      return kvmeld::policy{score, kvmeld::select::tiers{},
                            kvmeld::identify::nearest_center<kvmeld::admit::threshold>{},
                            kvmeld::merge::shared{}};
    };
    for (std::uint32_t& n : c.counts) n = 3;
    std::uint64_t const seed = d.next();
    dice one(seed), other(seed);
    auto const apart = sharing(by_head{});
    auto const together = sharing(of_mean{});
    using apart_type = std::decay_t<decltype(apart)>;
    using together_type = std::decay_t<decltype(together)>;
    attention_test::shared_cache<float, apart_type> a(s, one, 20, 0, 1, apart);
    attention_test::shared_cache<float, together_type> b(s, other, 20, 0, 1, together);
    c.fit(a.cache.ledger());
    check_same(observed(a.cache), observed(b.cache));

    // Attention inside chunks.
    std::uint32_t const n = d.between(20, 90);
    support::engine_memory<float> memory(s);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    std::vector<float> q(std::size_t{n} * s.query_heads() * s.key_dim);
    for (float& x : q) x = static_cast<float>(d.normal());
    auto const inside = [&](auto score) {
      score.how.chunk = 17;
      score.how.apart = 2;
      auto cache =
          support::make_cache(memory, kvmeld::policy{score, kvmeld::select::top{},
                                                     kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
      cache.open(0, n);
      cache.observe({0, 0, n}, kvmeld::rows_by_token<float const>(q.data(), n, s.query_heads(), s.key_dim),
                    {});
      return means_of(cache);
    };
    check_same(inside(by_head{}), inside(of_mean{}));
  }
}

TEST_CASE("KVzip+: which entries stay, and that a saved or forked sequence keeps the same ones") {
  kvmeld::shape const s{1, 3, 1, 2, 1, 1, 8};
  support::engine_memory<float> memory(s);
  float const w0[] = {1, 2, 0, 4};  // rows of W_O: (1, 2) and (0, 4), for heads 0 and 1
  float const* const layers[] = {w0};
  kvmeld::output_projection<float> const w{layers, 2, 2, 1};
  auto policy = kvmeld::preset::kvzip_plus::for_budget(w);
  policy.select.sinks = quantity::entries(1);
  auto cache = support::make_cache(memory, policy);
  for (std::uint32_t q : {0u, 1u, 2u})
    memory.fill(kvmeld::make_track(s, 0, q, 0), 0, support::rows(5, {1}), {{0}, {1}, {2}, {-8}, {1}});
  cache.open(0, 5);
  std::vector<float> const rows{0.1f, 0.5f, 0.2f, 0.1f, 0.1f,   // head 0, query 0
                                0.1f, 0.1f, 0.1f, 0.1f, 0.6f,   // head 0, query 1
                                0.2f, 0.1f, 0.4f, 0.0f, 0.1f,   // head 1, query 0
                                0.2f, 0.2f, 0.1f, 0.0f, 0.5f};  // head 1, query 1
  std::vector<float> const weights{1.0f, 0.5f};
  cache.observe_rows({0, 0, 2}, kvmeld::rows_by_head(rows.data(), 2, 2, 5), all_seen(),
                     {0, 1, weights.data()});
  // Reaches are |v| and |v| sqrt(20). Without the sink: 0.5, 0.4 * 2 * 4.47, 0.8, 0.25 * 4.47.
  auto const scores = scores_of(policy.score, cache.ref(), kvmeld::make_track(s, 0, 0, 0));
  std::vector<double> const wanted{0, 0.5, 0.8 * std::sqrt(20.0), 0.8, 0.25 * std::sqrt(20.0)};
  for (std::size_t i = 0; i < 5; ++i)
    CHECK(static_cast<double>(scores[i]) == doctest::Approx(wanted[i]).epsilon(1e-6));

  cache.fork(0, 1, 0);
  auto const saved = cache.save(0);
  cache.resume(2, saved);
  CHECK(cache.save(1).size() == saved.size());
  cache.compress({0, 1, 2}, kvmeld::budget::entries(3));
  for (std::uint32_t q : {0u, 1u, 2u}) {
    kvmeld::track const t = kvmeld::make_track(s, 0, q, 0);
    REQUIRE(cache.ref().length(t) == 3);
    std::vector<int> kept;
    for (std::uint32_t i = 0; i < 3; ++i) kept.push_back(cache.ref().position(t, i));
    CHECK(kept == std::vector<int>{0, 2, 4});
  }
}

TEST_CASE("KVzip+: what is refused") {
  using cache_test::refusal_of;
  kvmeld::shape const s{1, 1, 1, 9, 4, 4, 16};
  support::engine_memory<float> memory(s);
  CHECK(refusal_of([&] { support::make_cache(memory, no_pins()); }) ==
        "merged_cache: policy: number of query heads of a KV head is 9; it must be at most 8, because "
        "score::max_output keeps a number for each");
  auto policy = no_pins();
  float const* const layers[1] = {};
  policy.score.projection.layers = layers;
  CHECK(policy.score.problem() == "policy: score::max_output.projection.rows is 0; it must be at least 1");
  policy.score.projection.rows = 1;
  CHECK(policy.score.problem().empty());
  CHECK(kvmeld::full_name_of(policy.score) == "max_output");

  // A cache whose track is above its budget and that was shown nothing.
  kvmeld::shape const small{1, 1, 1, 8, 4, 4, 16};
  support::engine_memory<float> more(small);
  auto cache = support::make_cache(more, kvmeld::compose::composed_of(no_pins()));
  CHECK(cache.ledger().channels.count == 8);
  cache.open(0, 16);
  cache_test::check_text(refusal_of([&] { cache.compress({0}, kvmeld::budget::entries(8)); }),
                         {"number of observed rows", "is 0; it must be at least 1"});
}

}  // namespace max_output_cases
