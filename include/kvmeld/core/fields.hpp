// SPDX-License-Identifier: Apache-2.0
// The one list of the ledger's arrays, which fork copies, save writes and compaction moves.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
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

/// Calls visit(what, width, array...) for every array of the ledger that describes a sequence, except
/// `is_open`, which says whether the others are in use; with the array of each of several ledgers that have
/// the same arrays. `width` is the number of elements per sequence, track, entry or member. The order is
/// fixed: counts come before what they count.
KVMELD_CALLS_ARGUMENTS
template <class F, class... Ledgers>
KVMELD_HD void for_each_field(F visit, ledger_ref const& first, Ledgers const&... others) {
  visit(field_of::sequence, 1, first.seen, others.seen...);
  visit(field_of::sequence, 1, first.pending, others.pending...);
  visit(field_of::sequence, 1, first.frozen, others.frozen...);
  visit(field_of::sequence, 1, first.id, others.id...);
  visit(field_of::sequence, sequence_word::count, first.sequence_words, others.sequence_words...);
  visit(field_of::track, 1, first.length, others.length...);
  visit(field_of::track, 1, first.warnings, others.warnings...);
  visit(field_of::track, track_word::count, first.track_words, others.track_words...);
  for_each_count_of_members<field_of>(visit, first.members, others.members...);
  if (first.table_floats != 0) visit(field_of::track, first.table_floats, first.table, others.table...);
  visit(field_of::entry, 1, first.degree, others.degree...);
  visit(field_of::entry, 1, first.position, others.position...);
  visit(field_of::entry, 1, first.flags, others.flags...);
  for (std::uint32_t c = 0; c < first.channels.count; ++c)
    visit(field_of::entry, 1, first.channel_data[c], others.channel_data[c]...);
  for_each_array_of_members<field_of>(visit, first.channels.count, first.members, others.members...);
}

/// Calls visit(field) for every array, as for_each_field does. For the host.
template <class F> void for_each_field_as_bytes(ledger_ref const& l, F visit) {
  for_each_field(
      [&](field_of what, std::uint32_t width, auto* array) {
        visit(field{reinterpret_cast<std::byte*>(array), static_cast<std::uint32_t>(sizeof *array) * width,
                    what});
      },
      l);
}

/// Where the part of an array lies that belongs to a track, or to the track's sequence.
KVMELD_HD inline entry_indices indices_of_part(ledger_ref const& l, field_of what, track t) {
  switch (what) {
  case field_of::sequence: return t.sequence;
  case field_of::track: return t.index;
  case field_of::entry: return l.from(t);
  case field_of::member: break;
  }
  return l.members.at(t, 0);
}

/// The number of elements in use of this part, from the counts in the ledger.
KVMELD_HD inline std::uint32_t size_of_part(ledger_ref const& l, field_of what, track t) {
  return what == field_of::entry ? l.length[t.index] : what == field_of::member ? l.members.held(t) : 1;
}

/// The bytes of this part. The ledger's entries do not lie in pages.
inline span<std::byte> bytes_of_part(ledger_ref const& l, field const& f, track t) {
  return {f.data + indices_of_part(l, f.what, t)(0) * f.bytes,
          std::size_t{size_of_part(l, f.what, t)} * f.bytes};
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
