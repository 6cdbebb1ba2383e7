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

/// Makes `l` show the entries of `one`, a ledger like it of one sequence, as those of every sequence.
inline void show_entries(ledger_ref& l, ledger_ref const& one) {
  static constexpr std::int32_t page = 0;  // all entries of a track lie in one page
  std::int64_t const track_stride = one.extent.capacity;
  l.pages = {table_rows(&page, 0), one.extent.capacity, 0, track_stride * one.extent.kv_heads, track_stride};
  l.degree = one.degree;
  l.position = one.position;
  l.flags = one.flags;
  for (std::uint32_t c = 0; c < l.channels.count; ++c) l.channel_data[c] = one.channel_data[c];
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
