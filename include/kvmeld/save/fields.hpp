// The one list of the ledger's arrays, which fork copies and save writes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// What the elements of a ledger's array belong to.
enum class field_of : std::uint8_t {
  sequence,  ///< every sequence
  track,     ///< every track
  entry,     ///< every slot of every track, valid below the length
  member,    ///< every member of every track, valid below their count
};

/// One array of the ledger, as bytes.
struct field {
  std::byte* data;
  std::uint32_t bytes;  ///< per sequence, track, entry or member
  field_of what;
};

/// Calls visit(what, array, width) for every array of the ledger that describes a sequence, except `is_open`,
/// which says whether the others are in use. `width` is the number of elements per sequence, track, entry or
/// member. The order is fixed: counts come before what they count.
KVMELD_CALLS_ARGUMENTS
template <class F> KVMELD_HD void for_each_field(ledger_ref const& l, F visit) {
  visit(field_of::sequence, l.seen, 1);
  visit(field_of::sequence, l.pending, 1);
  visit(field_of::sequence, l.frozen, 1);
  visit(field_of::sequence, l.id, 1);
  visit(field_of::sequence, l.sequence_words, sequence_word::count);
  visit(field_of::track, l.length, 1);
  visit(field_of::track, l.warnings, 1);
  visit(field_of::track, l.track_words, track_word::count);
  bool const shares = l.members.capacity != 0;
  if (shares) visit(field_of::track, l.members.count, 1);
  if (l.table_floats != 0) visit(field_of::track, l.table, l.table_floats);
  visit(field_of::entry, l.degree, 1);
  visit(field_of::entry, l.position, 1);
  visit(field_of::entry, l.flags, 1);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) visit(field_of::entry, l.channel_data[c], 1);
  if (!shares) return;
  visit(field_of::entry, l.members.own_norm, 1);
  visit(field_of::member, l.members.norm, 1);
  visit(field_of::member, l.members.position, 1);
  visit(field_of::member, l.members.owner, 1);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) visit(field_of::member, l.members.channel_data[c], 1);
}

/// Calls visit(field) for every array, as for_each_field does.
template <class F> void for_each_field_as_bytes(ledger_ref const& l, F visit) {
  for_each_field(l, [&](field_of what, auto* array, std::uint32_t width) {
    visit(
        field{reinterpret_cast<std::byte*>(array), static_cast<std::uint32_t>(sizeof *array) * width, what});
  });
}

/// The beginning of the part of an array that belongs to a track, or to the track's sequence.
inline std::byte* part_of_field(ledger_ref const& l, field const& f, track t) {
  switch (f.what) {
  case field_of::sequence: return f.data + std::size_t{t.sequence} * f.bytes;
  case field_of::track: return f.data + std::size_t{t.index} * f.bytes;
  case field_of::entry: return f.data + l.at(t, 0) * f.bytes;
  case field_of::member: break;
  }
  return f.data + l.member_at(t, 0) * f.bytes;
}

/// The number of bytes of this part, from the counts in the ledger.
inline std::size_t bytes_of_part(ledger_ref const& l, field const& f, track t) {
  if (f.what == field_of::entry) return std::size_t{l.length[t.index]} * f.bytes;
  if (f.what == field_of::member) return std::size_t{l.members.count[t.index]} * f.bytes;
  return f.bytes;
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
