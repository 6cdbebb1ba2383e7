// The one list of the ledger's arrays: what fork copies and what save writes down.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What an array of the ledger has elements for.
enum class field_of : std::uint8_t {
  sequence,  ///< every sequence slot
  track,     ///< every track
  entry,     ///< every slot of every track, valid below the length
  member,    ///< every member of every track, valid below their count
};

/// Calls f(field_of, T* array, elements per sequence, track, entry or member) for every array that says something about
/// a sequence, in a fixed order in which counts come before what they count. `is_open` is not among them: it says
/// whether the others mean anything.
template <class F> KVMELD_HD void for_each_field(ledger_ref const& l, F f) {
  f(field_of::sequence, l.seen, 1u);
  f(field_of::sequence, l.pending, 1u);
  f(field_of::sequence, l.frozen, 1u);
  f(field_of::sequence, l.id, 1u);
  f(field_of::sequence, l.sequence_words, static_cast<std::uint32_t>(sequence_word::count));
  f(field_of::track, l.length, 1u);
  f(field_of::track, l.findings, 1u);
  f(field_of::track, l.track_words, static_cast<std::uint32_t>(track_word::count));
  if (l.members.capacity != 0) f(field_of::track, l.members.count, 1u);
  f(field_of::entry, l.degree, 1u);
  f(field_of::entry, l.position, 1u);
  f(field_of::entry, l.flags, 1u);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) f(field_of::entry, l.channel_data[c], 1u);
  if (l.members.capacity == 0) return;
  f(field_of::entry, l.members.own_norm, 1u);
  f(field_of::member, l.members.norm, 1u);
  f(field_of::member, l.members.position, 1u);
  f(field_of::member, l.members.owner, 1u);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) f(field_of::member, l.members.channel_data[c], 1u);
}

/// Elements of an array that belong to one track, or to its sequence.
struct field_part {
  std::size_t first;
  std::uint32_t count;
};

KVMELD_HD inline field_part part_of_field(ledger_ref const& l, field_of what, track t, std::uint32_t width) {
  switch (what) {
  case field_of::sequence: return {std::size_t{t.sequence} * width, width};
  case field_of::track: return {std::size_t{t.index} * width, width};
  case field_of::entry: return {l.at(t, 0) * width, l.length[t.index] * width};
  case field_of::member: break;
  }
  return {l.member_at(t, 0) * width, l.members.count[t.index] * width};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
