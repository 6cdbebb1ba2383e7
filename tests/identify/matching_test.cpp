// chunked_bipartite alone, with every admission, against loops over all pairs; and the theorem behind its
// split.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/chelsea.hpp"
#include "reference/theorem.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using kvmeld::quantity;
using support::dice;

namespace {

template <class Admit>
using matching = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                kvmeld::identify::chunked_bipartite<Admit>, kvmeld::merge::average>;

template <class Admit> matching<Admit> policy_of(std::uint32_t ends, std::uint32_t chunk, Admit admit) {
  return {{}, {quantity::entries(ends), quantity::entries(ends)}, {chunk, admit}, {}};
}

// One planned round: the target of every entry.
template <class Policy>
std::vector<std::uint32_t> planned(support::engine_memory<float>& memory, Policy const& policy,
                                   std::uint32_t n, std::uint32_t limit) {
  auto cache = make_cache(memory, policy, support::with_plan());
  cache.open(0, n);
  cache.plan({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
  kvmeld::plan_ref const& p = cache.current_plan();
  for (std::uint32_t i = 0; i < n; ++i) {
    CHECK((p.fates[i] == kvmeld::fate::keep) == (p.target[i] == i));
    CHECK((p.fates[i] == kvmeld::fate::keep || p.fates[i] == kvmeld::fate::merge));
  }
  return {p.target, p.target + n};
}

// The same from the reference's edges: those above `theta`, the best `count` of them.
std::vector<std::uint32_t> expected_targets(reference::track_state const& track, std::uint32_t ends,
                                            std::uint32_t chunk, double theta, std::size_t count,
                                            double& margin) {
  reference::chelsea_options o;
  o.sinks = o.recents = ends;
  std::vector<reference::edge> above;
  for (auto const& e : reference::draw_edges(track, reference::chelsea_middle(track, o), chunk)) {
    if (theta > -1) margin = std::min(margin, std::fabs(e.similarity - theta));
    if (e.similarity > theta) above.push_back(e);
  }
  above = reference::best_edges(track, above, std::min(count, above.size()), margin);
  std::vector<std::uint32_t> target(track.size());
  for (std::uint32_t i = 0; i < track.size(); ++i) target[i] = i;
  for (auto const& e : above) target[e.a] = static_cast<std::uint32_t>(e.b);
  return target;
}

}  // namespace

TEST_CASE("edges and admissions are those of the naive loops") {
  dice d(51);
  support::tally count;
  for (int i = 0; i < 600; ++i) {
    std::uint32_t const n = d.between(3, 140), ends = d.below(std::min((n - 2) / 2, 5u) + 1),
                        dim = d.between(2, 40);
    constexpr std::uint32_t chunks[] = {2, 3, 5, 8, 31, 64, 256};
    std::uint32_t const chunk = d.pick(chunks), limit = d.between(2 * ends + 1, n - 1);
    support::engine_memory<float> memory({1, 1, 1, 1, dim, 1, n});
    kvmeld::track const t{0, 0, 0, 0};
    memory.fill_sequence(d, 0, 0, n, d.chance(0.5) ? support::texture::noise : support::texture::clusters);
    if (d.chance(0.3)) {  // equal rows and zero rows: ties
      for (std::uint32_t j = d.below(4); j < n; j += d.between(1, 4)) {
        support::write_row(memory.tensors().keys, t, j, std::vector<float>(dim, d.chance(0.7) ? 1.0f : 0.0f));
      }
    }
    if (d.chance(0.2))
      support::write_row(memory.tensors().keys, t, d.below(n), {kvmeld::bits_float(0x7f800000u)});
    auto cache = make_cache(memory, policy_of(ends, chunk, kvmeld::admit::top_share{}));
    cache.open(0, n);
    reference::track_state const track = support::read_track(cache.ref(), t);
    reference::chelsea_options o;
    o.sinks = o.recents = ends;
    std::size_t const middle = reference::chelsea_middle(track, o).size();
    kvmeld::round_schedule const schedule{0.05 + 0.9 * d.uniform(), 0, 0, 0};
    float const theta = static_cast<float>(2 * d.uniform() - 1);
    std::size_t const share =
        std::min<std::size_t>(reference::edges_wanted(schedule.initial, middle), n - limit);
    auto const check = [&](std::vector<std::uint32_t> const& got, double bar, std::size_t quota) {
      double margin = reference::no_gap;
      auto const expected = expected_targets(track, ends, chunk, bar, quota, margin);
      if (margin < 1e-6) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(got == expected);
    };
    check(planned(memory, policy_of(ends, chunk, kvmeld::admit::top_share{schedule}), n, limit), -2, share);
    check(planned(memory, policy_of(ends, chunk, kvmeld::admit::exact_budget{}), n, limit), -2, n - limit);
    check(planned(memory, policy_of(ends, chunk, kvmeld::admit::threshold{theta}), n, limit),
          static_cast<double>(theta), n);
  }
  MESSAGE("compared ", count.compared, " plans, skipped ", count.skipped);
  CHECK(count.compared > 1500);
  CHECK(count.share() < 0.15);  // zero rows tie with rows that are not equal
}

TEST_CASE("a threshold of everything admits every edge, opposite rows too, and one of nothing none, equal "
          "rows neither") {
  using list = std::vector<std::uint32_t>;
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 6});
  memory.fill({0, 0, 0, 0}, 0, {{1, 0}, {-1, 0}, {0, 0}, {3, 4}, {3, 4}, {3, 4}}, support::rows(6, {0}));
  for (bool inclusive : {false, true}) {
    for (float all : {kvmeld::admit::everything, -1e30f})
      CHECK(planned(memory, policy_of(0, 2, kvmeld::admit::threshold{all, inclusive}), 6, 1) ==
            list{1, 1, 3, 3, 5, 5});
    for (float none : {kvmeld::admit::nothing, 1e30f})
      CHECK(planned(memory, policy_of(0, 2, kvmeld::admit::threshold{none, inclusive}), 6, 1) ==
            list{0, 1, 2, 3, 4, 5});
  }
}

