// Attention and observation over shared entries against a loop over every token they stand for.
#include "shared_cache.hpp"
#include "support/brief.hpp"
#include "support/cache_bytes.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace attention_test;
using support::dice;

namespace {

// A form of the logit, with room for what its pointers point to.
struct form {
  kvmeld::attention_params params;
  std::vector<float> sinks, frequencies;
  std::vector<kvmeld::position_t> map;
};

form some_form(dice& d, kvmeld::shape const& s) {
  form f;
  kvmeld::attention_params& p = f.params;
  if (d.chance(0.5)) p.scale = static_cast<float>(0.05 + 0.3 * d.uniform());
  if (d.chance(0.3)) p.softcap = 3.0f;
  p.causal = d.chance(0.7);
  p.use_degree = d.chance(0.5);  // takes no part
  if (p.causal && d.chance(0.4)) {
    p.window = d.between(1, 60);
    if (d.chance(0.5)) p.window_sinks = static_cast<int>(d.below(20));
  }
  if (d.chance(0.4)) {
    for (std::uint32_t h = 0; h < s.query_heads(); ++h) f.sinks.push_back(static_cast<float>(d.normal()));
    p.sink = f.sinks.data();
  }
  if (s.key_dim > 1 && d.chance(0.6)) {
    p.rope.pairing = d.chance(0.5) ? kvmeld::rope_pairing::half_split : kvmeld::rope_pairing::interleaved;
    p.rope.positions = d.chance(0.5) ? kvmeld::rope_positions::stored : kvmeld::rope_positions::slot;
    p.rope.rotary_dim = s.key_dim % 2 == 1 || d.chance(0.4) ? 2 * d.between(1, s.key_dim / 2) : 0;
    if (d.chance(0.3)) {
      for (std::uint32_t i = 0; i < s.key_dim; ++i) f.frequencies.push_back(static_cast<float>(d.uniform()));
      p.rope.frequencies = f.frequencies.data();
    } else {
      p.rope.base = 100;
      p.rope.factor = d.chance(0.5) ? 1 : 4;
    }
    if (d.chance(0.4)) {
      f.map = some_map(d);
      p.rope.map = f.map.data();
      p.rope.mapped = static_cast<std::uint32_t>(f.map.size());
    }
  }
  return f;
}

kvmeld::shape some_shape(dice& d) {
  constexpr std::uint32_t capacities[] = {1, 8, 63, 64, 65, 150};
  return {d.between(1, 2),   4, d.between(1, 2), d.between(1, 5), d.between(1, 33), d.between(1, 33),
          d.pick(capacities)};
}

template <class T, class Q, class Out>
std::size_t many_calls(std::uint64_t seed, int times, double tolerance) {
  dice d(seed);
  std::size_t blind = 0;
  for (int i = 0; i < support::cases(times); ++i) {
    kvmeld::shape const s = some_shape(d);
    shared_cache<T> x(s, d, d.pick({1u, 10u, 70u, 300u}), s.capacity > 8 ? d.below(7) : 0);
    form const f = some_form(d, s);
    call<Q, Out> c(s, d, d.between(1, 20));
    blind += compare_shared(x.cache, f.params, s.layers - 1, c, tolerance, d.pick({1u, 1u, 2u, 5u}));
  }
  return blind;
}

}  // namespace

TEST_CASE("attention over shared entries is attention over every token") {
  CHECK(many_calls<float, float, float>(231, 150, 5e-5) > 0);
  many_calls<kvmeld::float16, kvmeld::float16, kvmeld::float16>(232, 60, 4e-3);
  many_calls<kvmeld::bfloat16, kvmeld::bfloat16, kvmeld::bfloat16>(233, 60, 3e-2);
  many_calls<kvmeld::bfloat16, float, kvmeld::float16>(234, 40, 4e-3);
}

