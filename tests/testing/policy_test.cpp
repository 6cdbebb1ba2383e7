// policy_problem: policies that are sound, and what it says of those that are not.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_policy.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace policy_problem_cases {

using kvmeld::policy;
using kvmeld::testing::policy_problem;

namespace {

using pins_ends = kvmeld::select::sinks_and_recents;
pins_ends few() { return {kvmeld::quantity::entries(2), kvmeld::quantity::entries(4)}; }

// What an author may do wrong in an identifier that pairs neighbours.
enum class fault { none, order_of_lanes, drops_none, barrier };

template <fault Fault> struct pairs {
  template <class Round> void admit(Round& round) const {
    auto const& team = round.team();
    if (Fault == fault::barrier && team.lane() == 0) team.sync();
    if (Fault == fault::drops_none) return;
    if (Fault == fault::order_of_lanes) {  // as many as there are lanes
      std::uint32_t const from = round.live() - 1 - 2 * team.lane();
      if (round.live() > 20) round.merge(from, from - 1);
      return;
    }
    round.for_each(round.live() / 2, [&](std::uint32_t i) { round.merge(2 * i + 1, 2 * i); });
  }
};

template <fault Fault> std::string problem_of_pairs() {
  return policy_problem(
      policy{kvmeld::score::none{}, few(), pairs<Fault>{}, kvmeld::merge::degree_weighted{}});
}

// What an author may do wrong in a score.
enum class slip { none, sum_by_lane, unwritten_scratch, undeclared_scratch, first_lane_only };

template <slip Slip> struct age {
  std::size_t scratch_bytes(kvmeld::shape const&, int) const {
    return Slip == slip::undeclared_scratch ? 0 : kvmeld::scratch_size(sizeof(float));
  }
  template <class Team> void evaluate(Team const& team, kvmeld::score_view const& view, float* out) const {
    float* const shared = team.template scratch<float>(1);
    if (Slip != slip::unwritten_scratch && team.lane() == 0) *shared = 1.0f;
    team.sync();
    float const factor = kvmeld::float_bits(*shared) == 0 ? -1.0f : 1.0f;
    if (Slip == slip::sum_by_lane) {
      for (std::uint32_t i = team.lane(); i < view.length(); i += team.lanes())
        out[i] = static_cast<float>(view.position(i) % static_cast<int>(team.lanes() + 2));
    } else {
      team.for_each(view.length(), [&](std::uint32_t i) {
        out[i] = factor * static_cast<float>((view.position(i) * 7) % 31);
      });
    }
    team.sync();
  }
};

template <slip Slip> std::string problem_of_age() {
  return policy_problem(
      policy{age<Slip>{}, kvmeld::select::top{kvmeld::quantity::entries(1), kvmeld::quantity::entries(2)},
             kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
}

// Weights that are no numbers.
struct not_a_weight : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const&, std::uint32_t) const {
    return std::numeric_limits<float>::quiet_NaN();
  }
};

struct pins_all : kvmeld::select::defaults {
  kvmeld::role choose(kvmeld::select_view const&, std::uint32_t) const { return kvmeld::role::pinned; }
};

bool holds(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("policies of kvmeld have no problem") {
  CHECK(policy_problem(kvmeld::preset::leverage_dropkv::for_budget()) == "");
  CHECK(policy_problem(kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.05f)) == "");
  CHECK(policy_problem(kvmeld::preset::streaming_llm::with_sinks(), {1, 1, 3, 1, 5, 4, 40}) == "");
}

TEST_CASE("parts of one's own") {
  CHECK(problem_of_pairs<fault::none>() == "");
  CHECK(problem_of_pairs<fault::drops_none>() == "");  // the fallback evicts
  CHECK(problem_of_age<slip::none>() == "");
  CHECK(policy_problem(policy{kvmeld::score::none{}, pins_all{}, kvmeld::identify::evict_rest{},
                              kvmeld::merge::drop{}}) == "");
}

TEST_CASE("what depends on the lanes is found") {
  CHECK(holds(problem_of_pairs<fault::order_of_lanes>(), "on 2 lanes: "));
  std::string const barrier = problem_of_pairs<fault::barrier>();
  CHECK(holds(barrier, "on 2 lanes: the lanes of a team are not at the same place: "));
  CHECK(holds(barrier, "policy_test.cpp:"));
  CHECK(holds(problem_of_age<slip::sum_by_lane>(), "on 2 lanes: slot "));
}

TEST_CASE("what a part does with scratch is found") {
  CHECK(holds(problem_of_age<slip::unwritten_scratch>(), "a part reads what it did not write"));
  CHECK(holds(problem_of_age<slip::undeclared_scratch>(), "bytes asked for, "));
}

TEST_CASE("weights that are no number count as equal") {
  CHECK(policy_problem(policy{kvmeld::score::none{}, few(), pairs<fault::none>{}, not_a_weight{}}) == "");
}

TEST_CASE("what a policy refuses is said") {
  CHECK(policy_problem(kvmeld::preset::h2o::defaults(), {1, 1, 1, 1, 4, 4, 31}) ==
        "policy_problem: extent.capacity is 31; it must be at least 32");
  auto wrong = kvmeld::preset::h2o::defaults();
  wrong.select.heavy = kvmeld::quantity::of_budget(2);
  CHECK(policy_problem(wrong) == "policy: select::top.heavy is 2; it must be 0 to 1, a share");
  wrong.select.heavy = kvmeld::quantity::entries(40);
  CHECK(holds(policy_problem(wrong, kvmeld::testing::small_shape),
              "compress: budget of track (layer 0, sequence 0, head 0) is 32"));
  CHECK(policy_problem(wrong) == "");
  wrong.select.heavy = kvmeld::quantity::entries(4000);  // more than a small cache has room for
  CHECK(holds(policy_problem(wrong), "compress: budget of track (layer 0, sequence 0, head 0) is 2048"));
}

}  // namespace policy_problem_cases
