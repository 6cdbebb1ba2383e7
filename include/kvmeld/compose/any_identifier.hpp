// SPDX-License-Identifier: Apache-2.0
// An identifier with its admission, chosen at run time.
#pragma once

#include <kvmeld/compose/any_part.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
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

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the listed identifiers, and is itself an identifier.
template <class... Identifiers> class any_identifier_of : public any_part<identify_facts, Identifiers...> {
  template <class Identify>
  static constexpr bool reads = stated_facts<identify_facts, std::decay_t<Identify>>.needs_keys;

public:
  static constexpr identify_facts facts{&identify_facts::repeats, &identify_facts::needs_keys,
                                        &identify_facts::needs_values, &identify_facts::makes_spans};

  using any_part<identify_facts, Identifiers...>::any_part;

  std::uint32_t tiles(shape const& s) const {
    return this->of_.visit(
        [&](auto const& i) { return reads<decltype(i)> ? kvmeld::detail::proposal_tiles(i, s) : 0u; });
  }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return this->of_.visit([&](auto const& i) {
      return reads<decltype(i)> ? kvmeld::detail::proposal_scratch(i, s, lanes) : std::size_t{0};
    });
  }
  template <class Team, class Keys, class Values>
  KVMELD_HD void propose(proposal_tile<Team, kv<Keys, Values>> const& tile) const {
    this->of_.visit([&](auto const& i) {
      if constexpr (stated_facts<identify_facts, std::decay_t<decltype(i)>>.needs_values) {
        kvmeld::detail::run_proposal(i, tile);
      } else if constexpr (reads<decltype(i)>) {
        kvmeld::detail::run_proposal(i, tile.with_rows(tile.rows().keys));
      }
    });
  }
  template <class Round> KVMELD_HD void admit(Round& round) const {
    this->of_.visit([&](auto const& i) {
      // `propose` has called the `admit` that reads rows.
      if constexpr (!kvmeld::detail::admits_by_rows<std::decay_t<decltype(i)>>) i.admit(round);
    });
  }
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return this->of_.visit([&](auto const& i) { return kvmeld::max_rounds(i, length, limit); });
  }
  /// likely_rounds of the identifier that is held; its max_rounds if it has none.
  std::uint32_t likely_rounds(std::uint32_t length, std::uint32_t limit, std::uint32_t outside) const {
    return this->of_.visit([&](auto const& i) { return kvmeld::likely_rounds(i, length, limit, outside); });
  }
  /// Number of edges of a list of live entries with `n` places; 0 for identifiers that list no edges.
  KVMELD_HD std::uint32_t edges(std::uint32_t n) const {
    return this->of_.visit([&](auto const& i) -> std::uint32_t {
      if constexpr (kvmeld::detail::lists_edges<std::decay_t<decltype(i)>>) {
        return i.edges(n);
      } else {
        return 0u;
      }
    });
  }
  std::string problem_for(shape const& extent) const {
    return this->of_.visit([&](auto const& i) { return kvmeld::detail::shape_problem(i, extent); });
  }
};

/// Holds one of the ready-made identifiers.
class any_identifier
    : public any_identifier_of<
          identify::evict_rest, identify::none, identify::local_span, identify::centroids,
          identify::consecutive_threshold<admit::exact_budget>,
          identify::consecutive_threshold<admit::threshold>, identify::chunked_bipartite<admit::top_share>,
          identify::chunked_bipartite<admit::exact_budget>, identify::chunked_bipartite<admit::threshold>,
          identify::chunked_bipartite<admit::ema_threshold>, identify::nearest_center<admit::threshold>,
          identify::nearest_center<admit::ema_threshold>,
          identify::nearest_center<admit::threshold, identify::resemblance::keys>,
          identify::nearest_center<admit::ema_threshold, identify::resemblance::keys>> {
public:
  using any_identifier_of::any_identifier_of;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
