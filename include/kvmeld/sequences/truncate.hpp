// The operation that takes a sequence back to an earlier token.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/commit.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Forgets all but the first `n` tokens seen. The forgotten tokens have one entry each: none has merged.
struct truncate : operation {
  static constexpr char const* name = "truncate";

  std::string problem(ledger_ref const& l, index_list sequences, index_list tokens) const {
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    std::uint32_t const sequence = sequences[0], n = tokens[0];
    if (std::string text = check_calls::nothing_pending(name, l, sequence); !text.empty()) return text;
    std::uint32_t const seen = l.seen[sequence];
    std::uint32_t const merged = l.sequence_state(sequence, sequence_word::compressed_at);
    std::uint32_t const least = check_calls::shortest(l, sequence);
    std::uint32_t const unfrozen = least - min_of(least, l.frozen[sequence]);
    std::uint32_t const lowest = max_of(merged, seen - min_of(seen, unfrozen));
    if (n >= lowest && n <= seen) return {};
    return refusal(name, "tokens", n, lowest, " to ", seen, ", the tokens of sequence ", sequence,
                   lowest == merged && merged != 0 ? " that are seen but not compressed"
                   : lowest != 0                   ? " that are seen but not frozen"
                                                   : " that are seen");
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t n) const {
    forget_entries(team, l, t, kept(l, t, n));
  }
  KVMELD_HD void on_track(ledger_ref const& l, track t, std::uint32_t n) const {
    l.length[t.index] = kept(l, t, n);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.seen[sequence] = n;
  }

private:
  /// Number of entries of the track that stay.
  KVMELD_HD static std::uint32_t kept(ledger_ref const& l, track t, std::uint32_t n) {
    return l.length[t.index] - (l.seen[t.sequence] - n);
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
