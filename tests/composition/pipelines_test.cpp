// Some twenty policies compiled whole, chosen so that parts meet in many pairs: they keep their promises, and
// the same policy composed at run time does the same to the bit.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <string>

#include "life.hpp"

namespace pipelines_cases {

namespace {

using namespace kvmeld;
using composition_test::subject;

constexpr shape extent{2, 2, 2, 2, 7, 6, 80};

template <class Policy> void same_when_composed(std::string const& name, Policy const& p) {
  INFO("pipeline " << name);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::string broken;
    auto const first = budget::entries(30 + static_cast<std::uint32_t>(seed)), second = budget::entries(26);
    cache_options options;
    options.wave_tracks = 3;
    subject<Policy> fixed(extent, p, options, 1);
    fixed.live(seed, first, second, broken);
    CHECK(broken == "");
    subject<compose::composed> chosen(extent, compose::composed_of(p), {}, 1);
    chosen.live(seed, first, second, broken);
    CHECK(broken == "");
    CHECK(fixed.same_as(chosen));
    CHECK(name_of_policy(p) == name_of_policy(compose::composed_of(p)));
  }
}

select::top const heavy{quantity::entries(1), quantity::of_budget(0.25), quantity::of_budget(0.25)};
select::top const full{quantity::entries(0), quantity::of_budget(0.5), quantity::rest_of_budget()};
select::sinks_and_recents const ends{quantity::entries(2), quantity::entries(6)};
select::sinks_and_recents const whole{quantity::entries(4), quantity::rest_of_budget()};
select::tiers const tiered{quantity::entries(1), quantity::entries(5), quantity::entries(1), 3.0};
score::local const recent{6, {3, pooling_mode::mean}};
score::global_local const both{6, {5, pooling_mode::mean}};
score::above_mean const hits{9};

template <class Admit> identify::chunked_bipartite<Admit> stars(Admit admit) { return {18, admit}; }
template <class Admit> identify::consecutive_threshold<Admit> runs(Admit admit) {
  return {identify::anchor_rule::fixed, identify::pivot_rule::highest_score, false, admit};
}
using by_key = identify::nearest_center<admit::threshold, identify::resemblance::keys>;
using by_key_ema = identify::nearest_center<admit::ema_threshold, identify::resemblance::keys>;

}  // namespace

TEST_CASE("pipelines that evict, and spans") {
  same_when_composed("1", policy{score::none{}, whole, identify::evict_rest{}, merge::drop{}});
  same_when_composed("2", policy{score::global{}, full, identify::evict_rest{}, merge::drop{}});
  same_when_composed("3", policy{recent, tiered, identify::evict_rest{}, merge::drop{}});
  same_when_composed("4", policy{hits, full, identify::local_span{}, merge::additive{}});
  same_when_composed("5", policy{both, whole, identify::local_span{}, merge::additive{}});
  auto matching = preset::attention_matching::for_budget(quantity::entries(4), quantity::entries(1));
  matching.merge.degrees = true;
  matching.merge.iterations = 3;
  same_when_composed("attention_matching", matching);
  same_when_composed("6", policy{recent, full, identify::local_span{}, merge::drop{}});
}

TEST_CASE("pipelines of stars") {
  same_when_composed("7", policy{score::none{}, ends, stars(admit::top_share{}), merge::degree_weighted{}});
  same_when_composed("8",
                     policy{score::global{}, heavy, stars(admit::exact_budget{}), merge::mass_preserving{}});
  same_when_composed("9", policy{hits, heavy, stars(admit::threshold{0.4f}), merge::average{}});
  same_when_composed("10", policy{both, ends, stars(admit::exact_budget{}), merge::collapsed{}});
  same_when_composed("11",
                     policy{recent, heavy, stars(admit::ema_threshold{}), merge::similarity_weighted{}});
  same_when_composed("12", policy{score::global{}, ends, stars(admit::top_share{}), merge::gaussian{}});
}

TEST_CASE("pipelines of runs") {
  same_when_composed("13", policy{score::global{}, heavy, runs(admit::exact_budget{}), merge::gaussian{}});
  same_when_composed("14", policy{recent, ends, runs(admit::exact_budget{}), merge::score_weighted{}});
  same_when_composed("15", policy{hits, ends, runs(admit::threshold{0.5f}), merge::degree_weighted{}});
  same_when_composed("16", policy{both, heavy, runs(admit::threshold{0.6f}), merge::drop{}});
}

TEST_CASE("pipelines of centres") {
  same_when_composed("17", policy{both, tiered, identify::nearest_center<admit::threshold>{{0.3f, true}},
                                  merge::collapsed{}});
  same_when_composed("18", policy{score::global{}, tiered, by_key_ema{}, merge::similarity_weighted{}});
  same_when_composed(
      "19", policy{hits, tiered, identify::nearest_center<admit::ema_threshold>{}, merge::average{}});
  same_when_composed("20", policy{recent, tiered, by_key{{0.2f}}, merge::score_weighted{}});
}

}  // namespace pipelines_cases
