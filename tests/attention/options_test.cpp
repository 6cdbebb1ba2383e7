// Sink logits, windows by stored position and keys rotated on the way, alone by hand and together at random.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ragged_call.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

using namespace attention_test;
using doctest::Approx;
using kvmeld::attention_params;
using kvmeld::rope_pairing;

namespace {

// Every option drawn at random; `sinks` and `table` hold what the parameters point to.
attention_params draw(support::dice& d, kvmeld::shape const& s, std::vector<float>& sinks,
                      std::vector<float>& table, std::vector<kvmeld::position_t>& map) {
  attention_params p;
  p.causal = d.chance(0.8);
  p.use_degree = d.chance(0.7);
  if (d.chance(0.4)) p.scale = static_cast<float>(0.05 + 0.5 * d.uniform());
  if (d.chance(0.4)) p.softcap = static_cast<float>(0.5 + 4 * d.uniform());
  if (d.chance(0.6)) {
    sinks.clear();
    for (std::uint32_t h = 0; h < s.query_heads(); ++h) sinks.push_back(static_cast<float>(3 * d.normal()));
    p.sink = sinks.data();
  }
  if (p.causal && d.chance(0.7)) {
    p.window = d.pick({1u, 2u, 9u, 64u, 500u, 1u << 22});
    if (d.chance(0.5)) p.window_sinks = static_cast<kvmeld::position_t>(d.between(1, 12));
  }
  if (d.chance(0.7)) {
    p.rope.pairing = d.chance(0.5) ? rope_pairing::half_split : rope_pairing::interleaved;
    if (d.chance(0.3)) p.rope.positions = kvmeld::rope_positions::slot;
    if (s.key_dim % 2 != 0 || d.chance(0.4)) p.rope.rotary_dim = 2 * d.between(1, s.key_dim / 2);
    p.rope.base = d.pick({10000.0, 500000.0, 1.5});
    if (d.chance(0.4)) p.rope.factor = d.pick({4.0, 0.5});
    if (d.chance(0.3)) {
      table.clear();
      for (std::uint32_t i = 0; i < p.rope.pairs(s.key_dim); ++i)
        table.push_back(static_cast<float>(d.uniform()));
      p.rope.frequencies = table.data();
    }
    if (d.chance(0.3)) {
      map = some_map(d);
      p.rope.map = map.data();
      p.rope.mapped = static_cast<std::uint32_t>(map.size());
    }
  }
  return p;
}

// A ragged cache whose entries come from anywhere in a long text, in order, with drafts pending behind them.
template <class T> struct long_text {
  ragged_cache<T> x;

  long_text(kvmeld::shape const& s, support::dice& d) : x(s, d) {
    auto const& l = x.cache.ledger();
    for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      x.memory.fill_sequence(d, sequence, 0, s.capacity, support::texture::clusters);
      std::uint32_t const seen = d.pick({s.capacity, 3 * s.capacity, 1u << 20});
      l.seen[sequence] = seen;
      support::for_tracks(s, sequence, [&](kvmeld::track t) {
        std::uint32_t const n = l.length[t.index];
        std::uint32_t next = seen;  // entries get rarer towards the beginning
        for (std::uint32_t i = n; i-- > 0;) {
          std::uint32_t const gap = d.chance(0.1) ? d.between(1, (next - i) / 2 + 1) : 1u;
          next = next - std::min(gap, next - i);
          l.position[l.at(t, i)] = static_cast<kvmeld::position_t>(next);
        }
      });
      std::uint32_t const room = s.capacity - x.cache.longest(sequence);
      if (room != 0 && d.chance(0.6)) x.cache.append({sequence}, {d.between(1, std::min(room, 9u))});
    }
  }
};

template <class T, class Q, class Out>
std::size_t all_options(std::uint64_t seed, double tolerance, std::uint32_t extra_dim = 0) {
  support::dice d(seed);
  kvmeld::shape const s{2,
                        3,
                        d.between(1, 3),
                        d.between(1, 4),
                        d.between(2, 30) + extra_dim,
                        d.between(1, 20),
                        d.between(2, 190)};
  long_text<T> text(s, d);
  call<Q, Out> c(s, d, d.pick({1u, 4u, 21u}));
  std::vector<float> sinks, table;
  std::vector<kvmeld::position_t> map;
  attention_params const p = draw(d, s, sinks, table, map);
  CAPTURE(seed);
  return compare(text.x.cache, p, d.below(2), c, d.chance(0.8), tolerance, d.pick({1u, 3u}));
}

