// Parts of one's own among those that are chosen at run time: each costs its name in a list, whatever its
// form, and plans the bits that it plans in a policy of types.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>

#include <cstdint>
#include <string>

#include "life.hpp"

namespace own_parts_cases {

namespace {

using composition_test::subject;
using kvmeld::quantity;

// An importance, no facts.
struct by_position {
  float importance(kvmeld::score_view const& view, std::uint32_t i) const {
    return static_cast<float>(view.position(i) % 7);
  }
};
// Reads rows; blocks of a device may not share a track of it.
struct value_norm {
  static constexpr kvmeld::score_facts facts{kvmeld::score_kind::weights, &kvmeld::score_facts::reads_rows};
  template <class Team, class Rows>
  void evaluate(Team const& team, kvmeld::score_view const&, Rows const& rows, float* out) const {
    rows.values.norms(team, [&](kvmeld::slot_t s, float norm) { out[s] = norm; });
  }
};
// A role for each entry.
struct every_fourth : kvmeld::select::defaults {
  kvmeld::role choose(kvmeld::select_view const& track, std::uint32_t i) const {
    bool const stays = track.position(i) % 4 == 0 || i + 4 >= track.length();
    return stays ? kvmeld::role::pinned : kvmeld::role::mergeable;
  }
};
// Reads keys where it admits.
struct closer_neighbour {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_keys,
                                                &kvmeld::identify_facts::gives_similarity};
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
// Reads keys and values there.
struct alike_in_both {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_keys,
                                                &kvmeld::identify_facts::needs_values};
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t i) {
      round.propose(2 * i + 1, 2 * i,
                    round.similarity(2 * i + 1, 2 * i) + round.value_similarity(2 * i + 1, 2 * i));
    });
    round.merge_best(round.excess());
  }
};
// An admission of one round, for an identifier of the library.
struct half_of_the_excess {
  kvmeld::admission allow(kvmeld::track_state const& s, std::uint32_t, std::uint32_t) const {
    return {s.excess() / 2 + 1, 1};
  }
};
// A weight for each member.
struct towards_the_newest : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const& set, std::uint32_t i) const {
    return set.degree(i) * (i + 1 == set.size() ? 2.0f : 1.0f);
  }
};

using bipartite = kvmeld::identify::chunked_bipartite<half_of_the_excess>;
using score =
    kvmeld::compose::any_score_of<kvmeld::score::global, by_position, value_norm, kvmeld::score::none>;
using selector = kvmeld::compose::any_selector_of<kvmeld::select::top, every_fourth>;
using identifier =
    kvmeld::compose::any_identifier_of<kvmeld::identify::evict_rest, kvmeld::identify::chunked_bipartite<>,
                                       closer_neighbour, alike_in_both, bipartite>;
using merge = kvmeld::compose::any_merge_of<kvmeld::merge::drop, kvmeld::merge::gaussian,
                                            kvmeld::merge::similarity_weighted, towards_the_newest>;
using chosen = kvmeld::policy<score, selector, identifier, merge>;

// Both forms of a policy live the same life.
template <class Policy> void same_bits(Policy const& fixed) {
  chosen const at_run_time{fixed.score, fixed.select, fixed.identify, fixed.merge};
  CHECK(kvmeld::configuration_problem(at_run_time) == "");
  CHECK(kvmeld::name_of_policy(at_run_time) == kvmeld::name_of_policy(fixed));
  kvmeld::shape const s{2, 2, 2, 2, 6, 5, 60};
  auto const first = kvmeld::budget::entries(40), second = kvmeld::budget::entries(30);
  std::string broken;
  subject<Policy> a(s, fixed, {}, 1);
  a.live(3, first, second, broken);
  subject<chosen> b(s, at_run_time, {}, 2);
  b.live(3, first, second, broken);
  CHECK(broken == "");
  CHECK(a.cache.longest(0) <= 40);
  CHECK(a.same_as(b));
}

kvmeld::select::top const best{quantity::entries(1), quantity::entries(6), quantity::of_budget(0.4)};

}  // namespace

TEST_CASE("a part of one's own is chosen at run time") {
  kvmeld::select::top const all{quantity::entries(1), quantity::entries(6), quantity::rest_of_budget()};
  kvmeld::identify::evict_rest const evicts{};
  kvmeld::merge::drop const drops{};
  same_bits(kvmeld::policy{by_position{}, all, evicts, drops});
  same_bits(kvmeld::policy{value_norm{}, all, evicts, drops});
  same_bits(
      kvmeld::policy{kvmeld::score::global{}, every_fourth{}, closer_neighbour{}, towards_the_newest{}});
  same_bits(kvmeld::policy{kvmeld::score::global{}, best, closer_neighbour{},
                           kvmeld::merge::similarity_weighted{}});
  same_bits(kvmeld::policy{kvmeld::score::global{}, best, alike_in_both{}, kvmeld::merge::gaussian{}});
  same_bits(kvmeld::policy{value_norm{}, best, bipartite{}, towards_the_newest{}});
}

TEST_CASE("what a score of one's own says counts for all that may be chosen") {
  CHECK_FALSE(score::facts.spans_blocks);  // value_norm does not
  CHECK(kvmeld::compose::any_score::facts.spans_blocks);
  chosen const orders{by_position{}, best, kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  CHECK(kvmeld::facts_of<kvmeld::score_facts>(orders.score).gives == kvmeld::score_kind::order);
  chosen const none{kvmeld::score::none{}, best, closer_neighbour{}, towards_the_newest{}};
  CHECK(
      kvmeld::configuration_problem(none) ==
      "policy none x top x user x user: score is none; it must be one that tells entries apart, because the "
      "selector decides by score");
}

}  // namespace own_parts_cases
