// SPDX-License-Identifier: Apache-2.0
// The contract of merge functions, and the phases that compute the weights of sets and spans.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/merge/set_view.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A merge function says with which weights the members of a set become one entry. It has one of these forms:
/// - `float weight(set_view, i)`: the weight of member i, for keys and values. The library asks once for each
///   member and divides the weights by their sum. If the sum is not above 0, or not finite, members weigh
///   alike. Such a merge function derives from merge::defaults.
/// - `weigh(wave, tile, pivot, members)`, if not `cooperative`: writes key, value and degree weights into the
///   step; one lane calls it, once per set
/// - `weigh(team, wave, keys, tile, pivot, members, buffers)`, if `cooperative`: the whole team calls it, set
///   by set
/// - `prepare(team, key_channels)`, if `cooperative`: returns those buffers, once per tile
/// - `weigh_spans(team, wave, tile, sources)`, if `spreads`: the whole team calls it once per track, with the
///   spread sources; their value weights hold the identifier's masks
///
/// It has `scratch_bytes(shape, lanes)`, and answers `carries_degree()`: whether a result stands for more
/// tokens than its pivot did. If it does not, the library leaves every pivot's degree as it is, whatever
/// `weigh` wrote. Everything else it states in its `facts` (merge_facts).
namespace merge_uses {
template <class M> using carries_degree = decltype(static_cast<bool>(contract::some<M>().carries_degree()));
template <class M>
using scratch_bytes = decltype(static_cast<std::size_t>(contract::some<M>().scratch_bytes(shape{}, 1)));
template <class M> using prepare = decltype(contract::some<M>().prepare(contract::some<serial_team>(), 0u));
template <class M>
using weigh = decltype(contract::some<M>().weigh(contract::some<wave_ref>(), tile{}, slot_t{},
                                                 contract::some<member_list>()));
template <class M>
using weight = decltype(static_cast<float>(contract::some<M>().weight(contract::some<set_view>(), 0u)));
template <class M>
using weigh_together =
    decltype(contract::some<M>().weigh(contract::some<serial_team>(), contract::some<wave_ref>(),
                                       contract::some<strided<float>>(), tile{}, slot_t{},
                                       contract::some<member_list>(), contract::some<prepare<M>>()));
template <class M>
using weigh_spans = decltype(contract::some<M>().weigh_spans(
    contract::some<serial_team>(), contract::some<wave_ref>(), tile{}, contract::some<member_list>()));
}  // namespace merge_uses

namespace detail {

/// Number of the first requirement that a merge function lacks, as require_merge_function counts; -1: none.
template <class M, bool Together = stated_facts<merge_facts, M>.cooperative,
          bool Spreads = stated_facts<merge_facts, M>.spreads>
constexpr int missing_in_merge_function = contract::first_missing<
    std::is_trivially_copyable_v<M>, has_form_of_facts<merge_facts, M>(),
    contract::allows<merge_uses::carries_degree, M>, contract::allows<merge_uses::scratch_bytes, M>,
    Spreads || !Together || contract::allows<merge_uses::prepare, M>,
    Spreads || !Together || contract::allows<merge_uses::weigh_together, M>,
    Spreads || Together || contract::allows<merge_uses::weight, M> || contract::allows<merge_uses::weigh, M>,
    !Spreads || contract::allows<merge_uses::weigh_spans, M>>();

}  // namespace detail

/// Whether a type is a merge function.
template <class Merge>
struct is_merge_function : std::bool_constant<detail::missing_in_merge_function<Merge> == -1> {};

namespace detail {

/// Refuses a type that is no merge function. The message says what is missing; the compiler's note names the
/// type.
template <class Merge> constexpr void require_merge_function() {
  constexpr int missing = missing_in_merge_function<Merge>;
  static_assert(missing != 0, "kvmeld: the merge function is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the merge function states no `static constexpr merge_facts facts`");
  static_assert(missing != 2, "kvmeld: the merge function has no `bool carries_degree()`");
  static_assert(missing != 3, "kvmeld: the merge function has no `std::size_t scratch_bytes(shape, lanes)`");
  static_assert(missing != 4,
                "kvmeld: the merge function is cooperative, but has no `prepare(team, key_channels)`");
  static_assert(missing != 5, "kvmeld: the merge function is cooperative, but has no "
                              "`weigh(team, wave, keys, tile, pivot, members, buffers)`");
  static_assert(
      missing != 6,
      "kvmeld: the merge function has no `float weight(set_view, i)`, and no `weigh(wave, tile, pivot, "
      "members)`");
  static_assert(missing != 7,
                "kvmeld: the merge function spreads, but has no `weigh_spans(team, wave, tile, sources)`");
}

}  // namespace detail

