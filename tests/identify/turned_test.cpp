// Keys compared as they are at positions of the caller's choice: against a loop that rotates rows in double.
#include <kvmeld/identify/turned.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "support/random_cache.hpp"

using kvmeld::quantity;
using support::dice;

namespace turned_cases {

namespace {

// Positions counted from the end of the track, in steps of three, and heads apart.
struct from_the_end {
  kvmeld::position_t step;
  KVMELD_HD kvmeld::position_t operator()(kvmeld::ledger_ref const& l, kvmeld::track t,
                                          kvmeld::slot_t s) const {
    return l.position[l.at(t, s)] / 2 - step * static_cast<kvmeld::position_t>(l.length[t.index] - s);
  }
};
// Turns rows back that lie rotated for the position stored with them.
struct as_projected {
  KVMELD_HD kvmeld::position_t operator()(kvmeld::ledger_ref const& l, kvmeld::track t,
                                          kvmeld::slot_t s) const {
    return -l.position[l.at(t, s)];
  }
};

double cosine(reference::row const& a, reference::row const& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    ab += a[c] * b[c];
    aa += a[c] * a[c];
    bb += b[c] * b[c];
  }
  return ab / std::sqrt(aa * bb);
}

using pairs = kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>;
kvmeld::select::sinks_and_recents const nobody{quantity::entries(0), quantity::entries(0)};

template <class Identify> auto policy_of(Identify identify) {
  return kvmeld::policy{kvmeld::score::none{}, nobody, identify, kvmeld::merge::degree_weighted{}};
}

template <class Cache> std::vector<std::uint32_t> targets(Cache& cache, std::uint32_t n) {
  cache.plan({0}, kvmeld::budget::entries(1), kvmeld::shortfall::keep);
  std::vector<std::uint32_t> out;
  for (std::uint32_t item = 0; item < 2; ++item) {
    auto const first = cache.current_plan().target + cache.current_plan().at(item, 0);
    out.insert(out.end(), first, first + n);
  }
  return out;
}

}  // namespace

TEST_CASE("matching sees keys at the positions of a function object, whatever form the rotation has") {
  dice d(91);
  std::uint32_t differs = 0;
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const n = d.between(4, 40);
    kvmeld::shape const s{1, 1, 2, 1, 2 * d.between(2, 8), 3, n};
    support::engine_memory<float> memory(s);
    kvmeld::rope_params rope;
    rope.pairing = d.chance(0.5) ? kvmeld::rope_pairing::half_split : kvmeld::rope_pairing::interleaved;
    rope.base = 50;
    if (d.chance(0.3)) rope.rotary_dim = 2;
    from_the_end const where{d.chance(0.5) ? 3 : -1};
    kvmeld::identify::turned<pairs, from_the_end> const turned{{n, {}}, rope, where};
    auto cache = make_cache(memory, policy_of(turned), support::with_plan());
    auto plain = make_cache(memory, policy_of(pairs{n, {}}), support::with_plan());
    kvmeld::cache_options options = support::with_plan();
    options.extent = s;
    kvmeld::merged_cache lanes{kvmeld::testing::lane_executor(3), policy_of(turned), memory.tensors(),
                               options};
    cache.open(0, n);
    plain.open(0, n);
    lanes.open(0, n);
    std::vector<std::uint32_t> expected;
    bool close = false;
    reference::attention_options o;
    o.rope = rope.pairing == kvmeld::rope_pairing::half_split ? reference::rotation::half_split
                                                              : reference::rotation::interleaved;
    o.rotary = rope.rotary_dim == 0 ? s.key_dim : rope.rotary_dim;
    o.rope_base = 50;
    for (std::uint32_t head = 0; head < 2; ++head) {
      auto const keys = support::random_rows(d, n, s.key_dim, support::texture::noise);
      memory.fill(kvmeld::make_track(s, 0, 0, head), 0, keys, support::rows(n, {0, 0, 0}));
      std::vector<reference::row> at;
      for (std::uint32_t j = 0; j < n; ++j) {
        long const p =
            static_cast<long>(j) / 2 - long{where.step} * (static_cast<long>(n) - static_cast<long>(j));
        at.push_back(reference::rotated(reference::row(keys[j].begin(), keys[j].end()), p, o));
      }
      for (std::uint32_t a = 0; a < n; ++a) {
        std::uint32_t best = a;
        double most = -2, second = -2;
        for (std::uint32_t b = 1; a % 2 == 0 && b < n; b += 2) {
          double const x = cosine(at[a], at[b]);
          second = x > most ? most : std::max(second, x);
          if (x > most) best = b;
          most = std::max(most, x);
        }
        close = close || (most > -2 && most - second < 1e-5);
        expected.push_back(best);
      }
    }
    auto const got = targets(cache, n);
    CHECK(got == targets(lanes, n));
    if (close) continue;
    CHECK(got == expected);
    differs += got != targets(plain, n) ? 1 : 0;
  }
  CHECK(differs > 40);
}

TEST_CASE("similarity without positions over keys that lie rotated, of EMS too, and what it is called") {
  // Keys (1, 0) and (0, 1) in turn, rotated by a quarter turn per position: as they lie, 0 1 2 3 are (1, 0),
  // (-1, 0), (-1, 0), (1, 0), then the same again. Turned back, entries of one parity are equal.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 8};
  support::engine_memory<float> memory(s);
  memory.fill({0, 0, 0, 0}, 0, {{1, 0}, {-1, 0}, {-1, 0}, {1, 0}, {1, 0}, {-1, 0}}, support::rows(6, {1}));
  float const quarter[] = {1.57079632679f};
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  rope.frequencies = quarter;
  using nearest = kvmeld::identify::nearest_center<kvmeld::admit::threshold>;
  kvmeld::identify::turned<nearest, as_projected> const back{{{0.9f}}, rope};
  kvmeld::select::tiers const tiers{quantity::entries(0), quantity::entries(0), quantity::entries(0), 3.0};
  kvmeld::policy const p{kvmeld::score::global{}, tiers, back, kvmeld::merge::average{}};
  auto cache = make_cache(memory, p, support::with_plan());
  cache.open(0, 6);
  support::set_scores(cache.ledger(), {0, 0, 0, 0}, {9, 8, 1, 2, 1, 2});  // 0 and 1 are centres
  cache.plan({0}, kvmeld::budget::entries(2), kvmeld::shortfall::keep);
  kvmeld::plan_ref const& plan = cache.current_plan();
  CHECK(std::vector<std::uint32_t>(plan.target, plan.target + 6) ==
        std::vector<std::uint32_t>{0, 1, 0, 1, 0, 1});
  CHECK(plan.fates[2] == kvmeld::fate::merge);
  CHECK(kvmeld::name_of_policy(p) == "global x tiers x turned(nearest_center:threshold) x average");
  cache.apply();
  CHECK(memory.keys[0] == doctest::Approx(1.0 / 3));  // (1, 0), (-1, 0) and (1, 0) merge as they lie
}

}  // namespace turned_cases
