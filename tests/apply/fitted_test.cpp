// Fitted values and degrees: against normal equations in double precision, and the identities of the fit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "layout/tensors.hpp"
#include "reference/fitted.hpp"
#include "score/query_talk.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace fitted_cases {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::quantity;
using kvmeld::reference_queries;
using kvmeld::reference_sample;
using support::dice;
using speech = score_test::query_talk<float>;

namespace {

// Evicts by attention that the tests set, and fits.
auto policy_with(kvmeld::merge::fitted const& merge, reference_queries const& kept,
                 quantity sinks = quantity::entries(1), quantity recents = quantity::entries(1)) {
  auto p = kvmeld::preset::fitting(kvmeld::preset::h2o::defaults(), kept);
  p.select = {sinks, recents, quantity::rest_of_budget()};
  p.merge = merge;
  return p;
}

kvmeld::merge::fitted fitting(bool values, bool degrees, float ridge, std::uint32_t iterations = 16) {
  kvmeld::merge::fitted m;
  m.values = values;
  m.degrees = degrees;
  m.ridge = ridge;
  m.iterations = iterations;
  return m;
}

// The scaled queries of the heads that read a KV head, at the listed tokens.
reference::matrix scaled(speech const& spoken, kvmeld::track t, reference::indices const& tokens) {
  reference::matrix out;
  for (auto const& of_head : spoken.rows_of_heads(t, tokens, 1 / std::sqrt(double(spoken.extent.key_dim)))) {
    for (reference::row const& q : of_head) {
      bool finite = true;
      for (double x : q) finite = finite && kvmeld::is_finite(static_cast<float>(x));
      if (finite) out.push_back(q);
    }
  }
  return out;
}

reference::indices sampled(reference_queries const& kept, std::uint32_t n) {
  std::vector<long> at;
  for (std::uint32_t i = 0; i < n; ++i) at.push_back(i);
  reference::indices out = reference::spread_sample(at, kept.count);
  if (kept.sample == reference_sample::last) {
    out.clear();
    for (std::uint32_t i = n - std::min(n, kept.count); i < n; ++i) out.push_back(i);
  }
  return out;
}

// Shows the queries of the first n tokens to the score, and gives the entries random scores.
template <class Cache> void observe(Cache& cache, speech const& spoken, std::uint32_t n, dice& d) {
  std::vector<float> lse(std::size_t{n} * spoken.extent.query_heads(), 1e30f);  // attention of nearly 0
  cache.observe({0, 0, n}, spoken.of(0, n),
                kvmeld::rows_by_head<float const>(lse.data(), n, spoken.extent.query_heads(), 1));
  support::for_tracks(spoken.extent, 0, [&](kvmeld::track t) {
    support::set_scores(cache.ledger(), t, support::random_scores(d, n));
  });
}

struct comparison {
  double worst_value = 0, most_value = 0, worst_degree = 0;
  void add(reference::track_state const& got, reference::track_state const& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t j = 0; j < got.size(); ++j) {
      worst_degree = std::max(worst_degree, std::fabs(got.degree[j] / wanted.degree[j] - 1));
      for (std::size_t c = 0; c < got.values[j].size(); ++c) {
        if (wanted.bad[j]) continue;
        worst_value = std::max(worst_value, std::fabs(got.values[j][c] - wanted.values[j][c]));
        most_value = std::max(most_value, std::fabs(wanted.values[j][c]));
      }
    }
  }
};

reference::indices stayed(reference::track_state const& after) {
  reference::indices out;
  for (long p : after.position) out.push_back(static_cast<std::size_t>(p));
  return out;
}

