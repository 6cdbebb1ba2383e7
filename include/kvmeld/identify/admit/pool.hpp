// The best keys of several tracks taken together: radix selection over their order keys, a digit per pass.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/select_k.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What competes for the places of a split: key i < share.keys of a track, 0 where there is none.
enum class pool : std::uint8_t {
  scores,      ///< entries between the pinned ends, by score: those taken stay
  candidates,  ///< what an identifier proposed, by similarity: those taken merge
  evictable,   ///< what a selector did not pin, by score from the lowest: those taken go
};

/// f(key of i) with the keys of a track's pool.
template <class F> KVMELD_HD void with_pool_keys(wave_ref const& wave, pool what, std::uint32_t item, F f) {
  if (what == pool::candidates) {
    candidate const* const list = wave.candidates + wave.at(item, 0);
    return f([=](std::uint32_t i) { return list[i].key; });
  }
  if (what == pool::scores) {
    float const* const score = wave.score + wave.at(item, wave.state[item].sinks);
    return f([=](std::uint32_t i) { return eligible_key(score[i]); });
  }
  fate const* const fates = wave.plan.what + wave.plan.at(item, 0);
  role const* const roles = wave.roles + wave.at(item, 0);
  float const* const score = wave.score + wave.at(item, 0);
  f([=](std::uint32_t i) {
    return fates[i] == fate::keep && roles[i] != role::pinned ? ~order_key(score[i]) : 0u;
  });
}

/// Base of the phases of splits: a tile per track, of which the first track's does what concerns all of them.
struct split_phase {
  wave_ref wave;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD bool leads(tile const& t) const { return t.item % wave.split == 0; }
  /// Sum of f(item) over the tracks of the split that `first` leads. Collective.
  template <class Team, class F>
  KVMELD_HD std::uint32_t sum(Team const& team, std::uint32_t first, F f) const {
    std::uint32_t all = 0;
    team.for_each(wave.split, [&](std::uint32_t m) { all += f(first + m); });
    return team.reduce(all, op_sum{});
  }
};

/// A split begins to choose: `wanted` keys of all its tracks. One lane of the leader.
KVMELD_HD inline void ask_pool(share_state& leader, std::uint32_t wanted) {
  leader.wanted = wanted;
  leader.prefix = 0;
}

/// counts[digit] of the keys that begin with the digits found so far. Pass 0 has the highest digit.
struct count_pool_phase : split_phase {
  static constexpr bool near_scratch = true;
  pool what;
  std::uint32_t pass;

  std::size_t scratch_bytes(int) const { return scratch_size(split_counts * sizeof(std::uint32_t)); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    share_state const s = wave.share[t.item];
    std::uint32_t const prefix = wave.share[wave.split_leader(t.item)].prefix;
    std::uint32_t const shift = 24 - 8 * pass;
    std::uint32_t* const histogram = team.template scratch<std::uint32_t>(split_counts);
    team.for_each(split_counts, [&](std::uint32_t b) { histogram[b] = 0; });
    team.sync();
    with_pool_keys(wave, what, t.item, [&](auto key) {
      team.for_each(s.least < s.most ? s.keys : 0, [&](std::uint32_t i) {
        std::uint32_t const x = key(i);
        if (x != 0 && (pass == 0 || x >> (shift + 8) == prefix))
          team.fetch_add(&histogram[(x >> shift) & 255u], 1);
      });
    });
    team.sync();
    std::uint32_t* const out = wave.counts_of(t.item);
    team.for_each(split_counts, [&](std::uint32_t b) { out[b] = histogram[b]; });
  }
};

/// Finds the next digit of the lowest key that is taken: as high as it can be with `wanted` taken of all tracks, each giving
/// from `least` to `most`. After the last pass every track has its quota: all keys above, and of equal ones as many
/// as are left, earlier tracks first. Within a track quotas go to the best keys, equal ones to the lower index.
struct narrow_pool_phase : split_phase {
  bool first_pass, last_pass;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    share_state* const share = wave.share + t.item;
    std::uint32_t const n = wave.split;
    std::uint32_t const wanted = share[0].wanted, prefix = share[0].prefix;
    team.for_each(n, [&](std::uint32_t m) {  // counts from the highest digit down to this one
      std::uint32_t* const counts = wave.counts_of(t.item + m);
      for (std::uint32_t b = split_counts - 1; b-- > 0;) counts[b] += counts[b + 1];
      if (first_pass) share[m].above = 0;
    });
    team.sync();
    std::uint32_t digit = 0;
    team.for_each(split_counts, [&](std::uint32_t b) {
      std::uint32_t taken = 0;
      for (std::uint32_t m = 0; m < n; ++m)
        taken += share[m].clamped(share[m].above + wave.counts_of(t.item + m)[b]);
      if (taken >= wanted) digit = max_of(digit, b);
    });
    digit = team.reduce(digit, op_max{});
    team.for_each(n, [&](std::uint32_t m) {
      std::uint32_t const* const counts = wave.counts_of(t.item + m);
      std::uint32_t const higher = digit + 1 < split_counts ? counts[digit + 1] : 0;
      share[m].above += higher;
      share[m].quota = share[m].above + counts[digit] - higher;  // with those that share the digit
    });
    team.sync();
    if (team.lane() == 0) share[0].prefix = prefix << 8 | digit;
    if (last_pass) share_ties(team, t.item, wanted);
  }

private:
  template <class Team>
  KVMELD_HD void share_ties(Team const& team, std::uint32_t first, std::uint32_t wanted) const {
    share_state* const share = wave.share + first;
    std::uint32_t const above = sum(
        team, first, [&](std::uint32_t item) { return wave.share[item].clamped(wave.share[item].above); });
    std::uint32_t const left = wanted > above ? wanted - above : 0;
    lane_range const mine = contiguous_range(team, wave.split);
    std::uint32_t ties = 0;
    for (std::uint32_t m = mine.begin; m < mine.end; ++m)
      ties += share[m].clamped(share[m].quota) - share[m].clamped(share[m].above);
    std::uint32_t before = team.scan(ties).before;
    for (std::uint32_t m = mine.begin; m < mine.end; ++m) {
      std::uint32_t const sure = share[m].clamped(share[m].above);
      std::uint32_t const own = share[m].clamped(share[m].quota) - sure;
      share[m].quota = sure + min_of(own, left > before ? left - before : 0);
      before += own;
    }
  }
};

/// Chooses among the keys of every split: all asked, none waited for.
template <class Launch> void share_out(Launch const& launch, wave_ref const& wave, pool what) {
  constexpr std::uint32_t passes = 4;
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    launch(count_pool_phase{{wave}, what, pass});
    launch(narrow_pool_phase{{wave}, pass == 0, pass + 1 == passes});
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