// One track of given keys and values with positions of one's own.
struct by_hand {
  support::engine_memory<float> memory;
  decltype(support::make_cache(memory, kvmeld::preset::h2o::defaults())) cache;
  std::vector<float> out, lse;

  by_hand(support::rows const& keys, support::rows const& values, std::vector<kvmeld::position_t> const& at,
          std::uint32_t seen, std::uint32_t group = 1)
      : memory(extent(keys, values, group)),
        cache(support::make_cache(memory, kvmeld::preset::h2o::defaults())) {
    auto const n = static_cast<std::uint32_t>(keys.size());
    memory.fill({0, 0, 0, 0}, 0, keys, values);
    cache.open(0, n);
    for (std::uint32_t i = 0; i < n; ++i) cache.ledger().position[i] = at[i];
    cache.ledger().seen[0] = seen;
  }
  static kvmeld::shape extent(support::rows const& k, support::rows const& v, std::uint32_t group) {
    return {1,
            1,
            1,
            group,
            static_cast<std::uint32_t>(k[0].size()),
            static_cast<std::uint32_t>(v[0].size()),
            static_cast<std::uint32_t>(k.size()) + 2};
  }
  // Queries [query][head][channel].
  void attend(attention_params const& p, std::vector<float> const& q) {
    kvmeld::shape const& s = memory.extent;
    std::uint32_t const m = static_cast<std::uint32_t>(q.size()) / s.key_dim / s.queries_per_kv_head;
    out.assign(std::size_t{m} * s.queries_per_kv_head * s.value_dim, -77.0f);
    lse.assign(std::size_t{m} * s.queries_per_kv_head, -77.0f);
    kvmeld::attention::attend(
        cache.executor(), {0, 0, m}, kvmeld::rows_by_token(q.data(), m, s.queries_per_kv_head, s.key_dim),
        cache.ref(), kvmeld::rows_by_token(out.data(), m, s.queries_per_kv_head, s.value_dim),
        kvmeld::rows_by_token(lse.data(), m, s.queries_per_kv_head, 1), p);
  }
};

}  // namespace

TEST_CASE("attend with every option at once is the reference's attention") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  std::size_t blind = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) blind += all_options<float, float, float>(seed, 6e-5);
  for (std::uint64_t seed = 1000; seed < 1040; ++seed)
    blind += all_options<float16, float16, float>(seed, 6e-5);
  for (std::uint64_t seed = 2000; seed < 2040; ++seed)
    blind += all_options<bfloat16, bfloat16, bfloat16>(seed, 0.02);
  for (std::uint64_t seed = 3000; seed < 3010; ++seed)
    blind += all_options<float, float16, float16>(seed, 0.003, 96);
  CHECK(blind > 0);  // queries that the window leaves nothing to see are among them
}

TEST_CASE("a sink logit takes its share and gives nothing") {
  // Two entries of logit 0 and a sink of ln 2: each entry keeps a quarter, the log-sum-exp is ln 4.
  by_hand x({{0}, {0}}, {{4}, {8}}, {0, 1}, 2, 2);
  float const sinks[] = {std::log(2.0f), -80.0f};
  attention_params p;
  p.sink = sinks;
  x.attend(p, {1, 1});
  CHECK(x.out[0] == Approx(3));
  CHECK(x.lse[0] == Approx(std::log(4.0)));
  CHECK(x.out[1] == Approx(6));  // the other head's is too small to show
  CHECK(x.lse[1] == Approx(std::log(2.0)));
  p.softcap = 0.5f;  // the sink is neither capped
  p.scale = 0.01f;   // nor scaled
  x.attend(p, {1, 1});
  CHECK(x.out[0] == Approx(3));
  x.attend(p, {1, 1, 1, 1, 1, 1});  // the first of three queries sees no entry: zeros, and the sink alone
  CHECK(x.out[0] == 0);
  CHECK(x.lse[0] == sinks[0]);
  CHECK(x.lse[1] == sinks[1]);
  CHECK(x.out[2] == Approx(4.0 / 3));
  float const large[] = {20000.0f, 0.0f};  // neither overflows nor vanishes
  p.sink = large;
  x.attend(p, {1, 1});
  CHECK(x.out[0] == 0);
  CHECK(x.lse[0] == 20000.0f);
}

