// SPDX-License-Identifier: Apache-2.0
// The operation that commits pending entries and drops rejected drafts.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace sequences {

/// Commits the first `n` pending entries and drops the rest. Where the host cannot read `n`, it may exceed
/// the pending entries, and all of them are committed then.
struct commit : operation {
  static constexpr char const* name = "commit";
  static constexpr bool writes_few = true;
  static constexpr bool outdates_plan = false;

  std::string problem(ledger_ref const& l, index_list sequences, index_list accepted) const {
    if (std::string text = check_calls::one_count_each(name, sequences, accepted); !text.empty()) return text;
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (accepted[i] <= l.pending[sequences[i]]) continue;
      return refusal(name, message("accepted[", i, "]"), accepted[i], "at most ", l.pending[sequences[i]],
                     ", the pending entries of sequence ", sequences[i]);
    }
    return {};
  }

  KVMELD_HD void on_track(ledger_ref const& l, track t, std::uint32_t n) const {
    l.length[t.index] = kept(l, t, n);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.seen[sequence] += min_of(n, l.pending[sequence]);
    l.pending[sequence] = 0;
  }

private:
  /// Number of entries of the track that stay.
  KVMELD_HD static std::uint32_t kept(ledger_ref const& l, track t, std::uint32_t n) {
    std::uint32_t const length = l.length[t.index], pending = l.pending[t.sequence];
    return min_of(length, length - min_of(length, pending) + min_of(n, pending));
  }
};

}  // namespace sequences

/// As append_in_kernel, for `commit(sequences, in_kernel)`: commits the first `n` pending entries, or all
/// of them if `n` is above their number, and drops the rest.
KVMELD_CALLS_ARGUMENTS
template <class Barrier>
KVMELD_HD void commit_in_kernel(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n,
                                std::uint32_t lane, std::uint32_t lanes, Barrier const& barrier) {
  detail::operate_in_kernel(sequences::commit{}, l, sequence, n, lane, lanes, barrier);
}
}  // namespace KVMELD_ABI
}  // namespace kvmeld
