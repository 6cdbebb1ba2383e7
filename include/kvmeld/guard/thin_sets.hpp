// The phases of a round that let merges through: candidates that cannot pass are struck out before admission, and admitted
// sets that break the bound lose their farthest members.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/guard/certificate.hpp>
#include <kvmeld/guard/certified.hpp>
#include <kvmeld/guard/measure_set.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// The norm that no value of a track exceeds, as far as the bound is concerned, stored means included: storing may lengthen
/// a row by its rounding, and sets whose values come out longer do not pass.
KVMELD_HD inline float largest_value(certified const& guard, ledger_ref const& l, track where) {
  return max_of(guard.value_norm, bits_float(l.word(where, track_word::value_norm))) * 1.015625f;  // 1 + 2^-6
}

/// Takes the norms of values that are still as they came into the track's largest.
template <class Values> struct value_norm_phase {
  Values values;
  wave_ref wave;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const {
    return scratch_size(std::size_t{measure_block} * values.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.active == 0) return;
    std::uint32_t const d = values.channels();
    float* const rows = team.template scratch<float>(std::size_t{measure_block} * d);
    certificate_rows const entries(wave.ledger, t.where);
    std::uint32_t most = wave.ledger.word(t.where, track_word::value_norm);
    for (slot_t first = 0; first < s.length; first += measure_block) {
      std::uint32_t const count = min_of(measure_block, s.length - first);
      values.load_tile(team, t.where, first, count, 0, d, rows, d);
      team.sync();
      team.for_each(count, [&](std::uint32_t r) {
        if (entries.merged(first + r)) return;
        float const* const row = rows + std::size_t{r} * d;
        float const norm = std::sqrt(dot(row, row, d)) * rounding_up;
        if (is_finite(norm))
          most = max_of(most, float_bits(norm));  // floats from 0 on are ordered as their bits
      });
      team.sync();
    }
    most = team.reduce(most, op_max{});
    if (team.lane() == 0) wave.ledger.word(t.where, track_word::value_norm) = most;
  }
};

/// Strikes out candidates (source, target) whose pair alone, weighed by degree, would break the bound: they must not take
/// the place of others. For identifiers that list edges. A candidate to a lane; rows are read where they lie.
template <class Identify, class Keys, class Values> struct veto_phase {
  static constexpr std::uint32_t block = 16;  ///< candidates looked at together
  static constexpr std::uint32_t per_tile = 256;
  Identify identify;
  certified guard;
  kv<Keys, Values> x;
  wave_ref wave;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, per_tile); }
  std::size_t scratch_bytes(int) const {
    return 2 * scratch_size(std::size_t{block} * x.keys.channels() * sizeof(float)) +
           2 * scratch_size(std::size_t{block} * x.values.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.active == 0) return;
    std::uint32_t const edges = identify.edges(s.places), begin = t.index * per_tile;
    if (begin >= edges) return;
    std::uint32_t const end = min_of(edges, begin + per_tile);
    candidate* const list = wave.candidates + wave.at(t.item, 0);
    std::uint32_t const dk = x.keys.channels(), dv = x.values.channels();
    float* const k = team.template scratch<float>(std::size_t{block} * dk);
    float* const l = team.template scratch<float>(std::size_t{block} * dk);
    float* const v = team.template scratch<float>(std::size_t{block} * dv);
    float* const w = team.template scratch<float>(std::size_t{block} * dv);
    certificate_rows const entries(wave.ledger, t.where);
    attention_bound const bound = guard.bound(dk);
    float const largest = largest_value(guard, wave.ledger, t.where);
    for (std::uint32_t first = begin; first < end; first += block) {
      std::uint32_t const count = min_of(block, end - first);
      for (std::uint32_t i = 0; i < count; ++i) {
        candidate const& c = list[first + i];
        if (c.key == 0) continue;
        x.keys.load_tile(team, t.where, c.source, 1, 0, dk, k + std::size_t{i} * dk, dk);
        x.keys.load_tile(team, t.where, c.target, 1, 0, dk, l + std::size_t{i} * dk, dk);
        x.values.load_tile(team, t.where, c.source, 1, 0, dv, v + std::size_t{i} * dv, dv);
        x.values.load_tile(team, t.where, c.target, 1, 0, dv, w + std::size_t{i} * dv, dv);
      }
      team.sync();
      team.for_each(count, [&](std::uint32_t i) {
        candidate& c = list[first + i];
        if (c.key == 0) return;
        float const na = wave.ledger.degree[wave.ledger.at(t.where, c.source)];
        float const nb = wave.ledger.degree[wave.ledger.at(t.where, c.target)];
        pair_of const pair{na / (na + nb), nb / (na + nb)};
        certificate const sum =
            pair.join(entries.at(c.source), entries.at(c.target),
                      distance_above(k + std::size_t{i} * dk, l + std::size_t{i} * dk, dk),
                      distance_above(v + std::size_t{i} * dv, w + std::size_t{i} * dv, dv));
        if (order_key(bound.error(sum, largest)) > order_key(guard.epsilon)) c.key = 0;
      });
      team.sync();
    }
  }

