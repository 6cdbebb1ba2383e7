// How the rows of a set lie about the row that will be stored for them.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/guard/certificate.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/tiled.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Layouts that store every element by element_traits alone, so that what storing does to a row can be told beforehand.
template <class Layout> struct rounds_elements : has_plain_rows<Layout> {};
template <class Keys> struct rounds_elements<latent<Keys>> : rounds_elements<Keys> {};
template <class Groups> struct rounds_elements<tiled<Groups>> : std::true_type {};

/// Members of a set that are to merge: those of rank below `count`, of the ranks in wave.candidates; or all.
struct kept_members {
  candidate const* ranks;  ///< of the track's slots; null: all
  std::uint32_t count;

  KVMELD_HD bool operator()(slot_t s) const { return ranks == nullptr || ranks[s].source < count; }
};

/// What the kept members' weights are multiplied with, so that they add up to what all did; exactly 1 where all are kept.
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

/// Takes the members that are not kept out of a set of the step: they stay entries of their own, and what is kept keeps
/// the proportions of its weights. Cooperative; barrier at the end.
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

/// Upper bounds of one side, K or V: of tokens about the stored row.
struct side_bounds {
  float reach, spread, bias;
  float norm;  ///< of the stored row
};

constexpr std::uint32_t measure_block = 16;  ///< rows held at once

KVMELD_HD constexpr std::size_t measure_scratch(std::uint32_t channels) {
  return scratch_size(std::size_t{measure_block} * channels * sizeof(float)) +
         3 * scratch_size(channels * sizeof(float)) + scratch_size(measure_block * sizeof(float)) +
         scratch_size(4 * sizeof(float));
}

/// Scratch of measure_side, taken once per tile.
struct measure_buffers {
  float *rows, *center, *mean, *slack, *distance, *shared;

  template <class Team>
  KVMELD_HD measure_buffers(Team const& team, std::uint32_t channels)
      : rows(team.template scratch<float>(std::size_t{measure_block} * channels)),
        center(team.template scratch<float>(channels)),
        mean(team.template scratch<float>(channels)),
        slack(team.template scratch<float>(channels)),
        distance(team.template scratch<float>(measure_block)),
        shared(team.template scratch<float>(4)) {}
};

/// How far a number within `off` of x may lie from x once it is stored: rounding is monotonic.
template <class T> KVMELD_HD float storage_error(float x, float off) {
  auto const stored = [](float y) { return element_traits<T>::to_float(element_traits<T>::from_float(y)); };
  float const above = std::fabs(stored(x + off) - x), below = std::fabs(stored(x - off) - x);
  return max_of(above, below);
}

/// The distance of two rows, rounded up.
KVMELD_HD inline float distance_above(float const* a, float const* b, std::uint32_t n) {
  return std::sqrt(squared_distance(a, b, n)) * rounding_up + least_distance;
}

/// visit(r, slot) for the kept members' rows, in blocks: loads block after block, then visits its rows one by one.
/// `held` tells that one block holds them all and is loaded. Cooperative; barrier before each block's visits.
template <class Team, class Layout, class Visit>
KVMELD_HD void for_blocks(Team const& team, Layout const& layout, track where, member_list const& m,
                          kept_members const& kept, float* rows, bool held, Visit visit) {
  std::uint32_t const d = layout.channels();
  for (std::uint32_t i = 0; i < m.count;) {
    slot_t slots[measure_block];
    std::uint32_t count = 0;
    for (; i < m.count && count < measure_block; ++i) {
      if (kept(m.slots[i])) slots[count++] = m.slots[i];
    }
    if (count == 0) return;
    if (!held) {
      for (std::uint32_t r = 0; r < count; ++r)
        layout.load_tile(team, where, slots[r], 1, 0, d, rows + std::size_t{r} * d, d);
      team.sync();
    }
    visit(slots, count);
    team.sync();
  }
}

