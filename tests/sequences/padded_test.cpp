// Tracks that are padded to one length hold the entries that they would hold without.
#include "padded.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace padded_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 96};

// A life of two sequences; returns how often their tracks were of different lengths.
template <class Policy> int live(char const* name, Policy const& policy, kvmeld::shortfall fallback) {
  CAPTURE(std::string(name));
  CAPTURE(int(fallback));
  int ragged = 0;
  padded_pair x(kvmeld::host_executor(1), policy, extent, 40);
  x.open(0, 60, 3);
  x.open(1, 50);
  auto const check = [&] {
    for (std::uint32_t q : {0u, 1u}) {
      x.check(q);
      check_padding(x.cache, q, x.plain.longest(q));
    }
  };
  check();
  for (int step = 0; step < 5; ++step) {
    std::uint32_t const least = std::max(18u, x.plain.longest(0) * 3 / 10 + 6);
    kvmeld::testing::watch const before(x.cache);
    x.compress({1, 0}, least, 44, fallback);
    CHECK(before.after_compress(x.cache, {1, 0}) == "");
    check();
    for (std::uint32_t q : {0u, 1u}) ragged += x.ragged(q) ? 1 : 0;
    x.feed(0, 4, 3);
    x.feed(1, 3, 3);
    check();
    if (step == 1) {
      std::uint32_t const to = x.cache.tokens(0) - 2;
      CHECK(x.cache.compressed_at(0) + 3 == x.cache.tokens(0));
      x.both([&](auto& c) { c.truncate(0, to); });
      check();
    }
    if (step == 3) {  // tracks lose different numbers of entries, and those of one length none
      x.both([&](auto& c) { c.drop_positions(0, 20, 55); });
      check();
      x.both([&](auto& c) { c.drop_positions(1, 20, 21); });
      check();
      x.feed(0, 2, 1);
      x.both([&](auto& c) { c.truncate(0, c.tokens(0) - 1); });
      check();
    }
    if (step == 2) {  // a copy, and a sequence that was away, go on as the ones they came from
      x.both([&](auto& c) { c.fork(1, 2, 1, kvmeld::sequence_id{5}); });
      x.check(2);
      check_padding(x.cache, 2, x.cache.longest(1));
      x.both([&](auto& c) {
        auto const bytes = c.save(2);
        c.close(2);
        c.resume(2, bytes);
      });
      x.compress({2}, 20, 30, fallback);
      x.check(2);
      check_padding(x.cache, 2, x.plain.longest(2));
    }
  }
  x.feed(0, 2, 2);  // compressed twice without a token in between
  x.compress({0}, 30, 44, fallback);
  x.compress({0}, 20, 40, fallback);
  check();
  return ragged;
}

std::vector<float> random_queries(support::dice& d, std::uint32_t queries) {
  std::vector<float> q(std::size_t{queries} * extent.query_heads() * extent.key_dim);
  for (float& x : q) x = static_cast<float>(d.normal());
  return q;
}

// Outputs and log-sum-exps.
template <class Cache>
std::vector<float> attend(Cache& cache, kvmeld::host_executor executor, std::vector<float> const& q,
                          std::uint32_t queries, kvmeld::attention_params const& params,
                          std::uint32_t parts) {
  std::vector<float> out(std::size_t{queries} * extent.query_heads() * extent.value_dim);
  std::vector<float> lse(std::size_t{queries} * extent.query_heads());
  std::vector<float> room(kvmeld::attention::split_floats(extent, parts, 1, queries));
  kvmeld::attention::attend(
      executor, {1, 0, queries},
      kvmeld::rows_by_token<float const>(q.data(), queries, extent.query_heads(), extent.key_dim),
      cache.ref(), kvmeld::rows_by_token(out.data(), queries, extent.query_heads(), extent.value_dim),
      kvmeld::rows_by_head(lse.data(), queries, extent.query_heads(), 1), params,
      {parts, {room.data(), room.size()}, 64});
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

bool close(std::vector<float> const& a, std::vector<float> const& b) {
  double most = 0, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(b[i])));
    apart = std::max(apart, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    if (!kvmeld::is_finite(a[i])) return false;
  }
  return apart <= 1e-6 * most;
}

// Two heads of 20 entries and two of 40; behind the short ones lie keys of evicted rows that were no numbers.
auto uneven_pair(std::uint32_t seed) {
  padded_pair x(kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(3), extent, seed);
  x.open(0, 60);
  std::vector<float> const bad(12, kvmeld::bits_float(0x7fc00000u));
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    if (t.kv_head != 0) return;
    for (kvmeld::slot_t s = 22; s < 36; ++s) {
      support::put_row(x.memory.tensors().keys, t, s, bad);
      support::put_row(x.plain_memory.tensors().keys, t, s, bad);
    }
  });
  std::vector<std::uint32_t> table(extent.tracks());
  support::for_tracks(extent, 0, [&](kvmeld::track t) { table[t.index] = t.kv_head == 0 ? 20 : 40; });
  x.both([&](auto& c) { c.compress({0}, budget::per_track(table.data())); });
  return x;
}

}  // namespace