// One compression of random tracks, by a policy and options, against the reference.
template <class T> void check_fit(dice& d, kvmeld::plan_scope scope, double tolerance) {
  kvmeld::shape const s{
      1, 1, d.between(1, 2), d.between(1, 3), d.between(2, 40), d.between(1, 24), d.between(20, 120)};
  std::uint32_t const n = d.between(12, s.capacity), budget = d.between(6, n - 1);
  reference_queries const kept{d.pick({1u, 2u, 5u, 8u, 16u}),
                               d.chance(0.5) ? reference_sample::spread : reference_sample::last};
  bool const degrees = d.chance(0.5);
  auto const merge =
      fitting(!degrees || d.chance(0.7), degrees, d.pick({0.002f, 0.02f, 0.3f}), d.pick({1u, 5u, 16u}));
  support::engine_memory<T> memory(s, d.pick({"LSHTC", "LSTHC", "LSHCT"}));
  kvmeld::cache_options options = support::with_plan();
  options.scope = scope;
  auto cache = make_cache(memory, policy_with(merge, kept), options);
  std::uint32_t const frozen = d.chance(0.3) ? d.below(4) : 0;
  CAPTURE(n);
  CAPTURE(budget);
  CAPTURE(kept.count);
  CAPTURE(frozen);
  cache.open(0, n, frozen);
  memory.fill_sequence(d, 0, 0, n, support::texture::clusters);
  bool const bad = d.chance(0.3);
  std::uint32_t const bad_slot = 4 + d.below(n - 4);
  speech spoken(s);
  spoken.say(d, n, 1.5);
  observe(cache, spoken, n, d);
  std::vector<reference::track_state> before;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    for (std::uint32_t i = 0; i < n; ++i)
      ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
    before.push_back(support::read_track(ref, t));
    if (!bad) return;
    before.back().bad[bad_slot] = 1;
    support::write_row(memory.tensors().values, t, bad_slot, {kvmeld::bits_float(0x7fc00000u)});
  });
  if (d.chance(0.5)) {
    cache.compress({0}, kvmeld::budget::entries(budget));
  } else {
    cache.plan({0}, kvmeld::budget::entries(budget));
    cache.apply();
  }
  reference::fit_settings o;
  o.values = merge.values;
  o.degrees = merge.degrees;
  o.ridge = static_cast<double>(merge.ridge);
  o.iterations = merge.iterations;
  std::size_t item = 0;
  comparison c;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    reference::track_state const& all = before[item++];
    reference::track_state const after = support::read_track(cache.ref(), t);
    CHECK(after.size() == budget);
    std::vector<char> writable(n, 1);
    std::fill(writable.begin(), writable.begin() + frozen, char{0});
    auto const queries = scaled(spoken, t, sampled(kept, n));
    auto const wanted = reference::fitted(queries, all, stayed(after), writable, o);
    c.add(after, wanted);
    for (std::size_t j = 0; j < after.size(); ++j) {  // rows that may not change
      if (static_cast<std::size_t>(after.position[j]) >= frozen) continue;
      CHECK(after.values[j] == all.values[static_cast<std::size_t>(after.position[j])]);
      CHECK(after.degree[j] == all.degree[static_cast<std::size_t>(after.position[j])]);
    }
  });
  CHECK(c.worst_value <= tolerance * std::max(c.most_value, 1.0));
  CHECK(c.worst_degree <= 1e-3);
}

// The rows of a track as a layout loads them.
template <class Layout> reference::matrix loaded(Layout const& layout, kvmeld::track t, std::uint32_t n) {
  kvmeld::serial_team const team(nullptr, 0);
  std::uint32_t const d = layout.channels();
  std::vector<float> rows(std::size_t{n} * d);
  for (std::uint32_t i = 0; i < n; ++i)
    layout.load_tile(team, t, i, 1, 0, d, rows.data() + std::size_t{i} * d, d);
  reference::matrix out;
  for (std::uint32_t i = 0; i < n; ++i) out.emplace_back(rows.begin() + i * d, rows.begin() + (i + 1) * d);
  return out;
}
template <class Ref> reference::track_state loaded_track(Ref const& ref, kvmeld::track t) {
  std::uint32_t const n = ref.length(t);
  auto out = reference::fresh_track(loaded(ref.keys, t, n), loaded(ref.values, t, n));
  for (std::uint32_t i = 0; i < n; ++i) {
    out.degree[i] = static_cast<double>(ref.degree(t, i));
    out.position[i] = ref.position(t, i);
  }
  return out;
}

