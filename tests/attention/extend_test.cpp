// attention::extend against softmax attention in double precision, for random shapes, and independent of threads.
#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "reference/attention.hpp"
#include "support/cache_bytes.hpp"
#include "support/lane_executor.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace {

// A cache with ragged heads and degrees, as merging leaves it; sequence 2 is empty.
template <class T> struct ragged_cache {
  support::engine_memory<T> memory;
  decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) cache;

  ragged_cache(kvmeld::shape const& s, support::dice& d)
      : memory(s), cache(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) {
    for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      std::uint32_t const n = sequence == 2 ? 0 : d.between(1, s.capacity);
      memory.fill_sequence(d, sequence, 0, n, support::texture::clusters);
      cache.open(sequence, n);
      support::for_tracks(s, sequence, [&](kvmeld::track t) {
        if (n > 1) cache.ledger().length[t.index] = d.between(1, n);
        for (kvmeld::slot_t slot = 0; slot < n; ++slot)
          if (d.chance(0.4))
            cache.ledger().degree[cache.ledger().at(t, slot)] = static_cast<float>(d.between(2, 90));
      });
    }
  }
};

// Queries, outputs and log-sum-exps of one call, with rows to spare that nobody may write.
template <class Q, class Out> struct call {
  kvmeld::shape extent;
  std::vector<std::uint32_t> sequences, counts;
  std::uint32_t most = 0;
  std::vector<Q> q;
  std::vector<Out> out;
  std::vector<float> lse;

  call(kvmeld::shape const& s, support::dice& d, std::uint32_t most_queries) : extent(s) {
    for (std::uint32_t i = s.sequences; i-- > 0;) {
      sequences.push_back(i);
      counts.push_back(d.below(most_queries + 1));
      most = kvmeld::max_of(most, counts.back());
    }
    most += 1;  // a spare row
    std::size_t const rows = sequences.size() * most * s.query_heads();
    for (std::size_t i = 0; i < rows * s.key_dim; ++i)
      q.push_back(kvmeld::element_traits<Q>::from_float(static_cast<float>(d.normal())));
    out.assign(rows * s.value_dim, kvmeld::element_traits<Out>::from_float(-77.0f));
    lse.assign(rows, -77.0f);
  }
  kvmeld::query_batch batch(std::uint32_t layer) const { return {layer, sequences, counts}; }
  auto queries() const {
    return kvmeld::rows_by_token<Q const>(q.data(), most, extent.query_heads(), extent.key_dim);
  }
  auto outputs() { return kvmeld::rows_by_token(out.data(), most, extent.query_heads(), extent.value_dim); }
  auto sums() { return kvmeld::rows_by_head(lse.data(), most, extent.query_heads(), 1); }
};

template <class T> double as_double(T x) {
  return static_cast<double>(kvmeld::element_traits<std::remove_const_t<T>>::to_float(x));
}

template <class T, class Q, class Out> void against_reference(std::uint64_t seed, double tolerance) {
  support::dice d(seed);
  kvmeld::shape const s{
      2, 3, d.between(1, 3), d.between(1, 4), d.between(1, 40), d.between(1, 40), d.between(2, 190)};
  ragged_cache<T> x(s, d);
  call<Q, Out> c(s, d, d.pick({1u, 4u, 21u}));
  kvmeld::attention_params params;
  params.causal = d.chance(0.7);
  params.use_degree = d.chance(0.7);
  if (d.chance(0.5)) params.scale = static_cast<float>(0.05 + d.uniform());
  if (d.chance(0.5)) params.softcap = static_cast<float>(0.5 + 4 * d.uniform());
  bool const wants_lse = d.chance(0.8);
  std::uint32_t const layer = d.below(2);
  CAPTURE(seed);
  kvmeld::attention::extend(x.cache.executor(), params, c.batch(layer), c.queries(), x.cache.ref(),
                            c.outputs(), wants_lse ? c.sums() : kvmeld::head_rows<float>{});

  reference::attention_options options;
  options.scale =
      params.scale != 0.0f ? static_cast<double>(params.scale) : 1 / std::sqrt(double{1} * s.key_dim);
  options.softcap = static_cast<double>(params.softcap);
  options.causal = params.causal;
  double worst = 0, worst_lse = 0;
  std::size_t touched = 0, blind = 0;
  for (std::uint32_t i = 0; i < c.sequences.size(); ++i) {
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      kvmeld::track const t = kvmeld::make_track(s, layer, c.sequences[i], head / s.group);
      auto track = support::read_track(x.cache.ref(), t);
      if (!params.use_degree) track.degree.assign(track.size(), 1.0);
      reference::matrix queries;
      for (std::uint32_t m = 0; m < c.counts[i]; ++m) {
        reference::row row;
        for (std::uint32_t k = 0; k < s.key_dim; ++k)
          row.push_back(as_double(c.queries().row(i, head, m)[k]));
        queries.push_back(row);
      }
      auto const expected = reference::attend(queries, track, options);
      for (std::uint32_t m = 0; m < c.most; ++m) {
        Out const* const got = c.outputs().row(i, head, m);
        float const sum = *c.sums().row(i, head, m);
        for (std::uint32_t k = 0; k < s.value_dim; ++k) {
          double const wanted = m >= c.counts[i] ? -77.0 : track.size() == 0 ? 0.0 : expected.output[m][k];
          worst = std::max(worst, std::fabs(as_double(got[k]) - wanted));
        }
        if (m >= c.counts[i] || !wants_lse) {
          touched += sum == -77.0f ? 0 : 1;
        } else if (expected.lse[m] == reference::empty_lse) {
          ++blind;
          touched += sum == kvmeld::element_traits<float>::lowest ? 0 : 1;
        } else {
          worst_lse = std::max(worst_lse, std::fabs(static_cast<double>(sum) - expected.lse[m]));
        }
      }
    }
  }
  CHECK(worst < tolerance);
  CHECK(worst_lse < 2e-5);
  CHECK(touched == 0);
}

}  // namespace