TEST_CASE("matching by hand: ties, zero rows, a lone tail, overflowed cosines") {
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 5});
  auto const targets = [&](support::rows const& keys, std::uint32_t chunk, std::uint32_t limit) {
    memory.fill({0, 0, 0, 0}, 0, keys, support::rows(keys.size(), {0}));
    return planned(memory, policy_of(0, chunk, kvmeld::admit::exact_budget{}),
                   static_cast<std::uint32_t>(keys.size()), limit);
  };
  using list = std::vector<std::uint32_t>;
  // Equal keys: every A takes the lower B; of equal edges the lower A is admitted.
  CHECK(targets({{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}}, 256, 4) == list{1, 1, 2, 3, 4});
  CHECK(targets({{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}}, 256, 1) == list{1, 1, 1, 3, 1});
  // Chunks of 2: slot 4 is alone. -1 is still an edge; a zero row has cosine 0 with everything.
  CHECK(targets({{1, 0}, {-1, 0}, {0, 0}, {5, 5}, {1, 1}}, 2, 1) == list{1, 1, 3, 3, 4});
  CHECK(targets({{1, 0}, {-1, 0}, {0, 0}, {5, 5}, {1, 1}}, 2, 4) == list{0, 1, 3, 3, 4});
  // The squares of two such rows overflow: no cosine, no edge. Of one, cosine 0.
  CHECK(targets({{1e30f, 0}, {1e30f, 0}, {1, 0}, {0, 1}}, 2, 1) == list{0, 1, 3, 3});
}

TEST_CASE(
    "A and B are the alternating partition of theorem 6.1, the best one for similarity that falls convexly") {
  // Keys with Gram matrix rho^|i - j|: first row e_0, then k_i = rho k_(i-1) + sqrt(1 - rho^2) e_i. With
  // every edge admitted the entries that merge are A and those that stay are B.
  for (double const rho : {0.3, 0.6, 0.9}) {
    for (std::uint32_t n = 2; n <= 10; ++n) {
      support::rows keys(n, std::vector<float>(n, 0.0f));
      std::vector<double> last(n, 0.0);
      for (std::uint32_t i = 0; i < n; ++i) {
        for (double& x : last) x *= i == 0 ? 0 : rho;
        last[i] = i == 0 ? 1 : std::sqrt(1 - rho * rho);
        for (std::uint32_t c = 0; c < n; ++c) keys[i][c] = static_cast<float>(last[c]);
      }
      support::engine_memory<float> memory({1, 1, 1, 1, n, 1, n});
      memory.fill({0, 0, 0, 0}, 0, keys, support::rows(n, {0}));
      auto const all = policy_of(0, 256, kvmeld::admit::top_share{{1.0, 0, 0, 0}});
      auto const target = planned(memory, all, n, 1);
      reference::partition in_a;
      for (std::uint32_t i = 0; i < n; ++i) {
        bool const lone = n % 2 == 1 && i + 1 == n && target[i] == i;  // an odd tail may be over quota
        in_a.push_back(static_cast<char>(target[i] != i || lone));
      }
      CHECK(in_a == reference::alternating(n));
      reference::distance_score f;
      for (std::uint32_t k = 0; k < n; ++k) f.push_back(std::pow(rho, k));
      CHECK(reference::partition_value(in_a, f) ==
            doctest::Approx(reference::best_partition_value(n, (n + 1) / 2, f)));
    }
  }
}

TEST_CASE("identifiers and admissions refuse what cannot be, by name") {
  CHECK(policy_of(0, 1, kvmeld::admit::exact_budget{}).identify.problem() ==
        "policy: identify::chunked_bipartite.chunk is 1; it must be at least 2");
  CHECK(kvmeld::admit::top_share{{0, 0, 0, 0}}.problem() ==
        "policy: admit::top_share.schedule.initial is 0; it must be above 0 and at most 1");
  CHECK(kvmeld::admit::top_share{{0.5, 2, 0, 0}}.problem() ==
        "policy: admit::top_share.schedule.alpha is 2; it must be 0 to 1");
  CHECK(kvmeld::admit::top_share{{0.5, 0, 0, -1}}.problem() ==
        "policy: admit::top_share.schedule.floor is -1; it must be 0 to 1");
  CHECK(kvmeld::admit::threshold{kvmeld::bits_float(0x7f800000u)}.problem() ==
        "policy: admit::threshold.theta is inf; it must be a finite number, such as a cosine, everything or "
        "nothing");
  for (float theta : {kvmeld::admit::everything, kvmeld::admit::nothing, -1e30f, 1e30f})
    CHECK(kvmeld::admit::threshold{theta}.problem() == "");
  CHECK(kvmeld::admit::exact_budget{0}.problem() ==
        "policy: admit::exact_budget.bisections is 0; it must be 1 to 64");
}
