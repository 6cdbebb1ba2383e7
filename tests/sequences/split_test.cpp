// Budgets that the tracks of a layer, or of all layers, share: limits and entries as naive loops find them.
#include "split_cases.hpp"

#include "reference/split.hpp"
#include "support/track_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace split_cases {

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

// Some heads get keys that hardly resemble each other: they merge late, or keep more.
template <class Cache> void vary_heads(Cache& cache, support::dice& d) {
  support::for_tracks(cache.sizes().extent, 0, [&](kvmeld::track t) {
    if (!d.chance(0.4)) return;
    std::uint32_t const n = cache.ref().length(t);
    auto const keys = support::random_rows(d, n, cache.sizes().extent.key_dim, support::texture::noise);
    for (std::uint32_t i = 0; i < n; ++i) support::put_row(cache.ref().keys, t, i, keys[i]);
  });
}

kvmeld::shape random_shape(support::dice& d) {
  return {d.between(1, 3), d.between(1, 2), d.between(1, 4), 1, 16, 8, 100};
}

struct kept_entries {
  std::vector<std::vector<double>> scores;
  std::vector<reference::sharer> shares;
};

// Tracks after a compression beside what the reference makes of them, unless it decided by a hair.
template <class Cache>
void compare(Cache const& cache, std::vector<kvmeld::track> const& tracks,
             reference::split_outcome const& expected, support::tally& count) {
  if (expected.margin < 1e-6) {
    ++count.skipped;
    return;
  }
  ++count.compared;
  for (std::size_t m = 0; m < tracks.size(); ++m) {
    reference::track_state const got = support::read_track(cache.ref(), tracks[m]);
    CHECK(got.position == expected.after[m].position);
    CHECK(got.degree == expected.after[m].degree);
  }
}

}  // namespace