/// Measures one side of a set. `weight(slot)` is what a row counts with in the row that is stored, `share(slot)` the
/// member's part of the set's tokens; `before(slot)` gives reach, spread and bias of the member's own tokens about its row.
/// Reads each row twice at most. Sums in member order; all lanes get the result. Cooperative.
template <class Team, class Layout, class Weight, class Share, class Before>
KVMELD_HD side_bounds measure_side(Team const& team, Layout const& layout, track where, member_list const& m,
                                   kept_members const& kept, Weight weight, Share share, Before before,
                                   measure_buffers const& b) {
  using element = typename Layout::element_type;
  std::uint32_t const d = layout.channels();
  std::uint32_t members = 0;
  for (std::uint32_t i = 0; i < m.count; ++i) members += kept(m.slots[i]) ? 1u : 0u;
  team.for_each(d, [&](std::uint32_t c) { b.center[c] = b.mean[c] = b.slack[c] = 0.0f; });
  for_blocks(team, layout, where, m, kept, b.rows, false, [&](slot_t const* slots, std::uint32_t count) {
    for (std::uint32_t r = 0; r < count; ++r) {
      float const w = weight(slots[r]), n = share(slots[r]);
      float const most = max_of(std::fabs(w), n);
      float const* const row = b.rows + std::size_t{r} * d;
      team.for_each(d, [&](std::uint32_t c) {
        b.center[c] += w * row[c];
        b.mean[c] += n * row[c];
        b.slack[c] += most * std::fabs(row[c]);
      });
    }
  });
  // The merge sums in its own way: its sum, ours and the exact one lie within `off` of each other.
  float const unit = static_cast<float>(members + 4) * 0x1p-22f;
  team.for_each(d, [&](std::uint32_t c) {
    float const off = b.slack[c] * unit;
    float const error = storage_error<element>(b.center[c], off);
    b.mean[c] = std::fabs(b.center[c] - b.mean[c]) + error + off;
    b.slack[c] = error;
  });
  team.sync();
  auto const norm_of = [&](float const* x) { return std::sqrt(dot(x, x, d)) * rounding_up + least_distance; };
  float const stored = norm_of(b.slack);  // distance of the stored row from `center`
  float const off_mean = norm_of(b.mean);
  float const norm = norm_of(b.center) + stored;
  if (team.lane() == 0) b.shared[0] = b.shared[1] = b.shared[2] = 0.0f;
  for_blocks(team, layout, where, m, kept, b.rows, members <= measure_block,
             [&](slot_t const* slots, std::uint32_t count) {
               team.for_each(count, [&](std::uint32_t r) {
                 b.distance[r] = distance_above(b.center, b.rows + std::size_t{r} * d, d) + stored;
               });
               team.sync();
               if (team.lane() != 0) return;
               for (std::uint32_t r = 0; r < count; ++r) {
                 side_bounds const own = before(slots[r]);
                 float const x = b.distance[r], n = share(slots[r]);
                 b.shared[0] = max_of(b.shared[0], own.reach + x);
                 b.shared[1] += n * (own.spread + x * (2.0f * own.bias + x));
                 b.shared[2] += n * own.bias;
               }
             });
  team.sync();
  side_bounds const out{b.shared[0] * rounding_up, b.shared[1] * rounding_up,
                        (b.shared[2] + off_mean) * rounding_up, norm};
  team.sync();
  return out;
}

constexpr std::uint32_t set_block = 64;  ///< pivot slots per tile of the phases that measure sets

/// A set about its stored key and value.
struct measured_set {
  certificate bounds;
  float value_norm;  ///< of the stored value
};

/// Measures sets of one track of a wave by the coefficients of `map` (the step or the plan). Where only some of a set's
/// members are kept, weights keep their proportions.
template <class Team, class Keys, class Values> class set_measure {
public:
  KVMELD_HD set_measure(Team const& team, wave_ref const& wave, plan_ref const& map,
                        kv<Keys, Values> const& x, tile const& t)
      : team_(team),
        wave_(wave),
        map_(map),
        x_(x),
        t_(t),
        certificates_(wave.ledger, t.where),
        key_(team, x.keys.channels()),
        value_(team, x.values.channels()) {}

  static constexpr std::size_t scratch(std::uint32_t key_channels, std::uint32_t value_channels) {
    return measure_scratch(key_channels) + measure_scratch(value_channels);
  }

  KVMELD_HD measured_set operator()(member_list const& m, kept_members const& kept) const {
    float tokens = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) tokens += kept(m.slots[i]) ? degree(m.slots[i]) : 0.0f;
    float const scaled_key = rescaling(map_, t_.item, m, kept, map_.key_weight);
    float const scaled_value = rescaling(map_, t_.item, m, kept, map_.value_weight);
    auto const share = [&](slot_t s) { return degree(s) / tokens; };
    side_bounds const k = measure_side(
        team_, x_.keys, t_.where, m, kept,
        [&](slot_t s) { return map_.key_weight[map_.at(t_.item, s)] * scaled_key; }, share,
        [&](slot_t s) {
          certificate const c = certificates_.at(s);
          return side_bounds{c.key_reach, c.key_spread, c.key_bias, 0.0f};
        },
        key_);
    side_bounds const v = measure_side(
        team_, x_.values, t_.where, m, kept,
        [&](slot_t s) { return map_.value_weight[map_.at(t_.item, s)] * scaled_value; }, share,
        [&](slot_t s) {
          certificate const c = certificates_.at(s);
          return side_bounds{0.0f, c.value_spread, c.value_bias, 0.0f};
        },
        value_);
    return {{k.reach, k.spread, k.bias, v.spread, v.bias}, v.norm};
  }

  KVMELD_HD certificate_rows const& certificates() const { return certificates_; }
  KVMELD_HD measure_buffers const& keys() const { return key_; }
  KVMELD_HD measure_buffers const& values() const { return value_; }

private:
  KVMELD_HD float degree(slot_t s) const { return wave_.ledger.degree[wave_.ledger.at(t_.where, s)]; }

  Team const& team_;
  wave_ref const& wave_;
  plan_ref const& map_;
  kv<Keys, Values> const& x_;
  tile const& t_;
  certificate_rows certificates_;
  measure_buffers key_, value_;
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