private:
  /// Two entries' certificates about their mean; rounding of storage is left to the measurement of the whole set.
  struct pair_of {
    float first, second;  ///< shares of the tokens

    KVMELD_HD certificate join(certificate const& a, certificate const& b, float key, float value) const {
      float const ka = second * key, kb = first * key, va = second * value, vb = first * value;
      return {max_of(a.key_reach + ka, b.key_reach + kb),
              first * (a.key_spread + ka * (2.0f * a.key_bias + ka)) +
                  second * (b.key_spread + kb * (2.0f * b.key_bias + kb)),
              first * a.key_bias + second * b.key_bias,
              first * (a.value_spread + va * (2.0f * a.value_bias + va)) +
                  second * (b.value_spread + vb * (2.0f * b.value_bias + vb)),
              first * a.value_bias + second * b.value_bias};
    }
  };
};

/// Measures every set of the step, as linked and weighed. One that breaks the bound keeps its pivot and as many of the
/// nearest members as halving finds to pass, their weights in proportion; the others stay entries of their own. Nearest is
/// what would cost least in a pair with the pivot, ties to the lower slot. Sets do not depend on each other: the bound is on
/// each set by itself (docs/guarded.md). Ranks borrow wave.candidates, free since sets were admitted.
template <class Keys, class Values> struct thin_phase {
  certified guard;
  kv<Keys, Values> x;
  wave_ref wave;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, set_block); }
  std::size_t scratch_bytes(int) const {
    return measure_scratch(x.keys.channels()) + measure_scratch(x.values.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    std::uint32_t const begin = t.index * set_block;
    if (begin >= s.length || s.merged == 0) return;
    set_measure<Team, Keys, Values> const measure(team, wave, wave.step, x, t);
    for (slot_t p = begin; p < min_of(s.length, begin + set_block); ++p) {
      member_list const m = members_of(wave, t.item, p);
      if (m.count < 2 || passes(measure, t, m, {nullptr, m.count})) continue;
      rank(team, measure, t, p, m);
      candidate const* const ranks = wave.candidates + wave.at(t.item, 0);
      std::uint32_t low = 1, high = m.count;
      while (high - low > 1) {
        std::uint32_t const middle = low + (high - low) / 2;
        (passes(measure, t, m, {ranks, middle}) ? low : high) = middle;
      }
      thin_set(team, wave, t, m, {ranks, low});
    }
  }

private:
  template <class Measure>
  KVMELD_HD bool passes(Measure const& measure, tile const& t, member_list const& m,
                        kept_members const& kept) const {
    measured_set const set = measure(m, kept);
    float const radius = largest_value(guard, wave.ledger, t.where);
    float const error = guard.bound(x.keys.channels()).error(set.bounds, radius);
    return order_key(error) <= order_key(guard.epsilon) && order_key(set.value_norm) <= order_key(radius);
  }

  /// ranks[slot].source = place of the member in the order of cost, 0 for the pivot.
  template <class Team, class Measure>
  KVMELD_HD void rank(Team const& team, Measure const& measure, tile const& t, slot_t p,
                      member_list const& m) const {
    candidate* const ranks = wave.candidates + wave.at(t.item, 0);
    std::uint32_t const dk = x.keys.channels(), dv = x.values.channels();
    measure_buffers const& k = measure.keys();
    measure_buffers const& v = measure.values();
    float const steepness = guard.bound(dk).steepness;
    float const largest = largest_value(guard, wave.ledger, t.where);
    x.keys.load_tile(team, t.where, p, 1, 0, dk, k.center, dk);
    x.values.load_tile(team, t.where, p, 1, 0, dv, v.center, dv);
    for (std::uint32_t i = 0; i < m.count; i += measure_block) {
      std::uint32_t const count = min_of(measure_block, m.count - i);
      for (std::uint32_t r = 0; r < count; ++r) {
        x.keys.load_tile(team, t.where, m.slots[i + r], 1, 0, dk, k.rows + std::size_t{r} * dk, dk);
        x.values.load_tile(team, t.where, m.slots[i + r], 1, 0, dv, v.rows + std::size_t{r} * dv, dv);
      }
      team.sync();
      team.for_each(count, [&](std::uint32_t r) {
        slot_t const s = m.slots[i + r];
        certificate const own = measure.certificates().at(s);
        float const logits =
            steepness * (distance_above(k.center, k.rows + std::size_t{r} * dk, dk) + own.key_reach);
        float const values =
            distance_above(v.center, v.rows + std::size_t{r} * dv, dv) + std::sqrt(own.value_spread);
        ranks[s].key = s == p ? 0u : max_of(1u, order_key(logits * (logits * largest + values)));
      });
      team.sync();
    }
    place_by_key(team, ranks, m, [&](slot_t s, std::uint32_t place) { ranks[s].source = place; });
  }
};

/// Counts again what a round merges, after sets were thinned. A round that merged nothing is the last.
struct recount_phase {
  wave_ref wave;
  std::uint32_t rounds;  ///< of one compression at most

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    std::uint32_t const before = s.merged;
    if (before == 0) return;
    std::uint32_t merged = 0;
    team.for_each(s.length, [&](std::uint32_t i) {
      merged += wave.step.what[wave.step.at(t.item, i)] == fate::merge ? 1u : 0u;
    });
    merged = team.reduce(merged, op_sum{});
    if (team.lane() != 0) return;
    s.alive += before - merged;
    s.merged = merged;
    if (merged == 0) --s.rounds;
    s.active = merged != 0 && s.alive > s.limit && s.rounds < rounds ? 1u : 0u;
  }
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