TEST_CASE("padded tracks hold what unpadded ones hold, through a whole life, for every preset") {
  int ragged = 0;
  each_padded_policy([&](char const* name, auto const& policy) {
    for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest})
      ragged += live(name, policy, fallback);
  });
  CHECK(ragged > 100);
}

TEST_CASE("heads that differ by their data alone are padded to the longest") {
  auto policy = kvmeld::preset::kvmerger::paper_50();
  policy.identify.admission.theta = 0.8f;
  for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
    padded_pair x(kvmeld::host_executor(1), policy, extent, 3);
    x.open(0, 80);
    x.both([&](auto& c) { c.compress({0}, budget::entries(60), fallback); });
    CHECK(x.ragged(0));
    x.check(0);
    check_padding(x.cache, 0, x.plain.longest(0));
  }
}

TEST_CASE("attention does not see empty slots") {
  auto x = uneven_pair(8);
  CHECK(x.cache.length(0, 0, 0) == 40);
  CHECK(x.plain.length(0, 0, 0) == 20);
  for (std::uint32_t queries : {1u, 3u}) {
    x.write(0, queries);
    x.both([&](auto& c) { c.append({0}, {queries}); });
    auto const q = random_queries(x.d, queries);
    kvmeld::attention_params plain, windowed, capped, undegreed;
    windowed.window = 12;
    windowed.window_sinks = 2;
    capped.softcap = 3.0f;
    capped.causal = false;
    undegreed.use_degree = false;
    for (auto const& params : {plain, windowed, capped, undegreed}) {
      for (std::uint32_t parts : {1u, 2u}) {
        for (auto tuning : {kvmeld::tuning::on, kvmeld::tuning::off}) {
          kvmeld::host_executor const executor(1, tuning);
          CHECK(close(attend(x.cache, executor, q, queries, params, parts),
                      attend(x.plain, executor, q, queries, params, parts)));
        }
      }
    }
    x.both([&](auto& c) { c.commit({0}, {queries}); });
  }
}

TEST_CASE("a head's first entries may all be empty but the last") {
  // The first tile of 64 slots that a query sees holds nothing but its sink.
  constexpr kvmeld::shape s{1, 1, 2, 1, 12, 8, 200};
  padded_pair x(kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(1), s, 5);
  x.open(0, 190);
  std::uint32_t const table[] = {2, 180};
  x.both([&](auto& c) { c.compress({0}, budget::per_track(table)); });
  check_padding(x.cache, 0, 180);
  x.feed(0, 1, 1);
  std::vector<float> q(2 * 12, 1.0f), out(2 * 8), expected(2 * 8);
  kvmeld::attention_params last;
  last.window = 1;
  auto const attend_to = [&](auto& c, std::vector<float>& o) {
    kvmeld::attention::attend(c.executor(), {0, 0, 1}, kvmeld::rows_by_token<float const>(q.data(), 1, 2, 12),
                              c.ref(), kvmeld::rows_by_token(o.data(), 1, 2, 8), {}, last);
  };
  attend_to(x.cache, out);
  attend_to(x.plain, expected);
  CHECK(close(out, expected));
}

TEST_CASE("rows of empty slots are zeros, however many they are") {
  kvmeld::shape const s{1, 1, 2, 1, 4, 4, 700};
  support::engine_memory<float> memory(s);
  support::dice d(21);
  kvmeld::cache_options options{s};
  options.padded = true;
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(), options);
  memory.fill_sequence(d, 0, 0, 690, support::texture::noise);
  cache.open(0, 690);
  std::vector<std::uint32_t> const table{640, 10};
  cache.compress({0}, budget::per_track(table.data()));
  CHECK(cache.length(0, 0, 1) == 640);
  CHECK(cache.entries(0) == 650);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 1);
  auto const x = memory.tensors();
  std::vector<float> const zeros(4, 0.0f);
  for (kvmeld::slot_t slot = 10; slot < 640; ++slot) {
    CHECK(support::get_row(x.keys, t, slot) == zeros);
    CHECK(support::get_row(x.values, t, slot) == zeros);
  }
  CHECK(support::get_row(x.keys, t, 9) != zeros);
}