TEST_CASE("extend is softmax attention with log-degree bias") {
  using kvmeld::bfloat16;
  using kvmeld::half;
  for (std::uint64_t seed = 0; seed < 60; ++seed) against_reference<float, float, float>(seed, 3e-5);
  for (std::uint64_t seed = 100; seed < 120; ++seed) against_reference<half, half, float>(seed, 3e-5);
  for (std::uint64_t seed = 200; seed < 220; ++seed)
    against_reference<bfloat16, bfloat16, bfloat16>(seed, 0.02);
  for (std::uint64_t seed = 300; seed < 320; ++seed) against_reference<float, bfloat16, half>(seed, 0.003);
}

TEST_CASE("extend gives the same bits for any number of threads and lanes, and for each sequence alone") {
  support::dice d(77);
  kvmeld::shape const s{1, 3, 2, 3, 32, 24, 150};
  ragged_cache<float> x(s, d);
  call<float, float> const start(s, d, 20);
  auto const run = [&](auto executor) {
    call<float, float> c = start;
    kvmeld::attention::extend(executor, {}, c.batch(0), c.queries(), x.cache.ref(), c.outputs(), c.sums());
    return c;
  };
  auto const one = run(kvmeld::host_executor(1));
  for (std::uint32_t threads : {2u, 3u, 8u}) {
    auto const many = run(kvmeld::host_executor(threads));
    CHECK(support::same_bits(one.out, many.out));
    CHECK(support::same_bits(one.lse, many.lse));
  }
#if !defined(__FAST_MATH__)
  auto const lanes = run(support::lane_executor(3, 2, support::tile_order::descending));
  CHECK(support::same_bits(one.out, lanes.out));
  CHECK(support::same_bits(one.lse, lanes.lse));
#endif
  for (std::uint32_t i = 0; i < 3; ++i) {  // batch composition does not show
    call<float, float> c = start;
    c.sequences = {start.sequences[i]};
    c.counts = {start.counts[i]};
    auto const from = [&](auto rows) {
      rows.data += i * rows.sequence_stride;
      return rows;
    };
    kvmeld::host_executor executor(1);
    kvmeld::attention::extend(executor, {}, c.batch(0), from(c.queries()), x.cache.ref(), from(c.outputs()),
                              from(c.sums()));
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      for (std::uint32_t m = 0; m < c.counts[0]; ++m) {
        auto const at = static_cast<std::size_t>(from(c.sums()).row(0, head, m) - c.lse.data());
        CHECK(kvmeld::float_bits(c.lse[at]) == kvmeld::float_bits(one.lse[at]));
        auto const begin = static_cast<std::size_t>(from(c.outputs()).row(0, head, m) - c.out.data());
        std::vector<float> const mine(&c.out[begin], &c.out[begin] + s.value_dim);
        std::vector<float> const theirs(&one.out[begin], &one.out[begin] + s.value_dim);
        CHECK(support::same_bits(mine, theirs));
      }
    }
  }
}

TEST_CASE("large logits neither overflow nor vanish") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 2, 130};
  support::engine_memory<float> memory(s);
  support::rows const keys(130, std::vector<float>{100, 0, 0, 0});
  support::rows values(130, std::vector<float>{1, -1});
  support::rows far = keys;
  far[129] = {101, 0, 0, 0};
  values[129] = {5, 5};
  memory.fill({0, 0, 0, 0}, 0, far, values);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 130);
  std::vector<float> const q{200, 0, 0, 0};
  std::vector<float> out(2), lse(1);
  std::vector<std::uint32_t> const zero{0}, one{1};
  kvmeld::attention_params params;
  params.scale = 1.0f;
  kvmeld::attention::extend(
      cache.executor(), params, {0, zero, one}, kvmeld::rows_by_token<float const>(q.data(), 1, 1, 4),
      cache.ref(), kvmeld::rows_by_token(out.data(), 1, 1, 2), kvmeld::rows_by_head(lse.data(), 1, 1, 1));
  CHECK(out[0] == 5.0f);
  CHECK(out[1] == 5.0f);
  CHECK(lse[0] == 20200.0f);
}

TEST_CASE("extend refuses a batch that does not fit") {
  kvmeld::shape const s{2, 3, 1, 1, 4, 4, 10};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  auto const refused = [&](kvmeld::query_batch const& b) {
    try {
      kvmeld::attention::extend(cache.executor(), {}, b, kvmeld::head_rows<float const>{}, cache.ref(),
                                kvmeld::head_rows<float>{});
    } catch (kvmeld::invalid_argument const& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  std::vector<std::uint32_t> const one{1}, two{1, 2}, five{5};
  CHECK(refused({2, one, one}) == "attention::extend: layer is 2; allowed are 0 to 1");
  CHECK(refused({0, two, one}) == "attention::extend: 2 sequences but 1 query counts; give one each");
  CHECK(refused({0, five, one}) == "attention::extend: sequence is 5; allowed are 0 to 2");
  std::vector<std::uint32_t> const none{0};
  CHECK(refused({0, one, none}).empty());
  CHECK(refused({0, one, one}) ==
        "attention::extend: query.data is null; give the rows (only lse may be empty)");
}
