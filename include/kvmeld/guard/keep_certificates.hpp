// Certificates become part of the ledger: before rows merge, and as one number per track when all is done.
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
#include <kvmeld/guard/thin_sets.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Writes the certificates of the sets of `map`, which link_phase listed, to their pivots: of the rows as they will be
/// stored, about the tokens as they came. Runs before keys, values and degrees merge.
template <class Keys, class Values> struct certify_phase {
  kv<Keys, Values> x;
  wave_ref wave;
  plan_ref map;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, set_block); }
  std::size_t scratch_bytes(int) const {
    return measure_scratch(x.keys.channels()) + measure_scratch(x.values.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length, begin = t.index * set_block;
    if (begin >= n) return;
    set_measure<Team, Keys, Values> const measure(team, wave, map, x, t);
    for (slot_t p = begin; p < min_of(n, begin + set_block); ++p) {
      member_list const m = members_of(wave, t.item, p);
      if (m.count < 2) continue;
      measured_set const set = measure(m, {nullptr, m.count});
      if (team.lane() == 0) measure.certificates().write(p, set.bounds);
      team.sync();
    }
  }
};

/// Writes what the certificates of a track's entries bound the error by, for tracks that were above their budget.
struct certified_error_phase {
  certified guard;
  wave_ref wave;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (wave.state[t.item].length <= wave.state[t.item].limit) return;
    ledger_ref const& l = wave.ledger;
    certificate_rows const entries(l, t.where);
    attention_bound const bound = guard.bound(l.extent.key_dim);
    float const largest = largest_value(guard, l, t.where);
    std::uint32_t most = 0;
    team.for_each(l.length[t.where.index], [&](std::uint32_t s) {
      if (entries.merged(s)) most = max_of(most, float_bits(bound.error(entries.at(s), largest)));
    });
    most = team.reduce(most, op_max{});
    if (team.lane() == 0) l.word(t.where, track_word::guarded_error) = most;
  }
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