TEST_CASE("a window goes by stored positions, and first tokens may be exempt") {
  // Entries at positions 0, 1, 4, 9, 10 of a text of 11 tokens; queries of zeros, so that outputs are means.
  by_hand x({{0}, {0}, {0}, {0}, {0}}, {{1}, {10}, {100}, {1000}, {10000}}, {0, 1, 4, 9, 10}, 11);
  attention_params p;
  auto const mean = [&](std::uint32_t window, kvmeld::position_t first, std::vector<float> const& q = {0}) {
    p.window = window;
    p.window_sinks = first;
    x.attend(p, q);
    return static_cast<double>(x.out[0]);
  };
  CHECK(mean(1, 0) == Approx(10000));  // the query's own position only
  CHECK(mean(2, 0) == Approx(11000.0 / 2));
  CHECK(mean(6, 0) == Approx(11000.0 / 2));  // position 4 is 6 behind
  CHECK(mean(7, 0) == Approx(11100.0 / 3));
  CHECK(mean(100, 0) == Approx(11111.0 / 5));
  CHECK(mean(2, 1) == Approx(11001.0 / 3));  // sinks
  CHECK(mean(2, 2) == Approx(11011.0 / 4));
  CHECK(mean(0xffffffffu, 0) == Approx(11111.0 / 5));
  CHECK(mean(3, 0, {0, 0}) == Approx(1000));  // the query at position 9, before the one at 10
  CHECK(mean(1, 0, {0, 0, 0}) == 0);          // at position 8 the window holds nothing
  CHECK(x.lse[0] == kvmeld::element_traits<float>::lowest);
  CHECK(mean(5, 0, {0, 0, 0}) == Approx(100));
  // A draft, pending, moves the window on.
  x.memory.fill({0, 0, 0, 0}, 5, {{0}}, {{100000}});
  x.cache.append({0}, {1});
  CHECK(mean(2, 0) == Approx(110000.0 / 2));
  CHECK(mean(2, 0, {0, 0}) == Approx(11000.0 / 2));
  // What the window hides does not show, even NaN.
  x.memory.fill({0, 0, 0, 0}, 1, {{kvmeld::bits_float(0x7fc00000u)}}, {{kvmeld::bits_float(0x7fc00000u)}});
  CHECK(mean(4, 1) == Approx(111001.0 / 4));
  CHECK_FALSE(kvmeld::is_finite(static_cast<float>(mean(4, 2))));
}

TEST_CASE("keys are rotated at their stored position or at their slot") {
  // Quarter turns per position: (1, 0) at position 1 becomes (0, 1), at 2 (-1, 0), at 3 (0, -1).
  float const quarter[] = {1.57079632679f, 0.0f};
  by_hand x({{1, 0, 5, 6}}, {{1}}, {3}, 4);
  attention_params p;
  p.scale = 1;
  p.rope.pairing = rope_pairing::interleaved;
  p.rope.frequencies = quarter;
  auto const product = [&](std::vector<float> const& q) {
    x.attend(p, q);
    return static_cast<double>(x.lse[0]);
  };
  CHECK(product({1, 10, 100, 1000}) == Approx(-10 + 500 + 6000));
  p.rope.pairing = rope_pairing::half_split;  // pairs (0, 2) and (1, 3): (1, 5) by three quarters is (5, -1)
  CHECK(product({1, 10, 100, 1000}) == Approx(5 - 100 + 6000));
  p.rope.rotary_dim = 2;  // half of two is one: pair (0, 1)
  CHECK(product({1, 10, 100, 1000}) == Approx(-10 + 500 + 6000));
  p.rope.positions = kvmeld::rope_positions::slot;  // slot 0
  CHECK(product({1, 10, 100, 1000}) == Approx(1 + 500 + 6000));
  // A table: slot 0 is 1 to it; position 3 is 2 as its last number, 5 + 2 behind one of two numbers, of which
  // the last is 5.
  kvmeld::position_t const table[] = {1, 5, 9, 2};
  p.rope.map = table;
  p.rope.mapped = 4;
  CHECK(product({1, 10, 100, 1000}) == Approx(10 + 500 + 6000));
  p.rope.positions = kvmeld::rope_positions::stored;
  CHECK(product({1, 10, 100, 1000}) == Approx(-1 + 500 + 6000));
  p.rope.mapped = 2;
  CHECK(product({1, 10, 100, 1000}) == Approx(-10 + 500 + 6000));
  p.rope = {};
  CHECK(product({1, 10, 100, 1000}) == Approx(1 + 500 + 6000));
  // Frequencies by base: of four channels pair 1 turns by base^(-1/2) per position.
  p.rope.pairing = rope_pairing::interleaved;
  p.rope.base = 16;
  p.rope.factor = 2;
  double const a = 1.5, b = 1.5 / 4;
  CHECK(product({1, 0, 1, 0}) == Approx(std::cos(a) + 5 * std::cos(b) - 6 * std::sin(b)));
}

