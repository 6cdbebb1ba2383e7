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

/// The list of arrays. `fields_of` fills it in a fixed order: counts come before what they count.
struct field_list {
  static constexpr std::uint32_t most = 21 + 2 * max_channels;
  field at[most];
  std::uint32_t count = 0;

  template <class T> KVMELD_HD void add(field_of what, T* array, std::uint32_t width = 1) {
    at[count].data = reinterpret_cast<std::byte*>(array);
    at[count].bytes = static_cast<std::uint32_t>(sizeof(T)) * width;
    at[count].what = what;
    ++count;
  }
};

/// Lists every array of the ledger that describes a sequence, except `is_open`, which says whether the others
/// are in use.
KVMELD_HD inline field_list fields_of(ledger_ref const& l) {
  field_list out;
  out.add(field_of::sequence, l.seen);
  out.add(field_of::sequence, l.pending);
  out.add(field_of::sequence, l.frozen);
  out.add(field_of::sequence, l.id);
  out.add(field_of::sequence, l.sequence_words, sequence_word::count);
  out.add(field_of::track, l.length);
  out.add(field_of::track, l.warnings);
  out.add(field_of::track, l.track_words, track_word::count);
  bool const shares = l.members.capacity != 0;
  if (shares) out.add(field_of::track, l.members.count);
  if (l.table_floats != 0) out.add(field_of::track, l.table, l.table_floats);
  out.add(field_of::entry, l.degree);
  out.add(field_of::entry, l.position);
  out.add(field_of::entry, l.flags);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) out.add(field_of::entry, l.channel_data[c]);
  if (!shares) return out;
  out.add(field_of::entry, l.members.own_norm);
  out.add(field_of::member, l.members.norm);
  out.add(field_of::member, l.members.position);
  out.add(field_of::member, l.members.owner);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) out.add(field_of::member, l.members.channel_data[c]);
  return out;
}

/// The beginning of the part of an array that belongs to a track, or to the track's sequence.
KVMELD_HD inline std::byte* part_of_field(ledger_ref const& l, field const& f, track t) {
  switch (f.what) {
  case field_of::sequence: return f.data + std::size_t{t.sequence} * f.bytes;
  case field_of::track: return f.data + std::size_t{t.index} * f.bytes;
  case field_of::entry: return f.data + l.at(t, 0) * f.bytes;
  case field_of::member: break;
  }
  return f.data + l.member_at(t, 0) * f.bytes;
}

/// The number of bytes of this part, from the counts in the ledger.
KVMELD_HD inline std::size_t bytes_of_part(ledger_ref const& l, field const& f, track t) {
  if (f.what == field_of::entry) return std::size_t{l.length[t.index]} * f.bytes;
  if (f.what == field_of::member) return std::size_t{l.members.count[t.index]} * f.bytes;
  return f.bytes;
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
