// SPDX-License-Identifier: Apache-2.0
// The scores of whole sequences as one dense array and back: replicas of a head average them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Why scores cannot be exchanged; empty if they can. `columns`: the numbers that `rows` has for each track.
inline std::string exchange_problem(char const* call, ledger_ref const& l, index_list sequences,
                                    void const* rows, std::uint32_t columns) {
  if (std::string text = check_calls::is_open(call, l, sequences); !text.empty()) return text;
  if (rows == nullptr && l.channels.count != 0 && sequences.size() != 0)
    return refusal(call, "rows", "null", "an array of the sequences' scores");
  for (std::uint32_t sequence : sequences) {
    std::uint32_t const longest = l.longest(sequence);
    if (columns < longest)
      return refusal(call, "columns", columns, "at least ", longest, ", the slots of sequence ", sequence);
  }
  return {};
}

/// Copies scores to rows [track of the list][channel][column], with 0 behind a track's entries; or from
/// there, if T is const.
template <class T> struct exchange_scores_phase : detail::sequence_phase {
  T* rows;
  std::uint32_t columns;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = min_of(ledger.length[t.where.index], columns);  // a replay may find more
    entry_indices const at = ledger.from(t.where);
    for (std::uint32_t c = 0; c < ledger.channels.count; ++c) {
      float* const scores = ledger.channel_data[c];
      T* const row = rows + (std::size_t{t.item} * ledger.channels.count + c) * columns;
      if constexpr (std::is_const_v<T>) {
        team.for_each(n, [&](std::uint32_t s) {
          if (!ledger.shared(t.where, s)) scores[at(s)] = row[s];
        });
      } else {
        team.for_each(columns, [&](std::uint32_t s) { row[s] = s < n ? scores[at(s)] : 0.0f; });
      }
    }
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