// A compression in tensors of any layout, against the reference.
template <class Keys, class Values> void fits_in(char const* name, double tolerance) {
  CAPTURE(std::string(name));
  kvmeld::shape const s{1, 2, 2, 2, 16, 16, 64};
  Keys keys(s, s.key_dim);
  Values values(s, s.value_dim);
  auto const policy = policy_with(fitting(true, true, 0.05f, 4), {8});
  kvmeld::merged_cache cache{kvmeld::host_executor(1), policy, kvmeld::kv{keys.view(), values.view()},
                             kvmeld::cache_options{s}};
  dice d(4110);
  cache.open(0, 60);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const k = support::random_rows(d, 60, 16, support::texture::walk);
    auto const v = support::random_rows(d, 60, 16, support::texture::noise);
    for (std::uint32_t i = 0; i < 60; ++i) {
      support::put_row(cache.ref().keys, t, i, k[i]);
      support::put_row(cache.ref().values, t, i, v[i]);
    }
  });
  speech spoken(s);
  spoken.say(d, 60, 1);
  observe(cache, spoken, 60, d);
  std::vector<reference::track_state> before;
  support::for_tracks(s, 0, [&](kvmeld::track t) { before.push_back(loaded_track(cache.ref(), t)); });
  cache.compress({0}, kvmeld::budget::entries(25));
  reference::fit_settings o;
  o.degrees = true;
  o.ridge = static_cast<double>(policy.merge.ridge);
  o.iterations = 4;
  comparison c;
  std::size_t item = 0;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const after = loaded_track(cache.ref(), t);
    REQUIRE(after.size() == 25);
    c.add(after, reference::fitted(scaled(spoken, t, sampled({8}, 60)), before[item++], stayed(after),
                                   std::vector<char>(60, 1), o));
  });
  CHECK(c.worst_value <= tolerance * c.most_value);
  CHECK(c.worst_degree <= 1e-3);
}

struct small {
  kvmeld::shape extent{1, 2, 2, 2, 8, 6, 40};
  support::engine_memory<float> memory{extent};
  dice d{77};
  speech spoken{extent};
};

}  // namespace

TEST_CASE("fitted values and degrees are those of the normal equations") {
  dice d(4101);
  for (int i = 0; i < 60; ++i) check_fit<float>(d, kvmeld::plan_scope::head, 2e-3);
  for (int i = 0; i < 20; ++i) check_fit<kvmeld::bfloat16>(d, kvmeld::plan_scope::head, 8e-3);
  for (int i = 0; i < 20; ++i) check_fit<kvmeld::float16>(d, kvmeld::plan_scope::layer, 3e-3);
}

TEST_CASE("rows of every layout are fitted") {
  using namespace layout_test;
  fits_in<transposed_tensor<kvmeld::float16>, transposed_tensor<float>>("along tokens", 1e-3);
  fits_in<paged_tensor<float, 7>, paged_tensor<kvmeld::float16, 16>>("pages", 2e-3);
  fits_in<vllm_keys_tensor<kvmeld::float16, 16>, vllm_values_tensor<float, 3>>("vLLM's", 1e-3);
  fits_in<ring_tensor<float>, interleaved_tensor<kvmeld::bfloat16>>("a ring, interleaved", 8e-3);
  fits_in<strided_tensor<float>, int8_tensor>("int8 with scales", 1e-2);
}

