// Budgets that the tracks of a layer, or of all layers, share: limits and entries as naive loops find them.
#include "shared_budget_cases.hpp"

#include "reference/shared_budget.hpp"
#include "support/track_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shared_budget_cases {

using namespace sequences_test;

namespace {

// Budgets that leave room for what is pinned, ragged, some above the length.
std::vector<std::uint32_t> random_budgets(support::dice& d, kvmeld::shape const& s, std::uint32_t most) {
  std::vector<std::uint32_t> out(s.tracks());
  for (std::uint32_t& n : out) n = d.between(16, most);
  return out;
}

// Scores in few steps, so that many tie.
std::vector<float> coarse_scores(support::dice& d, std::uint32_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(d.below(12)) * 0.25f;
  return out;
}

// Scores that differ in their last bits only.
std::vector<float> close_scores(support::dice& d, std::uint32_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = kvmeld::bits_float(kvmeld::float_bits(0.5f) + d.below(600));
  return out;
}

kvmeld::shape random_shape(support::dice& d) {
  return {d.between(1, 3), d.between(1, 2), d.between(1, 4), 1, 16, 8, 100};
}

struct kept_entries {
  std::vector<std::vector<double>> scores;
  std::vector<reference::sharer> shares;
};

}  // namespace

TEST_CASE("entries stay where their scores are best among all tracks of a budget scope") {
  support::dice d(1);
  auto const all = policies();
  std::size_t moved = 0;
  for (int i = 0; i < 120; ++i) {
    std::uint32_t const which = d.below(4);
    std::string const name = all[which].first;
    composed const& p = all[which].second;
    budget_scope const among = d.pick(shared_scopes);
    double const floor = d.pick({0.0, 0.2, 0.6, 1.0});
    CAPTURE(name);
    CAPTURE(int(among));
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    auto cache = cache_for(memory, p, over(among));
    for (std::uint32_t q = 0; q < s.sequences; ++q) {
      open_ragged(cache, d, q, d.between(40, 90), d.chance(0.5));
      std::uint32_t const kind = d.below(3);
      support::for_tracks(s, q, [&](kvmeld::track t) {
        std::uint32_t const n = cache.ref().length(t);
        support::set_scores(cache.ledger(), t,
                            kind == 0   ? coarse_scores(d, n)
                            : kind == 1 ? close_scores(d, n)
                                        : support::random_scores(d, n));
      });
    }
    auto const table = random_budgets(d, s, d.pick({25u, 50u, 110u}));
    std::vector<reference::indices> expected;
    std::vector<std::vector<kvmeld::track>> tracks;
    for (std::uint32_t q = 0; q < s.sequences; ++q) {
      for (auto const& of : scopes_of(s, q, among)) {
        kept_entries x;
        for (kvmeld::track t : of) {
          reference::track_state const was = support::read_track(cache.ref(), t);
          std::size_t const b = std::min(table[t.index], s.capacity);
          bool const tiers = name == "tiers", window = name == "window";
          x.scores.push_back(was.score);
          x.shares.push_back({b, reference::reserve_of(floor, b, was.size()), tiers ? 1u : 0u,
                              tiers    ? reference::floor_count(0.25, b)
                              : window ? 6u
                                       : reference::floor_count(0.5, b)});
        }
        // Bands keep two more whole, and a centre for the others.
        expected.push_back(reference::limits_by_score(x.scores, x.shares, name == "tiers" ? 3 : 0));
        tracks.push_back(of);
      }
    }
    std::vector<std::uint32_t> slots;
    for (std::uint32_t q = 0; q < s.sequences; ++q) slots.push_back(q);
    cache.compress(slots, budget::per_track(table.data()).over(among, floor));
    for (std::size_t k = 0; k < tracks.size(); ++k) {
      for (std::size_t m = 0; m < tracks[k].size(); ++m) {
        CHECK(cache.ref().length(tracks[k][m]) == expected[k][m]);
        moved += expected[k][m] != table[tracks[k][m].index] ? 1 : 0;
      }
    }
    for (std::uint32_t q : slots) CHECK((cache.warnings(q) & kvmeld::warning::budget_unreached) == 0);
  }
  CHECK(moved > 300);
}

TEST_CASE("of equal scores the earlier track keeps more, and in it the lower slot") {
  kvmeld::shape const s{2, 1, 2, 1, 8, 8, 40};
  support::engine_memory<float> memory(s);
  support::dice d(2);
  auto cache = cache_for(memory, policies()[1].second, over(budget_scope::all_layers));
  open(cache, d, 0, 30);
  support::for_tracks(
      s, 0, [&](kvmeld::track t) { support::set_scores(cache.ledger(), t, std::vector<float>(30, 0.5f)); });
  // 4 tracks of 12: six recents and two more are each one's reserve of 8; 16 are left, and go to the first.
  cache.compress({0}, budget::entries(12).over(budget_scope::all_layers, 0.7));
  CHECK(positions_of(cache, 0)[0] == std::vector<long>{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                                       12, 13, 14, 15, 16, 17, 24, 25, 26, 27, 28, 29});
  for (std::size_t t : {1u, 2u, 3u})
    CHECK(positions_of(cache, 0)[t] == std::vector<long>{0, 1, 24, 25, 26, 27, 28, 29});
}

}  // namespace shared_budget_cases
