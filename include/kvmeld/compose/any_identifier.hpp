// An identifier with its admission, chosen at run time.
#pragma once

#include <kvmeld/core/alternatives.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/centroids.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/local_span.hpp>
#include <kvmeld/identify/nearest_center.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the ready-made identifiers, and is itself an identifier. Converts from any of them.
class any_identifier {
  template <class Admit> using by_key = identify::nearest_center<Admit, identify::resemblance::keys>;

public:
  using choice = alternatives<
      identify::evict_rest, identify::none, identify::local_span, identify::centroids,
      identify::consecutive_threshold<admit::exact_budget>, identify::consecutive_threshold<admit::threshold>,
      identify::chunked_bipartite<admit::top_share>, identify::chunked_bipartite<admit::exact_budget>,
      identify::chunked_bipartite<admit::threshold>, identify::chunked_bipartite<admit::ema_threshold>,
      identify::nearest_center<admit::threshold>, identify::nearest_center<admit::ema_threshold>,
      by_key<admit::threshold>, by_key<admit::ema_threshold>>;
  static constexpr identify_facts facts{&identify_facts::repeats, &identify_facts::needs_keys,
                                        &identify_facts::needs_values, &identify_facts::makes_spans};

  any_identifier() = default;
  /// Holds a copy of the part.
  template <class T, class = decltype(choice(std::declval<T const&>()))>
  any_identifier(T const& part) : of_(part) {}

  /// Calls f with the identifier that is held, which f may change.
  template <class F> void change(F f) { of_.change(f); }
  /// "identifier" or "identifier:admission".
  std::string name() const {
    return of_.visit([](auto const& i) { return full_name_of(i); });
  }
  identify_facts facts_now() const {
    return of_.visit([](auto const& i) { return facts_of<identify_facts>(i); });
  }
  std::uint32_t tiles(shape const& s) const {
    return of_proposer<std::uint32_t>([&](auto const& i) { return i.tiles(s); });
  }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return of_proposer<std::size_t>([&](auto const& i) { return i.scratch_bytes(s, lanes); });
  }
  template <class Team, class Keys, class Values>
  KVMELD_HD void propose(proposal_tile<Team, kv<Keys, Values>> const& tile) const {
    of_.visit([&](auto const& i) {
      using held = std::decay_t<decltype(i)>;
      if constexpr (stated_facts<identify_facts, held>.needs_values) {
        i.propose(tile);
      } else if constexpr (kvmeld::detail::proposes<held>) {
        i.propose(tile.with_rows(tile.rows().keys));
      }
    });
  }
  template <class Round> KVMELD_HD void admit(Round& round) const {
    of_.visit([&](auto const& i) { i.admit(round); });
  }
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return of_.visit([&](auto const& i) { return kvmeld::max_rounds(i, length, limit); });
  }
  /// likely_rounds of the identifier that is held; its max_rounds if it has none.
  std::uint32_t likely_rounds(std::uint32_t length, std::uint32_t limit, std::uint32_t outside) const {
    return of_.visit([&](auto const& i) { return kvmeld::likely_rounds(i, length, limit, outside); });
  }
  /// Number of edges of a list of live entries with `n` places; 0 for identifiers that list no edges.
  KVMELD_HD std::uint32_t edges(std::uint32_t n) const {
    return of_.visit([&](auto const& i) -> std::uint32_t {
      if constexpr (kvmeld::detail::lists_edges<std::decay_t<decltype(i)>>) {
        return i.edges(n);
      } else {
        return 0u;
      }
    });
  }
  std::string problem() const {
    return of_.visit([](auto const& i) { return problem_of(i); });
  }
  std::string problem_for(shape const& extent) const {
    return of_.visit([&](auto const& i) { return kvmeld::detail::shape_problem(i, extent); });
  }

private:
  /// f(identifier) if the identifier that is held looks for candidates in tiles; else 0.
  template <class Number, class F> Number of_proposer(F f) const {
    return of_.visit([&](auto const& i) -> Number {
      if constexpr (kvmeld::detail::proposes<std::decay_t<decltype(i)>>) {
        return f(i);
      } else {
        return 0;
      }
    });
  }

  choice of_;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