TEST_CASE("what is observed of shared entries is what attention gave each token") {
  dice d(235);
  for (int i = 0; i < support::cases(150); ++i) {
    kvmeld::shape const s = some_shape(d);
    shared_cache<float> x(s, d, d.pick({1u, 10u, 70u, 300u}), 0);
    form const f = some_form(d, s);
    std::uint32_t const layer = s.layers - 1;
    call<float, float> c(s, d, 40);
    for (std::uint32_t k = 0; k < c.counts.size(); ++k) {  // no more queries than entries
      support::for_tracks(s, c.sequences[k], [&](kvmeld::track t) {
        c.counts[k] = std::min(c.counts[k], x.cache.ref().length(t));
      });
    }
    kvmeld::attention::attend(x.cache.executor(), c.batch(layer), c.queries(), x.cache.ref(), c.outputs(),
                              c.sums(), f.params);
    std::vector<float> const lse = c.lse;
    auto const sums = kvmeld::rows_by_head<float const>(lse.data(), c.most, s.query_heads(), 1);
    x.cache.observe(c.batch(layer), c.queries(), sums, f.params);
    kvmeld::ledger_ref const& l = x.cache.ledger();
    for (std::uint32_t k = 0; k < c.sequences.size(); ++k) {
      for (std::uint32_t kv = 0; kv < s.kv_heads; ++kv) {
        kvmeld::track const t = kvmeld::make_track(s, layer, c.sequences[k], kv);
        std::size_t const n = l.length[t.index], held = l.members.count[t.index];
        std::vector<double> expected(n + held, 0.0);
        double mass = 0;  // each row's, less the sink's part
        for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g) {
          std::uint32_t const head = kv * s.queries_per_kv_head + g;
          auto const seen = expected_for(x.cache.ref(), t, f.params, head, k, c.counts[k], c.queries());
          for (std::size_t q = 0; q < seen.lse.size(); ++q) {
            for (std::size_t j = 0; j < n + held; ++j)
              expected[j] += seen.probability[q][j] / s.queries_per_kv_head;
            if (seen.lse[q] == reference::empty_lse) continue;
            double const sink = f.params.sink == nullptr
                                    ? 0.0
                                    : std::exp(static_cast<double>(f.params.sink[head]) - seen.lse[q]);
            mass += (1 - sink) / s.queries_per_kv_head;
          }
        }
        double total = 0, worst = 0;
        for (std::size_t j = 0; j < n + held; ++j) {
          float* const* const data = j < n ? l.channel_data : l.members.channel_data;
          std::size_t const at = j < n ? l.at(t, static_cast<std::uint32_t>(j))
                                       : l.members.at(t, static_cast<std::uint32_t>(j - n));
          double const got = static_cast<double>(data[kvmeld::score::global_local::accumulated][at]);
          total += got;
          worst = std::max(worst, std::fabs(got - expected[j]) / (1 + expected[j]));
        }
        CHECK(worst < 5e-5);
        CHECK(std::fabs(total - mass) < 1e-4 * (1 + mass));
      }
    }
  }
}

TEST_CASE("shared entries: the same bits for any number of threads") {
  for (std::uint64_t seed = 236; seed < 246; ++seed) {
    support::byte_list first, first_ledger;
    for (std::uint32_t threads : {1u, 2u, 3u}) {
      dice d(seed);
      kvmeld::shape const s = some_shape(d);
      shared_cache<kvmeld::float16> x(s, d, 200, 0, threads);
      form const f = some_form(d, s);
      call<float, float> c(s, d, 30);
      for (auto& n : c.counts) n = std::min(n, 1u);
      kvmeld::attention::attend(x.cache.executor(), c.batch(0), c.queries(), x.cache.ref(), c.outputs(),
                                c.sums(), f.params);
      std::vector<float> const lse = c.lse;
      c.counts[1] = 0;  // sequence 2 is empty
      x.cache.observe(c.batch(0), c.queries(),
                      kvmeld::rows_by_head<float const>(lse.data(), c.most, s.query_heads(), 1), f.params);
      auto bits = support::bytes_of(c.out);
      for (std::byte b : support::bytes_of(c.lse)) bits.push_back(b);
      auto const ledger = support::ledger_bytes(x.cache);
      if (threads == 1) {
        first = bits;
        first_ledger = ledger;
      }
      CHECK(bits == first);
      CHECK(ledger == first_ledger);
    }
  }
}

TEST_CASE("a window looks at the positions of members, and blind queries see nothing") {
  // One slot at position 9 whose member is at position 2: a window of 4 sees the slot's own token only.
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 10};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::ems::shared(), with_members(2));
  cache.open(0, 10);
  kvmeld::ledger_ref const& l = cache.ledger();
  l.length[0] = 1;
  l.position[0] = 9;
  l.members.count[0] = 1;
  l.members.owner[0] = 0;
  l.members.position[0] = 2;
  l.members.norm[0] = 3.0f;
  l.members.own_norm[0] = 2.0f;
  memory.keys[0] = memory.values[0] = 1.0f;
  float const q = 1;
  auto const lse = [&](std::uint32_t window, std::int32_t sinks) {
    kvmeld::attention_params p;
    p.scale = 1;
    p.window = window;
    p.window_sinks = sinks;
    float out = -1, sum = -1;
    kvmeld::attention::attend(cache.executor(), {0, 0, 1}, kvmeld::rows_by_token(&q, 1, 1, 1), cache.ref(),
                              kvmeld::rows_by_token(&out, 1, 1, 1), kvmeld::rows_by_head(&sum, 1, 1, 1), p);
    CHECK(out == 1.0f);
    return static_cast<double>(sum);
  };
  using doctest::Approx;
  CHECK(lse(0, 0) == Approx(std::log(std::exp(2.0) + std::exp(3.0))));
  CHECK(lse(4, 0) == Approx(2.0));
  CHECK(lse(8, 0) == Approx(std::log(std::exp(2.0) + std::exp(3.0))));
  CHECK(lse(4, 3) == Approx(std::log(std::exp(2.0) + std::exp(3.0))));
  l.position[0] = 1;  // and the other way round
  l.members.position[0] = 8;
  CHECK(lse(4, 0) == Approx(3.0));
}