TEST_CASE("a rotated query and a rotated key know their distance only") {
  support::dice d(5);
  kvmeld::rope_params r;
  for (auto pairing : {rope_pairing::half_split, rope_pairing::interleaved}) {
    r.pairing = pairing;
    for (int i = 0; i < 50; ++i) {
      std::vector<float> const q = support::random_rows(d, 1, 64, support::texture::noise)[0];
      std::vector<float> const k = support::random_rows(d, 1, 64, support::texture::noise)[0];
      auto const product = [&](kvmeld::position_t at, kvmeld::position_t distance) {
        auto a = q, b = k;
        kvmeld::rotate_row(r, at + distance, a.data(), 64);
        kvmeld::rotate_row(r, at, b.data(), 64);
        return static_cast<double>(kvmeld::dot(a.data(), b.data(), 64));
      };
      auto const distance = static_cast<kvmeld::position_t>(d.below(5000));
      double const near = product(0, distance);
      CHECK(std::fabs(product(1 << 20, distance) - near) < 2e-4);
      CHECK(std::fabs(product(-70000, distance) - near) < 2e-4);
    }
  }
}

TEST_CASE("rotation is exact to 3e-7 up to position 2^20") {
  double worst = 0;
  support::dice d(6);
  for (double base : {10000.0, 500000.0, 1.0, 1e6}) {
    kvmeld::rope_params r;
    r.pairing = rope_pairing::half_split;
    r.base = base;
    reference::attention_options o;
    o.rope = reference::rotation::half_split;
    o.rotary = 128;
    o.rope_base = base;
    for (int i = 0; i < 400; ++i) {
      auto const p = i < 4 ? (1 << 20) - i : static_cast<kvmeld::position_t>(d.below(1 << 20));
      for (int sign : {1, -1}) {
        std::vector<float> row(128, 0.0f);
        for (std::size_t c = 0; c < 64; ++c) row[c] = 1;  // row[i], row[i + 64] = cos, sin
        kvmeld::rotate_row(r, sign * p, row.data(), 128);
        auto const exact = reference::rotated(
            [] {
              reference::row x(128, 0.0);
              for (std::size_t c = 0; c < 64; ++c) x[c] = 1;
              return x;
            }(),
            long{sign} * p, o);
        for (std::size_t c = 0; c < 128; ++c)
          worst = std::max(worst, std::fabs(static_cast<double>(row[c]) - exact[c]));
      }
    }
  }
  CHECK(worst < 3e-7);
  CHECK(worst > 0);
}

TEST_CASE("every option gives the same bits for any number of threads and lanes") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    support::dice d(seed);
    kvmeld::shape const s{1, 3, 2, 3, 32, 24, 150};
    long_text<float> text(s, d);
    call<float, float> const start(s, d, 20);
    std::vector<float> sinks, table;
    std::vector<kvmeld::position_t> map;
    attention_params p = draw(d, s, sinks, table, map);
    p.causal = true;
    p.window = seed % 2 == 0 ? 40 : 0;
    p.window_sinks = seed % 2 == 0 ? 4 : 0;
    if (!p.rope.active()) p.rope = {};
    p.rope.pairing = rope_pairing::interleaved;
    auto const run = [&](auto executor) {
      call<float, float> c = start;
      kvmeld::attention::attend(executor, c.batch(0), c.queries(), text.x.cache.ref(), c.outputs(), c.sums(),
                                p);
      return c;
    };
    auto const one = run(kvmeld::host_executor(1));
    auto const threads = run(kvmeld::host_executor(3));
    CHECK(support::same_bits(one.out, threads.out));
    CHECK(support::same_bits(one.lse, threads.lse));