TEST_CASE("the written bias masks empty slots with the lowest number of its type") {
  auto x = uneven_pair(9);
  auto const check = [&](auto type) {
    using T = decltype(type);
    std::vector<T> out(extent.kv_heads * extent.capacity);
    kvmeld::attention::write_log_degree(
        x.cache.executor(), x.cache.ref(), 0, {0},
        kvmeld::rows_by_head(out.data(), 1, extent.kv_heads, extent.capacity));
    for (std::uint32_t head = 0; head < 2; ++head) {
      for (kvmeld::slot_t s = 0; s < extent.capacity; ++s) {
        float const held = kvmeld::element_traits<T>::to_float(out[head * extent.capacity + s]);
        CHECK(held == (s < (head == 0 ? 20u : 40u) ? 0.0f : kvmeld::element_traits<T>::lowest));
      }
    }
  };
  check(float{});
  check(kvmeld::float16{});
  check(kvmeld::bfloat16{});
}

TEST_CASE("observed entries get the scores they would get without empty slots") {
  auto const same = [](char const* name, auto const& policy, kvmeld::tuning tuning) {
    CAPTURE(std::string(name));
    padded_pair x(kvmeld::host_executor(1, tuning), policy, extent, 21);
    x.open(0, 60);
    x.compress({0}, 25, 45, kvmeld::shortfall::evict_lowest);
    x.feed(0, 3, 3);
    x.check(0);
    std::vector<float> const q = random_queries(x.d, 3);
    std::vector<float> lse(3 * extent.query_heads());
    for (float& n : lse) n = 3.0f + static_cast<float>(x.d.uniform());
    for (std::uint32_t layer : {0u, 1u}) {
      x.both([&](auto& c) {
        c.observe({layer, 0, 3},
                  kvmeld::rows_by_token<float const>(q.data(), 3, extent.query_heads(), extent.key_dim),
                  kvmeld::rows_by_head<float const>(lse.data(), 3, extent.query_heads(), 1));
      });
      // As the engine has them: by slot, NaN for what it never wrote.
      std::vector<float> p(extent.query_heads() * extent.capacity, kvmeld::bits_float(0x7fc00000u)),
          packed = p;
      for (std::uint32_t head = 0; head < extent.query_heads(); ++head) {
        kvmeld::track const t = kvmeld::make_track(extent, layer, 0, head / extent.queries_per_kv_head);
        std::size_t n = head * extent.capacity;
        for (kvmeld::slot_t s : held_slots(x.cache, t)) {
          packed[n] = p[head * extent.capacity + s] = static_cast<float>(x.d.uniform()) * 0.06f;
          ++n;
        }
      }
      bool const absorbs = x.plain.needs_observation().queries;  // queries know nothing of empty slots
      support::observe_numbers(x.cache, {layer, 0, 1}, (absorbs ? packed : p).data(), 1, extent.capacity);
      support::observe_numbers(x.plain, {layer, 0, 1}, packed.data(), 1, extent.capacity);
    }
    x.check(0);
    x.compress({0}, 20, 40, kvmeld::shortfall::evict_lowest);
    x.check(0);
    CHECK(x.ragged(0));
  };
  for (auto tuning : {kvmeld::tuning::on, kvmeld::tuning::off}) {
    same("h2o", kvmeld::preset::h2o::defaults(), tuning);
    same("snapkv", kvmeld::preset::snapkv::with_window(6, {5, kvmeld::pooling_mode::mean}), tuning);
    same("scissorhands", kvmeld::preset::scissorhands::defaults(7), tuning);
  }
}

TEST_CASE("layers of one plan each are padded to the longest layer") {
  padded_pair x(kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(3), extent, 2);
  kvmeld::cache_options options{extent};
  options.scope = kvmeld::plan_scope::layer;
  options.bias = kvmeld::bias_support::shared;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), x.cache.policy(), x.memory.tensors(), padded(options)};
  cache.open(0, 60);
  std::vector<std::uint32_t> table(extent.tracks());
  support::for_tracks(extent, 0, [&](kvmeld::track t) { table[t.index] = t.layer == 0 ? 20 : 31; });
  cache.compress({0}, budget::per_track(table.data()));
  CHECK(cache.entries(0) == 2 * 20 + 2 * 31);
  check_padding(cache, 0, 31);
}

TEST_CASE("tokens behind which a track was padded anew are not forgotten by truncation") {
  auto x = uneven_pair(4);
  x.feed(0, 3, 3);
  x.both([&](auto& c) { c.compress({0}, budget::entries(60)); });  // all within their budgets
  x.check(0);
  check_padding(x.cache, 0, 43);
  CHECK(x.plain.compressed_at(0) == 60);
  CHECK(x.cache.compressed_at(0) == 63);
  cache_test::check_text(cache_test::refusal_of([&] { x.cache.truncate(0, 62); }),
                         {"truncate: tokens is 62",
                          "it must be 63 to 63, the tokens of sequence 0 that are seen but not compressed"});
  x.feed(0, 2, 2);
  x.cache.truncate(0, 64);
  check_padding(x.cache, 0, 44);
  CHECK(held_slots(x.cache, kvmeld::make_track(extent, 0, 0, 0)).size() == 24);
}

}  // namespace padded_cases