/// Whether a merge function keeps what it merged as members: the cache's ref is then a shared_ref.
template <class Merge> struct shares_entries : std::bool_constant<stated_facts<merge_facts, Merge>.shares> {};

/// Whether degrees of results grow. Members of shared entries are counted, whatever carries_degree() says.
template <class Merge> bool adds_up(Merge const& merge) {
  return merge.carries_degree() || shares_entries<Merge>::value;
}
/// Undoes degree weights: pivots and targets keep their degree, and other entries add nothing to it.
KVMELD_HD inline void leave_degree(plan_ref const& step, std::uint32_t item, slot_t s) {
  std::size_t const e = step.at(item, s);
  if (step.fates[e] == fate::drop) return;
  step.degree_weight[e] = step.fates[e] == fate::keep ? 1.0f : 0.0f;
}

/// Writes one set's weights: `share(i)` for member i, the same for keys and values.
template <class Share>
KVMELD_HD void write_weights(wave_ref const& wave, tile const& t, member_list const& m, Share share) {
  for (std::uint32_t i = 0; i < m.count; ++i) {
    std::size_t const e = wave.step.at(t.item, m.slots[i]);
    float const w = share(i);
    wave.step.key_weight[e] = w;
    wave.step.value_weight[e] = w;
  }
}

namespace detail {

/// Writes the weights of one set, whichever form the merge function has that one lane calls.
template <class Merge, class Keys>
KVMELD_HD void weigh_set(Merge const& merge, wave_ref const& wave, [[maybe_unused]] Keys const& keys,
                         tile const& t, slot_t pivot, member_list const& m) {
  if constexpr (contract::allows<merge_uses::weight, Merge>) {
    set_view const set(wave, t, pivot, m, reader_of(keys));
    auto const weight = [&](std::uint32_t i) -> float& {  // views do not read it
      return wave.step.value_weight[wave.step.at(t.item, m.slots[i])];
    };
    float total = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) total += weight(i) = merge.weight(set, i);
    bool const usable = is_finite(total) && total > 0.0f;
    float const equal = 1.0f / static_cast<float>(m.count);
    write_weights(wave, t, m, [&](std::uint32_t i) { return usable ? weight(i) / total : equal; });
  } else {
    merge.weigh(wave, t, pivot, m);
  }
}

/// Computes the weights of the step's sets.
template <class Merge, class Keys> struct weigh_phase {
  static constexpr std::uint32_t block = 512;  ///< pivot slots per tile
  Merge merge;
  Keys keys;
  wave_ref wave;
  bool adds_degrees = adds_up(merge);

  KVMELD_HD std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int lanes) const {
    return merge.scratch_bytes(wave.ledger.extent, lanes) +
           (stated_facts<merge_facts, Merge>.cooperative ? scratch_size(block * sizeof(slot_t)) : 0);
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].merged == 0) return;
    std::uint32_t const count = min_of(block, n - begin);
    if constexpr (stated_facts<merge_facts, Merge>.cooperative) {
      auto const scratch = merge.prepare(team, keys.channels());
      slot_t* const pivots = team.template scratch<slot_t>(block);
      std::uint32_t const found = list_pivots(team, wave, t.item, begin, count, pivots);
      for (std::uint32_t i = 0; i < found; ++i) {
        member_list const m = members_of(wave, t.item, pivots[i]);
        merge.weigh(team, wave, keys, t, pivots[i], m, scratch);
        if (adds_degrees) continue;
        team.sync();
        team.for_each(m.count, [&](std::uint32_t j) { leave_degree(wave.step, t.item, m.slots[j]); });
        team.sync();
      }
    } else {
      for_each_set(team, wave, t.item, begin, count, [&](slot_t p, member_list const& m) {
        weigh_set(merge, wave, keys, t, p, m);
        if (adds_degrees) return;
        for (std::uint32_t j = 0; j < m.count; ++j) leave_degree(wave.step, t.item, m.slots[j]);
      });
    }
  }
};

/// Computes the weights of the step's spans.
template <class Merge> struct weigh_spans_phase {
  Merge merge;
  wave_ref wave;
  bool adds_degrees = adds_up(merge);

  static constexpr bool light = stated_facts<merge_facts, Merge>.light, spans_blocks = light;
  KVMELD_HD std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return merge.scratch_bytes(wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    member_list const sources = spreads_of(wave, t.item);
    if (sources.count == 0) return;
    merge.weigh_spans(team, wave, t, sources);
    if (adds_degrees) return;
    team.sync();
    team.for_each(wave.state[t.item].length, [&](std::uint32_t i) { leave_degree(wave.step, t.item, i); });
    team.sync();
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
