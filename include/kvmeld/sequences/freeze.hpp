// SPDX-License-Identifier: Apache-2.0
// The operation that freezes the first entries of a sequence.
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

/// Freezes exactly the first `n` entries of every track.
struct freeze : operation {
  static constexpr char const* name = "freeze";
  static constexpr bool over_tracks = false;

  std::string problem(ledger_ref const& l, index_list sequences, index_list frozen) const {
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    return check_calls::frozen_fits(name, l, sequences[0], frozen[0]);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.frozen[sequence] = n;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