TEST_CASE("fewer queries than entries and a small ridge: their outputs are those before") {
  dice d(4102);
  for (int i = 0; i < 20; ++i) {
    kvmeld::shape const s{1, 1, 1, 2, 16, 12, 80};
    support::engine_memory<float> memory(s);
    reference_queries const kept{4};  // positions 0, 32 and 64
    auto cache = make_cache(memory, policy_with(fitting(true, false, 2e-5f), kept));
    auto evicting = make_cache(memory, kvmeld::policy{kvmeld::score::global{}, policy_with({}, kept).select,
                                                      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
    cache.open(0, 80);
    memory.fill_sequence(d, 0, 0, 80, support::texture::noise);
    speech spoken(s);
    spoken.say(d, 80, 1);
    observe(cache, spoken, 80, d);
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    auto const all = support::read_track(cache.ref(), t);
    cache.compress({0}, kvmeld::budget::entries(30));
    auto const after = support::read_track(cache.ref(), t);
    auto const plain = reference::kept_of(all, stayed(after));
    auto const queries = scaled(spoken, t, sampled(kept, 80));
    REQUIRE(queries.size() == 6);
    double const without = reference::output_error(queries, plain, all);
    CHECK(without > 1e-3);
    CHECK(reference::output_error(queries, after, all) < 1e-5 * without);
    CHECK(after.keys == plain.keys);
    CHECK(after.degree == plain.degree);
  }
}

TEST_CASE("the fit never makes the outputs of its queries, or their masses, worse") {
  dice d(4103);
  for (int i = 0; i < 40; ++i) {
    kvmeld::shape const s{1, 1, 1, d.between(1, 3), 10, d.between(1, 8), 90};
    support::engine_memory<float> memory(s);
    reference_queries const kept{d.pick({3u, 16u, 40u})};
    auto cache = make_cache(memory, policy_with(fitting(i % 2 == 0, i % 2 != 0, 0.001f), kept));
    cache.open(0, 90);
    memory.fill_sequence(d, 0, 0, 90, support::texture::walk);
    speech spoken(s);
    spoken.say(d, 90, d.pick({0.3, 2.0}));
    observe(cache, spoken, 90, d);
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    auto const all = support::read_track(cache.ref(), t);
    cache.compress({0}, kvmeld::budget::entries(d.between(5, 60)));
    auto const after = support::read_track(cache.ref(), t), plain = reference::kept_of(all, stayed(after));
    auto const queries = scaled(spoken, t, sampled(kept, 90));
    if (i % 2 == 0) {
      CHECK(reference::output_error(queries, after, all) <=
            1.001 * reference::output_error(queries, plain, all));
      continue;
    }
    auto const missing = [&](reference::track_state const& x) {
      double sum = 0;
      for (auto const& q : queries)
        sum += std::pow(
            1 - std::exp(reference::attend_all(q, x).log_sum - reference::attend_all(q, all).log_sum), 2);
      return sum;
    };
    CHECK(missing(after) <= 1.001 * missing(plain));
    for (std::size_t j = 0; j < after.size(); ++j)
      CHECK(after.degree[j] >= static_cast<double>(kvmeld::merge::fitted::least_factor) * plain.degree[j]);
  }
}

TEST_CASE("a track within its budget, or without a query, is left alone") {
  small f;
  auto cache = make_cache(f.memory, policy_with(fitting(true, true, 0.1f), {8}));
  cache.open(0, 30);
  f.memory.fill_sequence(f.d, 0, 0, 30, support::texture::noise);
  f.spoken.say(f.d, 30, 1);
  observe(cache, f.spoken, 30, f.d);
  auto const before = f.memory;
  cache.compress({0}, kvmeld::budget::entries(30));
  CHECK(f.memory == before);
  // Scores alone: the entries that stay keep their bits.
  cache.open(1, 30);
  f.memory.fill_sequence(f.d, 1, 0, 30, support::texture::noise);
  std::vector<reference::track_state> all;
  support::for_tracks(f.extent, 1, [&](kvmeld::track t) {
    support::set_scores(cache.ledger(), t, support::random_scores(f.d, 30));
    all.push_back(support::read_track(cache.ref(), t));
  });
  cache.compress({1}, kvmeld::budget::entries(12));
  std::size_t item = 0;
  support::for_tracks(f.extent, 1, [&](kvmeld::track t) {
    auto const after = support::read_track(cache.ref(), t),
               plain = reference::kept_of(all[item++], stayed(after));
    CHECK(after.values == plain.values);
    CHECK(after.degree == plain.degree);
  });
}

TEST_CASE("plan and apply give the bits of compress, and an edited plan is fitted as it is") {
  small f;
  auto policy = policy_with(fitting(true, true, 0.05f), {8});
  auto cache = make_cache(f.memory, policy, support::with_plan());
  cache.open(0, 40);
  f.memory.fill_sequence(f.d, 0, 0, 40, support::texture::noise);
  f.spoken.say(f.d, 40, 1);
  observe(cache, f.spoken, 40, f.d);
  auto other_memory = f.memory, third_memory = f.memory;
  auto other = cache.clone(other_memory.tensors()), third = cache.clone(third_memory.tensors());
  cache.compress({0}, kvmeld::budget::entries(17));
  other.plan({0}, kvmeld::budget::entries(17));
  other.apply();
  CHECK(f.memory == other_memory);
  CHECK(support::ledger_bytes(cache) == support::ledger_bytes(other));
  // Track 0 also loses an entry that the plan keeps; in track 1 a dropped entry merges instead.
  third.plan({0}, kvmeld::budget::entries(17));
  kvmeld::plan_ref const& plan = third.current_plan();
  kvmeld::track const a = kvmeld::make_track(f.extent, 0, 0, 0), b = kvmeld::make_track(f.extent, 0, 0, 1);
  auto const before_a = support::read_track(third.ref(), a), before_b = support::read_track(third.ref(), b);
  std::uint32_t gone = 3, merged = 1;
  while (plan.fates[plan.at(0, gone)] != kvmeld::fate::keep) ++gone;
  plan.fates[plan.at(0, gone)] = kvmeld::fate::drop;
  while (plan.fates[plan.at(1, merged)] != kvmeld::fate::drop) ++merged;
  plan.fates[plan.at(1, merged)] = kvmeld::fate::merge;
  plan.target[plan.at(1, merged)] = 0;
  third.apply();
  auto const after_a = support::read_track(third.ref(), a), after_b = support::read_track(third.ref(), b);
  CHECK(after_a.size() == 16);
  CHECK(after_b.size() == 17);
  reference::fit_settings o;
  o.degrees = true;
  o.ridge = static_cast<double>(policy.merge.ridge);
  comparison c;
  c.add(after_a, reference::fitted(scaled(f.spoken, a, sampled({8}, 40)), before_a, stayed(after_a),
                                   std::vector<char>(40, 1), o));
  CHECK(c.worst_value <= 2e-3 * c.most_value);
  CHECK(c.worst_degree <= 1e-3);
  auto const plain = reference::kept_of(before_b, stayed(after_b));
  for (std::size_t j = 1; j < after_b.size(); ++j) {
    CHECK(after_b.values[j] == plain.values[j]);
    CHECK(after_b.degree[j] == plain.degree[j]);
  }
}

TEST_CASE("which queries are kept does not depend on the calls, and queries with NaN are left out") {
  for (reference_sample const sample : {reference_sample::spread, reference_sample::last}) {
    small f;
    reference_queries const kept{8, sample};
    auto once = make_cache(f.memory, policy_with({}, kept)),
         often = make_cache(f.memory, policy_with({}, kept));
    f.spoken.say(f.d, 40, 1);
    f.spoken.rows[38 * f.spoken.floats_of_token() + 3] = std::numeric_limits<float>::quiet_NaN();
    f.spoken.rows[24 * f.spoken.floats_of_token() + 3] = std::numeric_limits<float>::infinity();
    std::vector<float> const lse(40 * 4, 1e30f);
    auto const lses = [&](std::uint32_t n) { return kvmeld::rows_by_head<float const>(lse.data(), n, 4, 1); };
    once.open(0, 40);
    once.observe({0, 0, 40}, f.spoken.of(0, 40), lses(40));
    often.open(0);
    for (std::uint32_t at = 0; at < 40;) {
      std::uint32_t const n = std::min(f.d.pick({1u, 3u, 11u}), 40 - at);
      often.append({0}, {n});
      often.commit({0}, {n});
      often.observe({0, 0, n}, f.spoken.of(at, n), lses(n));
      at += n;
    }
    support::for_tracks(f.extent, 0, [&](kvmeld::track t) {
      kvmeld::ledger_ref const &l = once.ledger(), &m = often.ledger();
      REQUIRE(l.table_floats == 2 * 8 * 9);
      std::vector<float> const a(l.table_of(t), l.table_of(t) + l.table_floats),
          b(m.table_of(t), m.table_of(t) + m.table_floats);
      CHECK(a == b);
      kvmeld::reference_rows const rows(a.data(), 2, 8, 8);
      reference::matrix got;
      for (std::uint32_t i = 0; i < rows.size(); ++i) {
        if (!rows.holds(i)) continue;
        got.emplace_back();
        for (std::uint32_t c = 0; c < 8; ++c)
          got.back().push_back(static_cast<double>(rows.data()[i * rows.stride() + c]));
      }
      auto const wanted = scaled(f.spoken, t, sampled(kept, 40));
      REQUIRE(got.size() == wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        for (std::size_t c = 0; c < 8; ++c) CHECK(got[i][c] == doctest::Approx(wanted[i][c]).epsilon(1e-5));
      }
    });
  }
}

TEST_CASE("a fork and a resumed sequence are fitted alike") {
  small f;
  auto cache = make_cache(f.memory, policy_with(fitting(true, true, 0.1f), {8}));
  cache.open(0, 40);
  f.memory.fill_sequence(f.d, 0, 0, 40, support::texture::noise);
  f.spoken.say(f.d, 40, 1);
  observe(cache, f.spoken, 40, f.d);
  auto const bytes = cache.save(0);
  cache.fork(0, 1);
  auto memory = f.memory;
  auto other = make_cache(memory, policy_with(fitting(true, true, 0.1f), {8}));
  other.resume(0, bytes);
  cache.compress({1}, kvmeld::budget::entries(15));
  other.compress({0}, kvmeld::budget::entries(15));
  cache.compress({0}, kvmeld::budget::entries(15));
  support::for_tracks(f.extent, 0, [&](kvmeld::track t) {
    kvmeld::track const forked = kvmeld::make_track(f.extent, 0, 1, t.kv_head);
    auto const a = support::read_track(cache.ref(), t), b = support::read_track(cache.ref(), forked),
               c = support::read_track(other.ref(), t);
    CHECK(a.values == b.values);
    CHECK(a.degree == b.degree);
    CHECK(a.values == c.values);
    CHECK(a.degree == c.degree);
  });
  CHECK(cache.save(0) == other.save(0));
}

TEST_CASE("a value that its storage cannot hold stays") {
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 8};
  support::engine_memory<kvmeld::float16> memory(s);
  auto cache = make_cache(
      memory, policy_with(fitting(true, false, 1e-4f), {8}, quantity::entries(0), quantity::entries(1)));
  cache.open(0, 8);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  // All attention goes to entries of 60000, but what stays are the others.
  for (std::uint32_t i = 0; i < 8; ++i) {
    support::write_row(memory.tensors().keys, t, i, {i < 6 ? 20.0f : 0.0f, 0.0f});
    support::write_row(memory.tensors().values, t, i, {i < 6 ? 60000.0f : -60000.0f});
  }
  speech spoken(s);
  for (int i = 0; i < 8; ++i) spoken.rows.insert(spoken.rows.end(), {i == 3 ? -1.0f : 1.0f, 0.0f});
  dice d(3);
  observe(cache, spoken, 8, d);
  support::set_scores(cache.ledger(), t, {0, 0, 0, 0, 0, 0, 5, 1});
  cache.compress({0}, kvmeld::budget::entries(2));
  auto const after = support::read_track(cache.ref(), t);
  for (auto const& v : after.values) CHECK(std::fabs(v[0]) <= 65504.0);
}

TEST_CASE("parameters and options that a fit cannot use are refused by name") {
  small f;
  auto const made = [&](auto policy, kvmeld::cache_options options = {}) {
    return refusal_of([&] { make_cache(f.memory, policy, options); });
  };
  CHECK(made(policy_with({}, {8})).empty());
  check_text(made(policy_with(fitting(true, false, 0.0f), {8})),
             {"merge::fitted.ridge is 0;", "above 0 and finite"});
  check_text(made(policy_with(fitting(false, false, 0.1f), {8})), {"merge::fitted.values is false;"});
  check_text(made(policy_with(fitting(true, true, 0.1f, 0), {8})),
             {"merge::fitted.iterations is 0;", "at least 1"});
  check_text(made(policy_with({}, {0})), {"score::keeping_queries.kept.count is 0;", "1 to 1024"});
  check_text(made(policy_with({}, {1025})), {"score::keeping_queries.kept.count is 1025;", "1 to 1024"});
  kvmeld::cache_options options;
  options.bias = kvmeld::bias_support::none;
  CHECK(made(policy_with(fitting(true, false, 0.1f), {8}), options).empty());
  check_text(made(policy_with(fitting(true, true, 0.1f), {8}), options), {"bias is bias_support::none;"});
  options.bias = kvmeld::bias_support::shared;
  options.scope = kvmeld::plan_scope::layer;
  CHECK(made(policy_with(fitting(true, false, 0.1f), {8}), options).empty());
  check_text(made(policy_with(fitting(true, true, 0.1f), {8}), options),
             {"bias is bias_support::shared;", "every head fits degrees"});
  auto const attention = refusal_of([&] {
    auto cache = make_cache(f.memory, policy_with({}, {8}));
    cache.open(0, 4);
    std::vector<float> const numbers(4 * 4 * 8, 0.5f);
    cache.observe_rows({0, 0, 4}, kvmeld::rows_by_head(numbers.data(), 4, 4, 8));
  });
  check_text(attention, {"observe_rows", "absorbs queries"});
}

}  // namespace fitted_cases
