// SPDX-License-Identifier: Apache-2.0
// The operation that ends a sequence.
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

/// Ends a sequence; its number can be opened again.
struct close : operation {
  static constexpr char const* name = "close";
  static constexpr bool over_tracks = false;
  static constexpr bool has_counts = false;

  std::string problem(ledger_ref const& l, index_list sequences, index_list) const {
    return check_calls::is_open(name, l, sequences);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t) const {
    l.is_open[sequence] = 0;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
