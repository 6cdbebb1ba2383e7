// SPDX-License-Identifier: Apache-2.0
// Rows in a ring behind fixed sinks, for engines that run past their context length.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Slot s of a track lies in row s of `Rows` if s is below `sinks`, else in row sinks + (s - sinks +
/// start[sequence]) mod (capacity - sinks). Slots are thus in the order of their tokens, wherever the ring
/// begins. `start` must lie in memory that phases can read; null means 0 for all sequences. A compression
/// moves entries, but leaves `start` as it is.
template <class Rows> class ring : public addressed_rows<ring<Rows>, typename Rows::element_type> {
  static_assert(has_plain_rows<Rows>::value, "kvmeld::ring: Rows has no plain rows (addressed_rows)");

public:
  using element_type = typename Rows::element_type;
  static constexpr bool always_writable = is_always_writable<Rows>::value;
  static constexpr int channel_run = Rows::token_run == 0 ? 1 : Rows::channel_run;
  static constexpr int token_run = 1;

  /// `capacity` must be above `sinks`.
  ring(Rows rows, std::uint32_t capacity, std::uint32_t sinks = 0, std::uint32_t const* start = nullptr)
      : rows_(rows), start_(start), capacity_(capacity), sinks_(sinks) {}

  /// The row in which a slot of the track lies.
  KVMELD_HD slot_t place(track where, slot_t slot) const {
    if (slot < sinks_ || start_ == nullptr) return slot;
    std::uint32_t const turn = capacity_ - sinks_, behind = turn - start_[where.sequence] % turn;
    return slot - sinks_ < behind ? slot + (turn - behind) : slot - behind;
  }
  KVMELD_HD segment<element_type> locate(track where, slot_t slot) const {
    slot_t const at = place(where, slot);
    segment<element_type> s = rows_.locate(where, at);
    std::uint32_t const whole = slot < sinks_ ? sinks_ - slot : capacity_ - at;  // until the ring wraps
    s.remaining = min_of(s.remaining, min_of(whole, capacity_ - slot));
    return s;
  }
  KVMELD_HD std::uint32_t channels() const { return rows_.channels(); }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || rows_.writable(where, place(where, slot));
  }
  std::string problem(shape const& s) const {
    if (capacity_ != s.capacity) {
      return refusal("ring", "capacity", capacity_, s.capacity, ", the shape's capacity");
    }
    if (sinks_ >= capacity_) {
      return refusal("ring", "sinks", sinks_, "less than ", capacity_, ", the capacity");
    }
    return layout_problem("ring: rows", rows_, rows_.channels(), s);
  }
  std::uint32_t capacity() const { return capacity_; }
  /// Number of slots before the ring.
  std::uint32_t sinks() const { return sinks_; }
  /// The rows that the ring uses.
  Rows const& rows() const { return rows_; }

private:
  Rows rows_;
  std::uint32_t const* start_;
  std::uint32_t capacity_, sinks_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
