// SPDX-License-Identifier: Apache-2.0
// The operation that drops the entries of a range of positions.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/removal.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Removes the entries at the positions from `first` up to `last`, `last` excluded.
struct drop_positions {
  position_t first, last;

  static constexpr char const* name = "drop_positions";

  std::string problem(ledger_ref const& l, std::uint32_t sequence) const {
    if (std::string text = check_calls::is_open(name, l, {sequence}); !text.empty()) return text;
    if (std::string text = check_calls::nothing_pending(name, l, sequence); !text.empty()) return text;
    std::uint32_t const seen = l.seen[sequence];
    if (last < 0 || std::int64_t{last} > std::int64_t{seen})
      return refusal(name, "last", last, "0 to ", seen, ", the tokens seen");
    if (first >= 0 && first <= last) return {};
    return refusal(name, "first", first, "0 to last, which is ", last);
  }

  /// Tokens that have an entry each go for sure.
  removed_entries removed(ledger_ref const& facts, std::uint32_t sequence) const {
    std::int64_t const own = facts.one_entry_each_from(sequence), from = max_of(std::int64_t{first}, own);
    std::uint32_t const sure = from < last ? static_cast<std::uint32_t>(last - from) : 0;
    return {sure, first == last || first >= own, static_cast<std::uint32_t>(last)};
  }

  template <class Team, class Drop>
  KVMELD_HD void each(Team const& team, ledger_ref const& l, track t, Drop drop) const {
    team.for_each(l.length[t.index], [&](slot_t s) {
      std::size_t const e = l.at(t, s);
      if (l.position[e] >= first && l.position[e] < last && l.degree[e] > 0.0f) drop(s);
    });
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
