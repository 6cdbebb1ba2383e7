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

/// What a shift says about itself and about the words of a sequence; `readable` says that the host can read rope's array.
template <class Values>
std::string shift(ledger_ref const& l, std::uint32_t slot, position_t offset, rope_params const& rope,
                  position_t first, bool readable) {
  if (std::string text = is_open("shift", l, {slot}); !text.empty()) return text;
  if (std::string text = nothing_pending("shift", l, slot); !text.empty()) return text;
  if (std::string text = rope_problem("shift", rope, l.extent.key_dim, readable); !text.empty()) return text;
  if (rope.active() && rope.positions != rope_positions::stored) {
    return refusal(
        "shift", "rope.positions", "rope_positions::slot",
        "rope_positions::stored, because keys that turn lie rotated for the positions stored with them");
  }
  if (rope.active() && rope.map != nullptr) {
    return refusal("shift", "rope.map", "given",
                   "null, because keys that turn lie rotated for the positions stored with them");
  }
  if (rope.active() && reads_keys<Values>::value) {
    return refusal("shift", "rope.pairing", "a rotation",
                   "rope_pairing::none, because values are channels of the keys (latent) and would turn too");
  }
  if (first < 0 || std::int64_t{first} > std::int64_t{l.seen[slot]}) {
    return refusal("shift", "first", first, "0 to ", l.seen[slot], ", the tokens seen");
  }
  if (offset <= 0) return {};
  return tokens_fit("shift", "offset", static_cast<std::uint32_t>(offset), l.seen[slot]);
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
      return refusal("shift", message("slot ", s, " of ", track_name(t)),
                     s < l.frozen[slot] ? "frozen" : "not writable",
                     "writable, because its key turns (or shift later positions, or without rotation)");
    }
    std::uint32_t const members = l.members.capacity == 0 ? 0 : l.members.count[t.index];
    for (std::uint32_t m = 0; m < members; ++m) {
      position_t const position = l.members.position[l.member_at(t, m)];
      slot_t const owner = l.members.owner[l.member_at(t, m)];
      if (position >= first) lowest = min_of(lowest, std::int64_t{position});
      if (!rope.active() || (position < first) == (l.position[l.at(t, owner)] < first)) continue;
      return refusal("shift", "first", first, "0, because slot ", owner, " of ", track_name(t),
                     " is shared by tokens on both sides of it (or shift without rotation)");
    }
    if (lowest + offset > staying) return {};
    return refusal("shift", "offset", offset, "at least ", staying + 1 - lowest, ", because ", track_name(t),
                   " holds position ", lowest, first == 0 ? "" : message(" and keeps ", staying));
  });
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
