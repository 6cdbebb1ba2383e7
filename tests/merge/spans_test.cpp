// merge::additive over spans that differ from entry to entry, as no ready-made identifier makes them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/plan_apply.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using support::dice;
using variant = kvmeld::merge::additive_variant;

namespace {

constexpr std::uint32_t window = 9;

// Entry i of the mergeable ones goes to a span of the last `window` entries that depends on its position,
// with mask 1 / (1 + position % 3); every fifth is dropped.
struct scattered_spans : kvmeld::identify::local_span {
  static std::uint32_t first_of(std::uint32_t position) { return position * 7 % window; }
  static std::uint32_t span_of(std::uint32_t position) {
    return 1 + position * 5 % (window - first_of(position));
  }
  static float mask_of(std::uint32_t position) { return 1.0f / static_cast<float>(1 + position % 3); }

  template <class Round> void admit(Round& round) const {
    std::uint32_t const n = round.state().length;
    round.for_each(n, [&](kvmeld::slot_t i) {
      if (round.role_of(i) != kvmeld::role::mergeable) return;
      if (i % 5 == 4) return round.drop_slot(i);
      round.spread_slot(i, n - window + first_of(i), span_of(i), mask_of(i));
    });
  }
};

template <class T> void compare(dice& d, variant how) {
  std::uint32_t const n = d.between(window + 1, 90);
  kvmeld::shape const s{1, 1, 2, 1, 5, d.between(1, 40), n};
  support::engine_memory<T> memory(s);
  kvmeld::policy const policy{
      kvmeld::score::global{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(0), kvmeld::quantity::entries(window)},
      scattered_spans{}, kvmeld::merge::additive{how}};
  auto cache = make_cache(memory, policy);
  cache.open(0, n);
  memory.fill_sequence(d, 0, 0, n, support::texture::noise);
  std::vector<reference::track_state> before(2);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    support::set_scores(cache.ledger(), t, std::vector<float>(n, 1.0f));
    for (std::uint32_t i = 0; i < n; ++i)
      cache.ledger().degree[cache.ledger().at(t, i)] = static_cast<float>(1 + d.uniform());
    before[t.index] = support::read_track(cache.ref(), t);
  });
  cache.compress({0}, kvmeld::budget::entries(window));
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    reference::linear_plan plan = reference::keep_all(n);
    std::vector<double> grown(n, 1.0);
    for (std::uint32_t i = 0; i < n - window; ++i) {
      plan.fates[i] = i % 5 == 4 ? reference::fate::drop : reference::fate::spread;
      if (i % 5 == 4) continue;
      plan.target[i] = n - window + scattered_spans::first_of(i);
      plan.span[i] = scattered_spans::span_of(i);
      plan.value_weight[i] =
          static_cast<double>(scattered_spans::mask_of(i)) / static_cast<double>(plan.span[i]);
      plan.degree_weight[i] = 0;
      for (std::size_t k = 0; k < plan.span[i]; ++k) grown[plan.target[i] + k] += plan.value_weight[i];
    }
    for (std::uint32_t k = n - window; k < n && how == variant::mass_corrected; ++k) {
      plan.value_weight[k] = 1 / grown[k];
      plan.degree_weight[k] = grown[k];
    }
    auto const expected = reference::plan_apply(before[t.index], plan).after;
    auto const got = support::read_track(cache.ref(), t);
    CHECK(got.position == expected.position);
    CHECK(got.keys == expected.keys);
    double const most = *std::max_element(grown.begin(), grown.end());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got.degree[i] == Approx(expected.degree[i]).epsilon(1e-5));
      for (std::size_t c = 0; c < s.value_dim; ++c) {
        double const off = std::fabs(got.values[i][c] - expected.values[i][c]);
        CHECK(off <= 0.51 * support::spacing<T>(expected.values[i][c]) + 2e-5 * most);
      }
    }
  });
}

}  // namespace

TEST_CASE("spans of every place and length, corrected and as printed") {
  dice d(71);
  for (int i = 0; i < 60; ++i) {
    compare<float>(d, variant::mass_corrected);
    compare<float>(d, variant::paper);
    compare<kvmeld::bfloat16>(d, variant::mass_corrected);
  }
}
