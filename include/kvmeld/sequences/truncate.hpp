// SPDX-License-Identifier: Apache-2.0
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

/// Forgets all but the first `n` tokens seen. The forgotten tokens have one entry each, or none if they were
/// dropped: none has merged.
struct truncate : operation {
  static constexpr char const* name = "truncate";
  static constexpr bool writes_few = true;

  std::string problem(ledger_ref const& l, index_list sequences, index_list tokens) const {
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    std::uint32_t const sequence = sequences[0], n = tokens[0];
    if (std::string text = check_calls::nothing_pending(name, l, sequence); !text.empty()) return text;
    std::uint32_t const seen = l.seen[sequence];
    std::uint32_t const merged = l.sequence_state(sequence, sequence_word::compressed_at);
    std::uint32_t const lowest = max_of(merged, behind_frozen(l, sequence));
    if (n >= lowest && n <= seen) return {};
    return refusal(name, "tokens", n, lowest, " to ", seen, ", the tokens of sequence ", sequence,
                   lowest == merged && merged != 0 ? " that are seen but not compressed"
                   : lowest != 0                   ? " that are seen but not frozen"
                                                   : " that are seen");
  }

  KVMELD_HD void on_track(ledger_ref const& l, track t, std::uint32_t n) const {
    l.length[t.index] = kept(l, t, n);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    std::uint32_t& gap_end = l.sequence_state(sequence, sequence_word::gap_end);
    gap_end = min_of(gap_end, n);
    l.seen[sequence] = n;
  }

  /// Whether the host has to read positions: there may be gaps among the tokens that go.
  static bool reads_positions(ledger_ref const& facts, std::uint32_t sequence, std::uint32_t n) {
    return n < facts.sequence_state(sequence, sequence_word::gap_end) && n < facts.seen[sequence];
  }
  /// Number of entries of the track that stay. If there may be gaps among the tokens that go, it reads
  /// positions; the host's mirror has none and keeps the length as a bound.
  KVMELD_HD static std::uint32_t kept(ledger_ref const& l, track t, std::uint32_t n) {
    if (n < l.sequence_state(t.sequence, sequence_word::gap_end))
      return l.position == nullptr ? l.length[t.index] : l.first_slot_from(t, n);
    return l.length[t.index] - (l.seen[t.sequence] - n);
  }

private:
  /// Fewest tokens that leave the frozen entries of every track. If the host cannot read positions, there are
  /// no gaps among the tokens that go.
  static std::uint32_t behind_frozen(ledger_ref const& l, std::uint32_t sequence) {
    std::uint32_t const seen = l.seen[sequence], frozen = l.frozen[sequence];
    if (l.position == nullptr || l.sequence_state(sequence, sequence_word::gap_end) == 0) {
      std::uint32_t const least = check_calls::shortest(l, sequence);
      return seen - min_of(seen, least - min_of(least, frozen));
    }
    std::uint32_t lowest = 0;
    for (std::uint32_t i = 0; frozen != 0 && i < l.extent.layers * l.extent.kv_heads; ++i) {
      track const t = make_track(l.extent, i / l.extent.kv_heads, sequence, i % l.extent.kv_heads);
      lowest = max_of(lowest, static_cast<std::uint32_t>(l.position[l.at(t, frozen - 1)]) + 1);
    }
    return lowest;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
