// SPDX-License-Identifier: Apache-2.0
// A merge function chosen at run time.
#pragma once

#include <kvmeld/compose/any_part.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/merge/additive.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/merge/mass_preserving.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/merge/unit_direction.hpp>
#include <kvmeld/merge/weighted.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the listed merge functions, and is itself a merge function. None of them may
/// share entries, because a cache that shares entries has another type of ref.
template <class... Merges> class any_merge_of : public any_part<merge_facts, Merges...> {
  /// Whether the whole team weighs a set.
  template <class Merge>
  static constexpr bool together =
      stated_facts<merge_facts, Merge>.cooperative && !stated_facts<merge_facts, Merge>.spreads;

  /// The buffers of one merge function; empty if it has none. They are named by the merge function, because
  /// two of them may have buffers of one type.
  template <class Team, class Merge, bool = together<Merge>> struct own_buffers {};
  template <class Team, class Merge> struct own_buffers<Team, Merge, true> {
    decltype(std::declval<Merge const&>().prepare(std::declval<Team const&>(), 0u)) held{};
  };

public:
  static constexpr merge_facts facts{&merge_facts::cooperative, &merge_facts::spreads, &merge_facts::fits};

  using any_part<merge_facts, Merges...>::any_part;

  bool carries_degree() const {
    return this->of_.visit([](auto const& m) { return m.carries_degree(); });
  }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return this->of_.visit([&](auto const& m) { return m.scratch_bytes(s, lanes); });
  }

  /// Buffers of all cooperative alternatives side by side. Only those of the merge function that is held are
  /// filled.
  template <class Team> struct buffers : own_buffers<Team, Merges>... {
    /// Those of one of them.
    template <class Merge> KVMELD_HD auto& of() { return own_buffers<Team, Merge>::held; }
  };
  template <class Team> KVMELD_HD buffers<Team> prepare(Team const& team, std::uint32_t key_channels) const {
    buffers<Team> b{};
    this->of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (together<type>) b.template of<type>() = m.prepare(team, key_channels);
    });
    return b;
  }
  template <class Team, class Keys>
  KVMELD_HD void weigh(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t, slot_t pivot,
                       member_list const& set, buffers<Team> b) const {
    this->of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (together<type>) {
        m.weigh(team, wave, keys, t, pivot, set, b.template of<type>());
      } else if constexpr (!stated_facts<merge_facts, type>.spreads) {
        if (team.lane() == 0) kvmeld::detail::weigh_set(m, wave, keys, t, pivot, set);
        team.sync();
      }
    });
  }
  template <class Team>
  KVMELD_HD void weigh_spans(Team const& team, wave_ref const& wave, tile const& t,
                             member_list const& sources) const {
    this->of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (contract::allows<merge_uses::weigh_spans, type>) {
        m.weigh_spans(team, wave, t, sources);
      }
    });
  }
  /// What the merge function that is held fits.
  fit_options fit() const {
    return this->of_.visit([](auto const& m) { return fit_of(m); });
  }
};

/// Holds one of the ready-made merge functions.
class any_merge
    : public any_merge_of<merge::drop, merge::average, merge::degree_weighted, merge::score_weighted,
                          merge::gaussian, merge::similarity_weighted, merge::mass_preserving,
                          merge::collapsed, merge::additive, merge::fitted> {
public:
  using any_merge_of::any_merge_of;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