TEST_CASE("entries stay where their scores are best among all tracks of a split") {
  support::dice d(1);
  auto const all = policies();
  std::size_t moved = 0;
  for (int i = 0; i < 120; ++i) {
    std::uint32_t const which = d.below(4);
    std::string const name = all[which].first;
    composed const& p = all[which].second;
    split const among = d.pick(splits);
    double const floor = d.pick({0.0, 0.2, 0.6, 1.0});
    CAPTURE(name);
    CAPTURE(int(among));
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    auto cache = cache_for(memory, p, over(among));
    for (std::uint32_t q = 0; q < s.sequences; ++q) {
      open_ragged(cache, d, q, d.between(40, 90), d.chance(0.5));
      bool const ties = d.chance(0.5);
      support::for_tracks(s, q, [&](kvmeld::track t) {
        std::uint32_t const n = cache.ref().length(t);
        support::set_scores(cache.ledger(), t, ties ? coarse_scores(d, n) : support::random_scores(d, n));
      });
    }
    auto const table = random_budgets(d, s, d.pick({25u, 50u, 110u}));
    std::vector<reference::indices> expected;
    std::vector<std::vector<kvmeld::track>> tracks;
    for (std::uint32_t q = 0; q < s.sequences; ++q) {
      for (auto const& of : splits_of(s, q, among)) {
        kept_entries x;
        for (kvmeld::track t : of) {
          reference::track_state const was = support::read_track(cache.ref(), t);
          std::size_t const b = std::min(table[t.index], s.capacity);
          bool const bands = name == "bands", window = name == "window";
          x.scores.push_back(was.score);
          x.shares.push_back({b, reference::reserve_of(floor, b, was.size()), bands ? 1u : 0u,
                              bands    ? reference::floor_count(0.25, b)
                              : window ? 6u
                                       : reference::floor_count(0.5, b)});
        }
        // Bands keep two more whole, and a centre for the others.
        expected.push_back(reference::limits_by_score(x.scores, x.shares, name == "bands" ? 3 : 0));
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
    for (std::uint32_t q : slots) CHECK((cache.findings(q) & kvmeld::finding::budget_unreached) == 0);
  }
  CHECK(moved > 300);
}

TEST_CASE("of equal scores the earlier track keeps more, and in it the lower slot") {
  kvmeld::shape const s{2, 1, 2, 1, 8, 8, 40};
  support::engine_memory<float> memory(s);
  support::dice d(2);
  auto cache = cache_for(memory, policies()[1].second, over(split::group));
  open(cache, d, 0, 30);
  support::for_tracks(
      s, 0, [&](kvmeld::track t) { support::set_scores(cache.ledger(), t, std::vector<float>(30, 0.5f)); });
  // 4 tracks of 12: six recents and two more are each one's reserve of 8; 16 are left, and go to the first.
  cache.compress({0}, budget::entries(12).over(split::group, 0.7));
  CHECK(positions_of(cache, 0)[0] == std::vector<long>{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                                       12, 13, 14, 15, 16, 17, 24, 25, 26, 27, 28, 29});
  for (std::size_t t : {1u, 2u, 3u})
    CHECK(positions_of(cache, 0)[t] == std::vector<long>{0, 1, 24, 25, 26, 27, 28, 29});
}

TEST_CASE("edges of all tracks of a split compete, round by round") {
  support::dice d(3);
  support::tally count;
  constexpr kvmeld::round_schedule steeper{0.45, 0.2, 2, 0.05};
  for (int i = 0; i < 80; ++i) {
    split const among = d.pick(splits);
    double const floor = d.pick({0.0, 0.2, 0.6, 1.0});
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    auto p = kvmeld::preset::chelsea::with_schedule(steeper, quantity::entries(2), quantity::entries(4));
    p.identify.chunk = d.pick({2u, 14u, 256u});
    auto cache = cache_for(memory, part(p), over(among));
    bool const ragged = d.chance(0.5);
    open_ragged(cache, d, 0, d.between(40, 90), ragged);
    vary_heads(cache, d);
    for (std::uint32_t bad = !ragged && d.chance(0.6) ? d.between(1, 6) : 0; bad > 0;
         --bad) {  // rows are looked at once
      support::write_row(cache.ref().keys, kvmeld::make_track(s, 0, 0, 0), d.between(4, 30),
                         {kvmeld::bits_float(0x7fc00000u)});
    }
    auto const table = random_budgets(d, s, d.pick({25u, 50u, 110u}));
    reference::chelsea_options o{2, 4, p.identify.chunk, 0.45, 0.2, 0.05, 2, cache.rounds(0)};
    std::vector<reference::split_outcome> expected;
    auto const tracks = splits_of(s, 0, among);
    std::uint32_t const rounds_before = cache.rounds(0);
    std::uint32_t most_rounds = 0;
    for (auto const& of : tracks) {
      std::uint32_t allowed = 0, held = 0;
      for (kvmeld::track t : of) {
        allowed += std::min(table[t.index], s.capacity);
        held += cache.ref().length(t);
      }
      if (of.size() > 1 && held > allowed)
        most_rounds = std::max(
            most_rounds, p.identify.most_rounds_of(held - allowed, static_cast<std::uint32_t>(of.size())));
      std::vector<reference::track_state> was;
      std::vector<reference::sharer> shares;
      for (kvmeld::track t : of) {
        was.push_back(support::read_track(cache.ref(), t));
        std::size_t const b = std::min(table[t.index], s.capacity);
        shares.push_back({b, reference::reserve_of(floor, b, was.back().size()), 2, 4});
      }
      expected.push_back(reference::chelsea_over(was, shares, o));
    }
    cache.compress({0}, budget::per_track(table.data()).over(among, floor));
    if (s.kv_heads > 1) CHECK(cache.rounds(0) - rounds_before <= most_rounds);
    for (std::size_t k = 0; k < tracks.size(); ++k) {
      std::size_t sum = 0;
      for (auto const& after : expected[k].after) sum += after.size();
      CHECK(held_by(cache, tracks[k]) == sum);
      compare(cache, tracks[k], expected[k], count);
    }
  }
  MESSAGE("compared ", count.compared, " splits, skipped ", count.skipped);
  CHECK(count.compared > 60);
  CHECK(count.share() < 0.2);
}

TEST_CASE("one threshold for all tracks of a split, and the most similar neighbours of all of them") {
  support::dice d(4);
  support::tally count;
  for (int i = 0; i < 80; ++i) {
    split const among = d.pick(splits);
    double const floor = d.pick({0.0, 0.2, 0.6, 1.0});
    std::uint32_t const bisections = d.pick({1u, 3u, 6u, 16u});
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    auto p = kvmeld::preset::kvmerger::for_budget();
    p.identify.admission.bisections = bisections;
    auto cache = cache_for(memory, part(p), over(among));
    bool const ragged = d.chance(0.5);
    open_ragged(cache, d, 0, d.between(40, 90), ragged);
    vary_heads(cache, d);
    for (std::uint32_t bad = !ragged && d.chance(0.5) ? d.between(1, 3) : 0; bad > 0;
         --bad) {  // rows are looked at once
      support::write_row(cache.ref().keys, kvmeld::make_track(s, 0, 0, 0), d.between(4, 30),
                         {kvmeld::bits_float(0x7fc00000u)});
    }
    auto const table = random_budgets(d, s, d.pick({25u, 50u, 110u}));
    std::vector<reference::split_outcome> expected;
    auto const tracks = splits_of(s, 0, among);
    std::vector<std::size_t> sums;
    for (auto const& of : tracks) {
      std::vector<reference::track_state> was;
      std::vector<reference::sharer> shares;
      std::vector<reference::kvmerger_options> options;
      sums.push_back(0);
      for (kvmeld::track t : of) {
        was.push_back(support::read_track(cache.ref(), t));
        std::size_t const b = std::min(table[t.index], s.capacity);
        sums.back() += b;
        // A track alone shares with nobody: its own threshold is all there is.
        shares.push_back({b, of.size() == 1 ? 0 : reference::reserve_of(floor, b, was.back().size()), 0, 0});
        reference::kvmerger_options o;
        o.recents = std::min(reference::floor_count(1.0 / 3, b), was.back().size());
        o.heavies = reference::floor_count(0.25, b);
        options.push_back(o);
      }
      sums.back() = std::min(sums.back(), held_by(cache, of));
      expected.push_back(reference::kvmerger_over(was, shares, options, bisections));
    }
    cache.compress({0}, budget::per_track(table.data()).over(among, floor));
    for (std::size_t k = 0; k < tracks.size(); ++k) {
      CHECK(held_by(cache, tracks[k]) == sums[k]);
      compare(cache, tracks[k], expected[k], count);
    }
  }
  MESSAGE("compared ", count.compared, " splits, skipped ", count.skipped);
  CHECK(count.compared > 60);
  CHECK(count.share() < 0.3);
}

}  // namespace split_cases