#if !defined(__FAST_MATH__)
    auto const generic = run(kvmeld::host_executor(1, kvmeld::tuning::off));
    for (std::uint32_t lanes : {1u, 3u, 8u}) {
      auto const many = run(kvmeld::testing::lane_executor(lanes));
      CHECK(support::same_bits(generic.out, many.out));
      CHECK(support::same_bits(generic.lse, many.lse));
    }
#endif
  }
}

TEST_CASE("parameters that make no sense are refused by name") {
  by_hand x({{1, 2, 3}}, {{1}}, {0}, 1);
  auto const refused = [&](attention_params const& p) {
    auto const text = [](auto act) {
      try {
        act();
      } catch (kvmeld::invalid_argument const& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    std::string const out = text([&] { x.attend(p, {1, 1, 1}); });
    float const q[3] = {}, lse[1] = {};
    auto const rows = kvmeld::rows_by_token(q, 1, 1, 3);
    auto const sums = kvmeld::rows_by_token(lse, 1, 1, 1);
    std::string const observed = text([&] { x.cache.observe({0, 0, 1}, rows, sums, p); });
    std::string const fed = text([&] { x.cache.observe_rows({0, 0, 1}, rows, p); });
    CHECK(observed == fed);
    if (out.empty()) CHECK(observed.empty());
    if (!out.empty()) CHECK(out == "attention::attend" + observed.substr(std::string("observe").size()));
    return out;
  };
  auto const with = [](auto change) {
    attention_params p;
    p.rope.rotary_dim = 2;
    change(p);
    return p;
  };
  std::string const call = "attention::attend: ";
  CHECK(refused(with([](auto& p) { p.scale = -1; })) ==
        call + "scale is -1; it must be 0, which means 1 / sqrt(key_dim), or a finite number above 0");
  CHECK(refused(with([](auto& p) { p.scale = kvmeld::bits_float(0x7fc00000u); })) ==
        call + "scale is nan; it must be 0, which means 1 / sqrt(key_dim), or a finite number above 0");
  CHECK(refused(with([](auto& p) { p.softcap = -30; })) ==
        call + "softcap is -30; it must be 0, which means none, or a finite number above 0");
  CHECK(refused(with([](auto& p) { p.softcap = kvmeld::bits_float(0x7f800000u); })) ==
        call + "softcap is inf; it must be 0, which means none, or a finite number above 0");
  CHECK(refused(with([](auto& p) { p.window = 8, p.causal = false; })) ==
        call + "window is 8; it must be 0, because causal is false and only causal queries have a position");
  CHECK(refused(with([](auto& p) { p.window_sinks = 4; })) ==
        call + "window_sinks is 4; it must be 0, because there is no window");
  CHECK(refused(with([](auto& p) { p.window = 8, p.window_sinks = -1; })) ==
        call + "window_sinks is -1; it must be at least 0");
  auto const with_rope = [&](auto change) {
    return refused(with([&](auto& p) {
      p.rope.pairing = rope_pairing::half_split;
      change(p.rope);
    }));
  };
  CHECK(with_rope([](auto&) {}).empty());
  CHECK(
      with_rope([](auto& r) { r.rotary_dim = 1; }) ==
      call +
          "rope.rotary_dim is 1; it must be 0, which means all, or an even number of at most 3, the key_dim");
  CHECK(
      with_rope([](auto& r) { r.rotary_dim = 4; }) ==
      call +
          "rope.rotary_dim is 4; it must be 0, which means all, or an even number of at most 3, the key_dim");
  CHECK(with_rope([](auto& r) { r.rotary_dim = 0; }) ==
        call + "rope.rotary_dim is 0; it must be an even number below 3, the key_dim, because that is odd");
  CHECK(with_rope([](auto& r) { r.base = 0; }) ==
        call + "rope.base is 0; it must be above 0 and below 10^30");
  CHECK(with_rope([](auto& r) { r.base = -10000; }) ==
        call + "rope.base is -10000; it must be above 0 and below 10^30");
  CHECK(with_rope([](auto& r) { r.factor = 0; }) ==
        call + "rope.factor is 0; it must be above 0 and below 10^30");
  float const table[] = {1.0f};
  CHECK(with_rope([&](auto& r) { r.frequencies = table, r.base = 0; }).empty());
  attention_params unused;  // without a pairing nothing rotates, and nothing is looked at
  unused.rope.base = -1;
  CHECK(refused(unused).empty());
}
