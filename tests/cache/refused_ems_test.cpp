// EMS: parts configured wrongly, a cache without room for members, budgets that leave no centre.
#include "refusal.hpp"

#include <cstdint>
#include <limits>

namespace refused_ems_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::quantity;

constexpr kvmeld::shape extent{1, 2, 2, 1, 6, 5, 40};

template <class Policy> std::string refusal_of_policy(Policy const& policy, std::uint32_t members = 9) {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.members = members;
  return refusal_of([&] { support::make_cache(memory, policy, options); });
}

}  // namespace

TEST_CASE("a policy that shares entries wants room for members") {
  check_text(refusal_of_policy(kvmeld::preset::ems::shared(), 0),
             {"merged_cache: options: members is 0", "shares entries", "preset::ems::members_for(budget)"});
  CHECK(refusal_of_policy(kvmeld::preset::ems::shared(), 1).empty());
  CHECK(refusal_of_policy(kvmeld::preset::ems::collapsed(), 0).empty());
  CHECK(kvmeld::preset::ems::members_for(256) == 768);  // (gamma - 1) of the budget
  CHECK(kvmeld::preset::ems::members_for(10, 1.5) == 5);
}

TEST_CASE("EMS configured wrongly") {
  auto p = kvmeld::preset::ems::shared();
  p.score.window = 0;
  check_text(refusal_of_policy(p), {"score::global_local.window is 0", "merged_cache: policy: s"});
  p = kvmeld::preset::ems::shared();
  p.score.pooling.kernel = 4;
  check_text(refusal_of_policy(p), {"pooling.kernel is 4", "merged_cache: policy: pooling.kernel is 4"});
  for (double gamma : {0.5, -1.0, 1e7, std::numeric_limits<double>::quiet_NaN()}) {
#if defined(__FAST_MATH__)
    if (!(gamma < 1e9)) continue;  // nothing is NaN there
#endif
    p = kvmeld::preset::ems::shared();
    p.select.magnification = gamma;
    check_text(refusal_of_policy(p), {"select::tiers.magnification is", "merged_cache: policy: s"});
  }
  auto const wrong = quantity::of_budget(1.5);
  p = kvmeld::preset::ems::shared();
  p.select.sinks = wrong;
  check_text(refusal_of_policy(p), {"select::tiers.sinks", "1.5", "0 to 1"});
  p = kvmeld::preset::ems::shared(wrong);
  check_text(refusal_of_policy(p), {"select::tiers.window", "1.5", "0 to 1"});
  p = kvmeld::preset::ems::shared();
  p.select.protect = wrong;
  check_text(refusal_of_policy(p), {"select::tiers.protect", "1.5", "0 to 1"});
  check_text(refusal_of_policy(
                 kvmeld::preset::ems::shared(quantity::entries(32), 32, kvmeld::bits_float(0x7fc00000u))),
             {"threshold.theta is nan", "a finite number"});
}

TEST_CASE("EMS: budgets that leave no room for a centre, scores that were never fed") {
  support::dice d(61);
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.members = 9;
  auto cache = support::make_cache(memory, kvmeld::preset::ems::shared(quantity::entries(6), 6), options);
  cache.open(0, 30);
  memory.fill_sequence(d, 0, 0, 30, support::texture::clusters);
  using cache_test::refused;
  refused(cache, memory, [](auto& c) { c.compress({0}, kvmeld::budget::entries(10)); },
          {"ranks entries by attention",
           "compress: number of observed rows of track (layer 0, sequence 0, head 0) is 0"});
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    support::set_scores(cache.ledger(), t, support::random_scores(d, 30));
  });
  refused(cache, memory, [](auto& c) { c.compress({0}, kvmeld::budget::entries(6)); },
          {"compress: budget of track (layer 0, sequence 0, head 0) is 6", "6 of the 30", "are pinned",
           "it must be at least 7, because 6 of the 30 entries are pinned (0 sinks or frozen, 6 recents, 0 "
           "by score)"});
  cache.compress({0}, kvmeld::budget::entries(7));
  CHECK(cache.longest(0) == 7);
}

}  // namespace refused_ems_cases
