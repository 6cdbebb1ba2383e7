// SPDX-License-Identifier: Apache-2.0
// The operation that sets the step of a schedule that counts rounds.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Makes round `n` the next round of the sequence.
struct set_rounds : operation {
  static constexpr char const* name = "set_rounds";
  static constexpr effect leaves = effect::changed;
  static constexpr bool over_tracks = false;
  static constexpr bool outdates_plan = false;

  /// `n` is limited because the rounds of later compressions are added to it, and the sum has to fit 32 bits.
  std::string problem(ledger_ref const& l, index_list sequences, index_list rounds) const {
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    if (rounds[0] <= 0x7fffffffu) return {};
    return refusal(name, "n", rounds[0], "at most 2147483647");
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.sequence_state(sequence, sequence_word::rounds) = n;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
