// SPDX-License-Identifier: Apache-2.0
// The basic types: where an entry lies, what may happen to it, and how large a cache is.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where an entry lies in its track, 0 <= slot < length(track).
using slot_t = std::uint32_t;

/// Token position that a key is rotated for. It is signed, because engines shift contexts.
using position_t = std::int32_t;

/// Stands in a list in place of a sequence: nothing happens for it. Recorded calls fill shorter lists up with
/// it.
constexpr std::uint32_t idle_sequence = 0xffffffffu;

/// Keys the random draws of a sequence: equal numbers give equal draws. It has a type of its own, so that no
/// count is mistaken for it.
enum class sequence_id : std::uint32_t {};

/// Extents of one group of layers that share shape and policy. No extent is 0. kvmeld::largest says how large
/// they may be (docs/limits.md).
struct shape {
  std::uint32_t layers = 1;               ///< layers of the group
  std::uint32_t sequences = 1;            ///< sequences
  std::uint32_t kv_heads = 1;             ///< KV heads per layer
  std::uint32_t queries_per_kv_head = 1;  ///< query heads per KV head
  std::uint32_t key_dim = 0;              ///< channels of a key
  std::uint32_t value_dim = 0;            ///< channels of a value
  std::uint32_t capacity = 0;             ///< slots per track

  /// Tracks of the whole cache.
  KVMELD_HD constexpr std::uint32_t tracks() const { return layers * sequences * kv_heads; }
  /// Slots of the whole cache.
  KVMELD_HD constexpr std::size_t slots() const { return std::size_t{tracks()} * capacity; }
  /// Query heads of a layer.
  KVMELD_HD constexpr std::uint32_t query_heads() const { return kv_heads * queries_per_kv_head; }
};

/// One (layer, sequence, KV head), with entries of its own.
struct track {
  std::uint32_t index;                     ///< (layer * sequences + sequence) * kv_heads + kv_head
  std::uint32_t layer, sequence, kv_head;  ///< layer of the group; sequence of the cache; KV head of the rank
};

/// Makes a track and computes its index.
KVMELD_HD constexpr track make_track(shape const& s, std::uint32_t layer, std::uint32_t sequence,
                                     std::uint32_t kv_head) {
  return {(layer * s.sequences + sequence) * s.kv_heads + kv_head, layer, sequence, kv_head};
}

/// The unit of work of a phase: a piece of one track.
struct tile {
  track where;          ///< which track
  std::uint32_t item;   ///< number of the track within the wave: addresses plan and scratch arrays
  std::uint32_t index;  ///< number of the piece within the track
};

/// What a plan does with an entry.
enum class fate : std::uint8_t {
  keep,    ///< stays, and may be the pivot of a set
  merge,   ///< becomes part of the entry `target`
  share,   ///< becomes a member, with its own norm, of the entry `target`
  spread,  ///< its value goes to the `span` slots from `target` on
  drop,    ///< is evicted; the EMS paper calls these entries the zero class
};

/// The name of a fate, as plans are printed and saved.
inline char const* fate_name(fate f) {
  constexpr char const* names[] = {"keep", "merge", "share", "spread", "drop"};
  return f <= fate::drop ? names[static_cast<std::uint8_t>(f)] : "unknown";
}

/// What a selector decided about an entry.
enum class role : std::uint8_t {
  pinned,      ///< stays; no other entry merges into it
  center,      ///< may take other entries in; never becomes part of another entry
  mergeable,   ///< may merge with another entry
  irrelevant,  ///< dropped
};

/// What a score tells about entries.
enum class score_kind : std::uint8_t {
  none,       ///< nothing: all entries score the same
  order,      ///< which of two entries matters more; numbers may be negative. A set scores as its best member
  peaks,      ///< as order, by amounts of at least 0, such as the largest attention
  log_peaks,  ///< as order, by the natural logarithm of such amounts
  weights,    ///< amounts of at least 0, such as attention; they add up when entries merge
};

/// The quotient a / b, rounded up.
KVMELD_HD constexpr std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return a / b + (a % b != 0); }

/// The smaller of a and b.
template <class T> KVMELD_HD constexpr T min_of(T a, T b) { return b < a ? b : a; }
/// The larger of a and b.
template <class T> KVMELD_HD constexpr T max_of(T a, T b) { return a < b ? b : a; }

}  // namespace KVMELD_ABI
}  // namespace kvmeld
