// The phases of a guarded compression, which is measured with probes.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/guard/probe_bench.hpp>
#include <kvmeld/guard/probed.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Members of a set that are to merge: those with a rank below `count` in wave.candidates, or all.
struct kept_members {
  candidate const* ranks;  ///< of the track's slots; null: all
  std::uint32_t count;

  KVMELD_HD bool operator()(slot_t s) const { return ranks == nullptr || ranks[s].source < count; }
};

/// Factor for the weights of the kept members, so that they add up to the weights of all members. Exactly 1
/// if all are kept.
KVMELD_HD inline float rescaling(plan_ref const& map, std::uint32_t item, member_list const& m,
                                 kept_members const& kept, float const* weights) {
  float all = 0.0f, some = 0.0f;
  bool whole = true;
  for (std::uint32_t i = 0; i < m.count; ++i) {
    float const w = weights[map.at(item, m.slots[i])];
    all += w;
    whole = whole && kept(m.slots[i]);
    if (kept(m.slots[i])) some += w;
  }
  return whole ? 1.0f : all / some;
}

/// Removes the members that are not kept from a set of the step: they stay entries of their own. The weights
/// of kept members keep their proportions. If fewer than two are kept, none merges. Cooperative; barrier at
/// the end.
template <class Team>
KVMELD_HD void thin_set(Team const& team, wave_ref const& wave, tile const& t, member_list const& m,
                        kept_members const& kept) {
  plan_ref const& step = wave.step;
  float const key = rescaling(step, t.item, m, kept, step.key_weight);
  float const value = rescaling(step, t.item, m, kept, step.value_weight);
  team.sync();
  team.for_each(m.count, [&](std::uint32_t i) {
    slot_t const s = m.slots[i];
    std::size_t const e = step.at(t.item, s);
    if (kept.count < 2 || !kept(s)) return keep_entry(step, t.item, s);
    step.key_weight[e] *= key;
    step.value_weight[e] *= value;
  });
  team.sync();
}

constexpr std::uint32_t set_block = 64;  ///< pivot slots per tile of the phases that measure sets

/// Base of the phases below.
template <class Q, class Keys, class Values> struct probe_phase {
  probed<Q> guard;
  kv<Keys, Values> x;
  wave_ref wave;

  template <class Team> using bench_of = probe_bench<Team, Q, Keys, Values>;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const {
    return probe_bench<serial_team, Q, Keys, Values>::scratch(
        guard.probes.count * wave.ledger.extent.queries_per_kv_head, x.keys.channels(), x.values.channels());
  }
  /// Bits of the largest change that passes: below epsilon by the error that sums in float may have.
  KVMELD_HD std::uint32_t most() const { return float_bits(guard.epsilon * 0.9921875f); }
};

/// Computes the outputs of probes before anything merges.
template <class Q, class Keys, class Values> struct probe_outputs_phase : probe_phase<Q, Keys, Values> {
  using base = probe_phase<Q, Keys, Values>;
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = this->wave.state[t.item];
    typename base::template bench_of<Team> const bench(team, this->wave, this->guard, this->x, t);
    if (s.over_budget == 0)
      bench.clear();  // the track merges nothing: its error is 0
    else
      bench.begin(s.length);
  }
};

/// Strikes out candidates whose pair alone would change a probe by too much. For identifiers that list edges.
template <class Identify, class Q, class Keys, class Values>
struct probe_veto_phase : probe_phase<Q, Keys, Values> {
  using base = probe_phase<Q, Keys, Values>;
  static constexpr std::uint32_t per_tile = 256;
  Identify identify;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, per_tile); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = this->wave.state[t.item];
    if (s.over_budget == 0) return;
    std::uint32_t const edges = identify.edges(s.places), begin = t.index * per_tile;
    if (begin >= edges) return;
    candidate* const list = this->wave.candidates + this->wave.at(t.item, 0);
    typename base::template bench_of<Team> const bench(team, this->wave, this->guard, this->x, t);
    for (std::uint32_t i = begin; i < min_of(edges, begin + per_tile); ++i) {
      candidate const c = list[i];
      if (c.key == 0) continue;
      bool const passes = bench.pair_passes(c.target, c.source, this->most());
      if (!passes && team.lane() == 0) list[i].key = 0;
      team.sync();
    }
  }
};

/// A set of the step as a bench takes it, with members in the order of `slot` and weights times `key` and
/// `value`.
template <class Slot>
KVMELD_HD auto set_of_step(wave_ref const& wave, tile const& t, slot_t pivot, std::uint32_t count, Slot slot,
                           float key, float value) {
  plan_ref const step = wave.step;
  std::uint32_t const item = t.item;
  float const* const degree = wave.ledger.degree + wave.ledger.at(t.where, 0);
  return probed_set{count,
                    pivot,
                    slot,
                    [=](std::uint32_t i) { return degree[slot(i)]; },
                    [=](std::uint32_t i) { return step.key_weight[step.at(item, slot(i))] * key; },
                    [=](std::uint32_t i) { return step.value_weight[step.at(item, slot(i))] * value; }};
}

/// wave.candidates[pivot].key = bits of the largest change of a probe, if the pivot's set merges alone.
template <class Q, class Keys, class Values> struct probe_cost_phase : probe_phase<Q, Keys, Values> {
  using base = probe_phase<Q, Keys, Values>;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, set_block); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = this->wave.state[t.item];
    std::uint32_t const begin = t.index * set_block;
    if (begin >= s.length || s.merged == 0) return;
    typename base::template bench_of<Team> const bench(team, this->wave, this->guard, this->x, t);
    for (slot_t p = begin; p < min_of(s.length, begin + set_block); ++p) {
      member_list const m = members_of(this->wave, t.item, p);
      if (m.count < 2) continue;
      slot_t const* const slots = m.slots;
      bench.measure(set_of_step(
          this->wave, t, p, m.count, [=](std::uint32_t i) { return slots[i]; }, 1.0f, 1.0f));
      std::uint32_t const cost = bench.alone();
      if (team.lane() == 0) this->wave.candidates[this->wave.at(t.item, p)].key = cost;
    }
  }
};

