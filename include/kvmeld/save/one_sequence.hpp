// SPDX-License-Identifier: Apache-2.0
// A ledger of one sequence: what a saved sequence is read into, and what brings one from a device and back.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Sizes (arena without memory) or carves the arrays of a ledger like `l`, for one sequence.
inline ledger_ref carve_one_sequence(arena& a, ledger_ref const& l) {
  shape one = l.extent;
  one.sequences = 1;
  return carve_ledger_like(a, one, l);
}

/// A ledger like `l`, for one sequence, in memory of the host.
class one_sequence_ledger {
public:
  explicit one_sequence_ledger(ledger_ref const& l) {
    arena sizing;
    carve_one_sequence(sizing, l);
    bytes_ = sizing.bytes();
    memory_.resize(bytes_ + arena::alignment);
    arena a(data(), bytes_);
    ledger_ = carve_one_sequence(a, l);
  }

  one_sequence_ledger(one_sequence_ledger const&) = delete;
  one_sequence_ledger& operator=(one_sequence_ledger const&) = delete;

  ledger_ref const& ledger() const { return ledger_; }
  /// The block of its arrays.
  std::byte* data() {
    auto const address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (arena::alignment - address % arena::alignment);
  }

private:
  std::vector<std::byte> memory_;
  std::size_t bytes_ = 0;
  ledger_ref ledger_;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
