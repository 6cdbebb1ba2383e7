// The argument checks of a context shift.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_sequences.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/rope.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace check_calls {

/// What a shift says about itself and about the words of a sequence.
template <class Values>
std::string shift(ledger_ref const& l, std::uint32_t slot, position_t offset, rope_params const& rope,
                  position_t first) {
  if (std::string text = is_open("shift", l, {slot}); !text.empty()) return text;
  if (std::string text = nothing_pending("shift", l, slot); !text.empty()) return text;
  if (std::string text = rope_problem("shift", rope, l.extent.key_dim); !text.empty()) return text;
  if (rope.active() && rope.positions != rope_positions::stored) {
    return "shift: rope.positions is slot, but keys that turn lie rotated for the positions stored with "
           "them; allowed "
           "are stored, and no rotation";
  }
  if (rope.active() && rope.map != nullptr) {
    return "shift: rope.map is given; it must be null, since keys that turn lie rotated for the positions "
           "stored "
           "with them";
  }
  if (rope.active() && reads_keys<Values>::value) {
    return "shift: values are channels of the keys (latent), which would turn too; allowed is no rotation";
  }
  if (first < 0 || std::int64_t{first} > std::int64_t{l.seen[slot]}) {
    return message("shift: first is ", first, "; allowed are 0 to the ", l.seen[slot], " tokens seen");
  }
  std::int64_t const most = std::int64_t{std::numeric_limits<position_t>::max()} - l.seen[slot];
  if (offset <= most) return {};
  return message("shift: offset is ", offset, "; allowed are up to ", most,
                 ", so that positions stay below 2^31");
}

/// What it would do to the entries of `l`, which the host can read.
template <class Keys>
std::string shifted_entries(ledger_ref const& l, std::uint32_t slot, position_t offset,
                            rope_params const& rope, position_t first, Keys const& keys) {
  return first_track_problem(l, slot, [&](track t) -> std::string {
    std::int64_t staying = -1, lowest = l.seen[slot];
    for (slot_t s = 0; s < l.length[t.index]; ++s) {
      if (!(l.degree[l.at(t, s)] > 0.0f)) continue;
      position_t const position = l.position[l.at(t, s)];
      if (position < first) {
        staying = max_of(staying, std::int64_t{position});
        continue;
      }
      lowest = min_of(lowest, std::int64_t{position});
      if (!rope.active() || (s >= l.frozen[slot] && keys.writable(t, s))) continue;
      return message(
          "shift: slot ", s, " of ", track_name(t), s < l.frozen[slot] ? " is frozen" : " may not be written",
          ", so that its key cannot turn; allowed are shifts of later positions, and those without rotation");
    }
    std::uint32_t const members = l.members.capacity == 0 ? 0 : l.members.count[t.index];
    for (std::uint32_t m = 0; m < members; ++m) {
      position_t const position = l.members.position[l.member_at(t, m)];
      slot_t const owner = l.members.owner[l.member_at(t, m)];
      if (position >= first) lowest = min_of(lowest, std::int64_t{position});
      if (!rope.active() || (position < first) == (l.position[l.at(t, owner)] < first)) continue;
      return message("shift: first is ", first, ", but slot ", owner, " of ", track_name(t),
                     " is shared by tokens on both sides; allowed are 0, and shifts without rotation");
    }
    if (lowest + offset > staying) return {};
    return message("shift: offset is ", offset, ", but ", track_name(t), " holds position ", lowest,
                   first == 0 ? "" : message(", and keeps ", staying), "; allowed are offsets from ",
                   staying + 1 - lowest, " on");
  });
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