/// Admits the sets of a track one by one, cheapest first, while no probe changes by more than epsilon in all.
/// Of a set that does not fit, bisection finds how many members fit: first those whose pair with the pivot
/// changes the least. wave.candidates holds the ranks and wave.live the order, wave.place is room to sort.
/// All are free once the identifier has admitted.
template <class Q, class Keys, class Values> struct probe_admit_phase : probe_phase<Q, Keys, Values> {
  using base = probe_phase<Q, Keys, Values>;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& w = this->wave;
    track_state const& s = w.state[t.item];
    if (s.merged == 0) return;
    slot_t* const order = w.live + w.at(t.item, 0);
    candidate* const ranks = w.candidates + w.at(t.item, 0);
    std::uint32_t const sets = compact_indices(
        team, s.length, [&](std::uint32_t p) { return members_of(w, t.item, p).count > 1; },
        [&](std::uint32_t rank, std::uint32_t p) { order[rank] = p; });
    detail::sort_lists(
        team, order, w.place + w.at(t.item, 0), sets, sets,
        [=](slot_t) {
          return lane_range{0, sets};
        },
        [=](slot_t a, slot_t b) {
          return ranks[a].key < ranks[b].key || (ranks[a].key == ranks[b].key && a < b);
        });
    typename base::template bench_of<Team> const bench(team, w, this->guard, this->x, t);
    for (std::uint32_t i = 0; i < sets; ++i) {
      slot_t const p = order[i];
      member_list const m = members_of(w, t.item, p);
      slot_t const* const slots = m.slots;
      if (fits(bench, set_of_step(
                          w, t, p, m.count, [=](std::uint32_t j) { return slots[j]; }, 1.0f, 1.0f))) {
        bench.admit();
        continue;
      }
      rank(team, bench, t, p, m);
      std::uint32_t low = 1, high = m.count;
      while (high - low > 1) {
        std::uint32_t const middle = low + (high - low) / 2;
        (fits(bench, nearest(t, p, m, middle)) ? low : high) = middle;
      }
      if (low > 1) {
        bench.measure(nearest(t, p, m, low));
        bench.admit();
      }
      thin(team, t, m, low);
    }
  }

private:
  template <class Bench, class Set> KVMELD_HD bool fits(Bench const& bench, Set const& set) const {
    bench.measure(set);
    return bench.together() <= this->most();
  }
  /// Ranks members by what their pair with pivot p changes. ranks[slots[r]].target is the member of rank r.
  template <class Team, class Bench>
  KVMELD_HD void rank(Team const& team, Bench const& bench, tile const& t, slot_t p,
                      member_list const& m) const {
    candidate* const ranks = this->wave.candidates + this->wave.at(t.item, 0);
    for (std::uint32_t i = 0; i < m.count; ++i) {
      std::uint32_t cost = 0;
      if (m.slots[i] != p) {
        bench.measure_pair(p, m.slots[i]);
        cost = 1 + bench.alone();
      }
      if (team.lane() == 0) ranks[m.slots[i]].key = cost;
      team.sync();
    }
    detail::place_by_key(team, ranks, m, [&](slot_t s, std::uint32_t place) {
      ranks[s].source = place;
      ranks[m.slots[place]].target = s;
    });
  }
  KVMELD_HD auto nearest(tile const& t, slot_t p, member_list const& m, std::uint32_t count) const {
    candidate const* const ranks = this->wave.candidates + this->wave.at(t.item, 0);
    slot_t const* const slots = m.slots;
    plan_ref const& step = this->wave.step;
    kept_members const kept{ranks, count};
    return set_of_step(
        this->wave, t, p, count, [=](std::uint32_t i) { return ranks[slots[i]].target; },
        rescaling(step, t.item, m, kept, step.key_weight),
        rescaling(step, t.item, m, kept, step.value_weight));
  }
  template <class Team>
  KVMELD_HD void thin(Team const& team, tile const& t, member_list const& m, std::uint32_t count) const {
    thin_set(team, this->wave, t, m, {this->wave.candidates + this->wave.at(t.item, 0), count});
  }
};

/// Counts again how many entries a round merges, after sets were thinned. A round that merges nothing is the
/// last.
struct recount_phase {
  wave_ref wave;
  std::uint32_t rounds;  ///< largest number of rounds in one compression

  static constexpr bool light = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    std::uint32_t const before = s.merged;
    if (before == 0) return;
    std::uint32_t merged = 0;
    team.for_each(s.length, [&](std::uint32_t i) {
      merged += wave.step.fates[wave.step.at(t.item, i)] == fate::merge ? 1u : 0u;
    });
    merged = team.reduce(merged, op_sum{});
    if (team.lane() != 0) return;
    s.alive += before - merged;
    s.merged = merged;
    if (merged == 0) --s.rounds;
    s.over_budget = merged != 0 && s.alive > s.limit && s.rounds < rounds ? 1u : 0u;
  }
};

/// Writes track_word::guard_report: the largest change of a probe.
template <class Q, class Keys, class Values> struct probe_error_phase : probe_phase<Q, Keys, Values> {
  using base = probe_phase<Q, Keys, Values>;
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    typename base::template bench_of<Team> const bench(team, this->wave, this->guard, this->x, t);
    std::uint32_t const error = bench.so_far();
    if (team.lane() == 0) this->wave.ledger.word(t.where, track_word::guard_report) = error;
  }
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
