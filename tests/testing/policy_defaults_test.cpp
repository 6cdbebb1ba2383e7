// policy_problem finds nothing in what the library and its guide offer: presets and parts with their own
// numbers.
#include <doctest/doctest.h>

#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_policy.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "support/brief.hpp"
#include "support/learned.hpp"

namespace policy_defaults_cases {

using kvmeld::policy;
using kvmeld::testing::policy_problem;

namespace {

// The parts of docs/guide/own_policy.md, with the defaults of all others.
struct pair_neighbours {
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t i) { round.merge(2 * i + 1, 2 * i); });
  }
};
struct closer_neighbour {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_keys};
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t pair) {
      std::uint32_t const i = 2 * pair + 1;
      float const older = round.similarity(i, i - 1);
      float const newer = i + 1 < round.live() ? round.similarity(i, i + 1) : -1.0f;
      if (older >= newer) round.propose(i, i - 1, older);
      if (older < newer) round.propose(i, i + 1, newer);
    });
    round.merge_best(round.excess());
  }
};
struct towards_the_newest : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const& set, std::uint32_t i) const {
    return set.degree(i) * (i + 1 == set.size() ? 2.0f : 1.0f);
  }
};
struct every_eighth : kvmeld::select::defaults {
  kvmeld::role choose(kvmeld::select_view const& track, std::uint32_t i) const {
    bool const stays = track.position(i) % 8 == 0 || i + 64 >= track.length();
    return stays ? kvmeld::role::pinned : kvmeld::role::mergeable;
  }
};
struct value_norm {
  static constexpr kvmeld::score_facts facts{kvmeld::score_kind::weights, &kvmeld::score_facts::reads_rows};
  template <class Team, class Rows>
  void evaluate(Team const& team, kvmeld::score_view const&, Rows const& rows, float* out) const {
    rows.values.norms(team, [&](kvmeld::slot_t s, float norm) { out[s] = norm; });
  }
};

}  // namespace

TEST_CASE("the shape has room for what a policy pins") {
  using kvmeld::testing::shape_for;
  kvmeld::select::sinks_and_recents const usual{};
  policy const pairing{kvmeld::score::none{}, usual, pair_neighbours{}, kvmeld::merge::degree_weighted{}};
  CHECK(shape_for(pairing).capacity == 224);  // 80 entries are pinned
  kvmeld::select::sinks_and_recents const few{kvmeld::quantity::entries(2), kvmeld::quantity::entries(4)};
  policy const little{kvmeld::score::none{}, few, pair_neighbours{}, kvmeld::merge::degree_weighted{}};
  CHECK(shape_for(little).capacity == kvmeld::testing::small_shape.capacity);
}

TEST_CASE("the policies of the guide have no problem as they are written there") {
  CHECK(policy_problem(policy{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, pair_neighbours{},
                              kvmeld::merge::degree_weighted{}}) == "");
  CHECK(policy_problem(policy{value_norm{}, every_eighth{}, closer_neighbour{}, towards_the_newest{}}) == "");
  CHECK(policy_problem(policy{value_norm{}, kvmeld::select::top{}, kvmeld::identify::evict_rest{},
                              kvmeld::merge::drop{}}) == "");
}

TEST_CASE("every preset has no problem as it comes") {
  using namespace kvmeld::compose;
  std::uint64_t turn = support::test_run();
  for (named_policy const& preset : named_policies()) {
    CAPTURE(preset.name);
    if (support::brief() && ++turn % 6 != 0) continue;  // the others in later runs
    composed const made = preset.make({});
    CHECK(policy_problem(support::taught(made, kvmeld::testing::shape_for(made))) == "");
  }
  CHECK(policy_problem(composed_of(kvmeld::preset::chelsea::llama3())) == "");
  CHECK(policy_problem(composed_of(kvmeld::preset::kvmerger::paper_50())) == "");
  CHECK(policy_problem(kvmeld::preset::ems::shared()) == "");
}

TEST_CASE(
    "every part has no problem with its default numbers, beside a part of each other kind that suits it") {
  using namespace kvmeld::compose;
  std::vector<std::string> held;  // parts that were in a policy
  auto const is_new = [&](std::string const& name) {
    return std::find(held.begin(), held.end(), name) == held.end();
  };
  std::size_t parts = 0, policies = 0;
  auto const count = [&](auto const& all) { parts += all.size(); };
  count(all_of<any_score>());
  count(all_of<any_selector>());
  count(all_of<any_identifier>());
  count(all_of<any_merge>());
  for (any_score const& score : all_of<any_score>()) {
    for (any_selector const& select : all_of<any_selector>()) {
      for (any_identifier const& identify : all_of<any_identifier>()) {
        for (any_merge const& merge : all_of<any_merge>()) {
          std::string const names[] = {"score " + score.name(), "select " + select.name(),
                                       "identify " + identify.name(), "merge " + merge.name()};
          bool const any = std::any_of(std::begin(names), std::end(names), is_new);
          any_selector own = select;  // what a policy text does: entries that merge need room beside the pins
          if (identify.facts_now().makes_sets) suit(own, identify.facts_now());
          composed p{score, own, identify, merge};
          p = support::taught(p, kvmeld::testing::shape_for(p));
          if (!any || !kvmeld::configuration_problem(p).empty()) continue;
          for (std::string const& name : names) {
            if (is_new(name)) held.push_back(name);
          }
          ++policies;
          CAPTURE(kvmeld::name_of_policy(p));
          if (support::brief() && policies % 6 != support::test_run() % 6) continue;
          CHECK(policy_problem(p) == "");
        }
      }
    }
  }
  CHECK(held.size() == parts);  // each of them
}

}  // namespace policy_defaults_cases
