// A merge function chosen at run time.
#pragma once

#include <kvmeld/core/alternatives.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/merge/additive.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/merge/mass_preserving.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/merge/unit_direction.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/policy/part_traits.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the ready-made merge functions, and is itself a merge function. Converts from any of them.
/// merge::shared is not among them, because a cache that shares entries has another type of ref.
class any_merge {
public:
  using choice = alternatives<merge::drop, merge::average, merge::degree_weighted, merge::score_weighted,
                              merge::gaussian, merge::similarity_weighted, merge::mass_preserving,
                              merge::collapsed, merge::additive, merge::fitted>;
  static constexpr bool needs_score = false;  ///< not all alternatives do; traits() tells
  static constexpr bool cooperative = true;
  static constexpr bool spreads = true;

  any_merge() = default;
  /// Holds a copy of the part.
  template <class T, class = decltype(choice(std::declval<T const&>()))>
  any_merge(T const& part) : of_(part) {}

  /// Calls f with the merge function that is held, which f may change.
  template <class F> void change(F f) { of_.change(f); }
  std::string name() const {
    return of_.visit([](auto const& m) { return full_name_of(m); });
  }
  merge_traits traits() const {
    return of_.visit([](auto const& m) { return traits_of_merge(m); });
  }
  bool carries_degree() const {
    return of_.visit([](auto const& m) { return m.carries_degree(); });
  }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return of_.visit([&](auto const& m) { return m.scratch_bytes(s, lanes); });
  }

  /// Buffers of the cooperative alternatives; only those of the merge function that is held are filled.
  struct buffers {
    merge::gaussian::buffers gaussian;    ///< buffers of merge::gaussian
    merge::collapsed::buffers collapsed;  ///< buffers of merge::collapsed
  };
  template <class Team> KVMELD_HD buffers prepare(Team const& team, std::uint32_t key_channels) const {
    buffers b{};
    of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (type::cooperative) buffer_of<type>(b) = m.prepare(team, key_channels);
    });
    return b;
  }
  template <class Team, class Keys>
  KVMELD_HD void weigh(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t, slot_t pivot,
                       member_list const& set, buffers b) const {
    of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (type::cooperative) {
        m.weigh(team, wave, keys, t, pivot, set, buffer_of<type>(b));
      } else if constexpr (!spreads_entries<type>::value) {
        if (team.lane() == 0) kvmeld::detail::weigh_set(m, wave, t, pivot, set);
        team.sync();
      }
    });
  }
  template <class Team>
  KVMELD_HD void weigh_spans(Team const& team, wave_ref const& wave, tile const& t,
                             member_list const& sources) const {
    of_.visit([&](auto const& m) {
      using type = std::decay_t<decltype(m)>;
      if constexpr (spreads_entries<type>::value || std::is_same_v<type, merge::drop>) {
        m.weigh_spans(team, wave, t, sources);
      }
    });
  }
  /// What the merge function that is held fits.
  fit_options fit() const {
    return of_.visit([](auto const& m) { return fit_of(m); });
  }
  std::string problem() const {
    return of_.visit([](auto const& m) { return problem_of(m); });
  }

private:
  template <class Part> KVMELD_HD static auto& buffer_of(buffers& b) {
    if constexpr (std::is_same_v<Part, merge::gaussian>) {
      return b.gaussian;
    } else {
      return b.collapsed;
    }
  }

  choice of_;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
