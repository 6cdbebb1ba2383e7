// SPDX-License-Identifier: Apache-2.0
// Loads the log degrees that attention adds to logits.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/softmax.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// bias[i] = log degree of slot begin + i. No barrier at the end.
template <class Team>
KVMELD_HD void load_bias(Team const& team, ledger_ref const& ledger, track where, slot_t begin,
                         std::uint32_t tokens, float* bias) {
  if (!ledger.ignore_degree && (team.lanes() == 1 || !ledger.paged())) {
    for (std::uint32_t i = 0, run; i < tokens; i += run) {
      run = min_of(tokens - i, ledger.adjoining(begin + i));
      log_degrees(team, ledger.degree + ledger.at(where, begin + i), run, bias + i);
    }
    return;
  }
  team.for_each(tokens, [&](std::uint32_t i) { bias[i] = ledger.log_degree(where, begin + i); });
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
