// SPDX-License-Identifier: Apache-2.0
// The ledger: everything kvmeld knows about a cache besides K and V themselves.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/members.hpp>
#include <kvmeld/core/page_places.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Bits of ledger_ref::flags.
namespace entry_flag {
enum : std::uint8_t { key_checked = 1, value_checked = 2, nonfinite = 4 };
}  // namespace entry_flag

/// Words per track that the ready-made phases keep.
namespace track_word {
enum : std::uint32_t {
  observed_rows,
  window_rows,
  last_rounds,
  carried,  ///< what the identifier carries from one compression of the track to the next; 0: nothing yet
  next_carried,  ///< the same for the plan in progress; becomes `carried` when the plan is applied
  changed,       ///< 1 if the last compression changed the track
  empty,         ///< empty slots below the length (options.padded)
  padded_from,   ///< 1 + the first empty slot; 0: there are no empty slots
  count
};
}  // namespace track_word
/// Adds `n` to track_word::observed_rows. The word stays as it is where 32 bits cannot hold the sum.
KVMELD_HD inline void count_rows(std::uint32_t& observed_rows, std::uint32_t n) {
  if (n <= 0xffffffffu - observed_rows) observed_rows += n;
}
/// Words per sequence that the ready-made phases keep.
namespace sequence_word {
enum : std::uint32_t {
  /// rounds of all compressions so far; set_rounds changes it
  rounds,
  /// Tokens seen when a compression last changed any track of the sequence; it moves with shifts. Later
  /// tokens are unmerged: an entry that holds one of them holds no other.
  compressed_at,
  /// Every track has an entry for each token from max(compressed_at, gap_end) on. Before gap_end, positions
  /// may
  /// lie empty: drop_positions and shift leave such gaps. 0: there was none.
  gap_end,
  count
};
}  // namespace sequence_word

/// Natural logarithm of a degree: 0 for an unmerged entry, the lowest float for an empty slot.
KVMELD_HD inline float log_of_degree(float degree) {
  return degree == 1.0f ? 0.0f : degree > 0.0f ? std::log(degree) : element_traits<float>::lowest;
}

/// Where the elements of a track lie in arrays of the ledger, from some slot on. Valid as long as the
/// ledger_ref that it comes from.
class entry_indices {
public:
  /// Elements that adjoin, from index `first` on.
  KVMELD_HD entry_indices(std::size_t first = 0) : base_(first), pages_(nullptr), where_{}, first_(0) {}
  /// Elements in pages: those of a track's slots from `first` on.
  KVMELD_HD entry_indices(page_places<> const* pages, track where, slot_t first)
      : base_(0), pages_(pages), where_(where), first_(first) {}

  /// Index of the element of the i-th slot.
  KVMELD_HD std::size_t operator()(std::uint32_t i) const {
    return pages_ == nullptr ? base_ + i : static_cast<std::size_t>(pages_->at(where_, first_ + i));
  }

private:
  std::size_t base_;
  page_places<> const* pages_;
  track where_;
  slot_t first_;
};

/// The elements of a track in one array of the ledger, from some slot on.
template <class T> struct entry_array {
  T* data;           ///< the array
  entry_indices at;  ///< where the elements lie
  /// The element of the i-th slot.
  KVMELD_HD T& operator[](std::uint32_t i) const { return data[at(i)]; }
};

/// Trivially copyable view of the ledger's arrays; independent of any policy's type. Arrays per entry are
/// valid below a track's length. They are [tracks][capacity], or lie in pages of a pool (`paged`), where
/// sequences that share a page share its elements. Arrays per sequence are [sequences].
struct ledger_ref {
  shape extent;                     ///< extents of the cache
  std::uint32_t first_layer = 0;    ///< global number of the group's first layer
  std::uint32_t first_kv_head = 0;  ///< global number of the first head (tensor parallelism)
  channel_list channels;            ///< the score channels that policies keep per entry
  bool ignore_degree = false;       ///< every entry counts as one token in attention
  bool padded = false;              ///< slots of degree 0 fill up the shorter tracks of a sequence
  page_places<> pages;  ///< where the elements of an entry lie; page_size 0: in arrays [tracks][capacity]

  std::uint32_t* length =
      nullptr;  ///< [tracks] slots in use: entries held, pending ones included, and empty slots
  std::uint32_t* seen = nullptr;     ///< [sequences] tokens committed since open: the next position
  std::uint32_t* pending = nullptr;  ///< [sequences] entries at the end of every track that are not committed
  std::uint32_t* frozen =
      nullptr;                  ///< [sequences] length of the shared beginning that is never written or moved
  std::uint32_t* id = nullptr;  ///< [sequences] the engine's number for the sequence: keys random draws
  std::uint32_t* is_open = nullptr;   ///< [sequences] 1: open
  std::uint32_t* warnings = nullptr;  ///< [tracks] bits of `warning`; a sequence has those of its tracks
  std::uint32_t* sequence_words = nullptr;  ///< [sequences][sequence_word::count]
  std::uint32_t* track_words = nullptr;     ///< [tracks][track_word::count]

  float* degree = nullptr;         ///< tokens the entry stands for
  position_t* position = nullptr;  ///< token position that the key is rotated for
  std::uint8_t* flags = nullptr;   ///< bits of `entry_flag`
  /// One array per channel, channels.count of them.
  float* channel_data[max_channels] = {};
  member_ref members;              ///< members of shared entries
  float* table = nullptr;          ///< [tracks][table_floats] what the score keeps of each track
  std::uint32_t table_floats = 0;  ///< floats per track; 0: the score keeps no table

  /// Whether arrays of entries lie in pages.
  KVMELD_HD bool paged() const { return pages.page_size != 0; }
  /// Index into arrays of entries.
  KVMELD_HD std::size_t at(track t, slot_t s) const {
    return paged() ? static_cast<std::size_t>(pages.at(t, s)) : std::size_t{t.index} * extent.capacity + s;
  }
  /// Indices of the slots from `first` on.
  KVMELD_HD entry_indices from(track t, slot_t first = 0) const {
    return paged() ? entry_indices(&pages, t, first) : entry_indices(at(t, first));
  }
  /// How many slots from `s` on have adjoining elements.
  KVMELD_HD std::uint32_t adjoining(slot_t s) const {
    return paged() ? pages.page_size - s % pages.page_size : extent.capacity - s;
  }
  /// How many first entries of a track have elements that other sequences may share: their positions stay,
  /// and nothing is added to their scores.
  KVMELD_HD std::uint32_t shared_length(track t) const { return paged() ? frozen[t.sequence] : 0; }
  /// Whether an entry is one of them.
  KVMELD_HD bool shared(track t, slot_t s) const { return s < shared_length(t); }
  /// Word `w` of a track, as track_word numbers them.
  KVMELD_HD std::uint32_t& word(track t, std::uint32_t w) const {
    return track_words[std::size_t{t.index} * track_word::count + w];
  }
  /// The score's table of a track.
  KVMELD_HD float* table_of(track t) const { return table + std::size_t{t.index} * table_floats; }
  /// Entries of a track, pending ones included, empty slots not.
  KVMELD_HD std::uint32_t held(track t) const { return length[t.index] - word(t, track_word::empty); }
  /// Length of the longest track of a sequence. The heads of a layer lie side by side.
  std::uint32_t longest(std::uint32_t sequence) const {
    std::uint32_t most = 0;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      std::uint32_t const* const row = length + make_track(extent, layer, sequence, 0).index;
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) most = max_of(most, row[head]);
    }
    return most;
  }
  /// Word `w` of a sequence, as sequence_word numbers them.
  KVMELD_HD std::uint32_t& sequence_state(std::uint32_t sequence, std::uint32_t w) const {
    return sequence_words[std::size_t{sequence} * sequence_word::count + w];
  }
  /// The first token from which on every token of a sequence has an entry of its own in every track.
  KVMELD_HD std::uint32_t one_entry_each_from(std::uint32_t sequence) const {
    std::uint32_t const merged = sequence_state(sequence, sequence_word::compressed_at),
                        gap = sequence_state(sequence, sequence_word::gap_end);
    return merged > gap ? merged : gap;
  }
  /// The first slot of a track whose position is at least `position`; its length if there is none. Positions
  /// ascend.
  KVMELD_HD slot_t first_slot_from(track t, std::int64_t position_at_least) const {
    slot_t begin = 0, end = length[t.index];
    while (begin < end) {
      slot_t const middle = begin + (end - begin) / 2;
      if (std::int64_t{position[at(t, middle)]} < position_at_least) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
  /// What attention adds to the entry's logit: log_of_degree, or 0 for every entry held if degrees are
  /// ignored.
  KVMELD_HD float log_degree(track t, slot_t s) const { return log_degree(degree[at(t, s)]); }
  /// What attention adds to the logit of an entry of degree d.
  KVMELD_HD float log_degree(float d) const { return log_of_degree(ignore_degree && d > 0.0f ? 1.0f : d); }
  /// Tokens of a sequence, pending ones included: the position of the next one.
  KVMELD_HD std::uint32_t tokens(std::uint32_t sequence) const { return seen[sequence] + pending[sequence]; }
  /// The factor that turns the slot's key row into the key of its own token; 1 for an ordinary entry.
  KVMELD_HD float norm_factor(track t, slot_t s) const {
    float const norm = members.norm_of_row(at(t, s));
    return norm > 0.0f ? norm : 1.0f;
  }
  /// True if the slot's key row is a direction, because members share it.
  KVMELD_HD bool is_direction(track t, slot_t s) const { return members.norm_of_row(at(t, s)) > 0.0f; }
  /// False if the entry has a row with NaN or infinity. Such an entry never merges and is never a target.
  KVMELD_HD bool usable(track t, slot_t s) const { return (flags[at(t, s)] & entry_flag::nonfinite) == 0; }
};

/// Sizes (arena without memory) or carves the ledger's arrays for `extent`. Contents are not initialised.
/// With `pages`, arrays per entry have `elements` elements, addressed by `pages`; else one for every slot.
inline ledger_ref carve_ledger(arena& a, shape const& extent, channel_list const& channels,
                               std::uint32_t members_per_track, std::uint32_t table_floats = 0,
                               page_places<> const& pages = {}, std::size_t elements = 0) {
  ledger_ref l;
  l.extent = extent;
  l.channels = channels;
  l.pages = pages;
  std::size_t const tracks = extent.tracks();
  std::size_t const slots = l.paged() ? elements : extent.slots();
  l.length = a.take<std::uint32_t>(tracks);
  l.warnings = a.take<std::uint32_t>(tracks);
  for (auto* field : {&l.seen, &l.pending, &l.frozen, &l.id, &l.is_open}) {
    *field = a.take<std::uint32_t>(extent.sequences);
  }
  l.sequence_words = a.take<std::uint32_t>(std::size_t{extent.sequences} * sequence_word::count);
  l.track_words = a.take<std::uint32_t>(tracks * track_word::count);
  l.degree = a.take<float>(slots);
  l.position = a.take<position_t>(slots);
  l.flags = a.take<std::uint8_t>(slots);
  for (std::uint32_t c = 0; c < channels.count; ++c) l.channel_data[c] = a.take<float>(slots);
  l.members = detail::carve_members(a, extent, channels, members_per_track);
  l.table_floats = table_floats;
  if (table_floats != 0) l.table = a.take<float>(tracks * table_floats);
  return l;
}

namespace detail {

/// The same for a ledger like `l` of another extent.
inline ledger_ref carve_ledger_like(arena& a, shape const& extent, ledger_ref const& l) {
  ledger_ref out = carve_ledger(a, extent, l.channels, l.members.capacity, l.table_floats);
  out.first_layer = l.first_layer;
  out.first_kv_head = l.first_kv_head;
  out.ignore_degree = l.ignore_degree;
  out.padded = l.padded;
  return out;
}

/// Sets the arrays per entry and per member, and the score's table, to null.
inline void forget_entries(ledger_ref& l) {
  l.degree = nullptr;
  l.position = nullptr;
  l.flags = nullptr;
  for (float*& channel : l.channel_data) channel = nullptr;
  l.members = l.members.without_arrays();
  l.table = nullptr;
}

/// Writes a new, unmerged entry: degree 1, every channel at its initial value, no flags.
KVMELD_HD inline void new_entry(ledger_ref const& l, track where, slot_t s, position_t position) {
  std::size_t const i = l.at(where, s);
  l.degree[i] = 1.0f;
  l.position[i] = position;
  l.flags[i] = 0;
  if (l.members.own_norm != nullptr) l.members.own_norm[i] = 0.0f;
  for (std::uint32_t c = 0; c < l.channels.count; ++c) l.channel_data[c][i] = l.channels.at[c].initial;
}

/// Empties what a track has besides entries and words: members, and the score's table. Collective.
template <class Team> KVMELD_HD void clear_rest(Team const& team, ledger_ref const& l, track t) {
  team.for_each(l.table_floats, [&](std::uint32_t i) { l.table_of(t)[i] = 0.0f; });
  if (team.lane() == 0 && l.members.count != nullptr) l.members.count[t.index] = 0;
}

/// Copies what clear_rest empties. Arrays of members are copied as those of entries are (core/fields.hpp).
template <class Team>
KVMELD_HD void copy_rest(Team const& team, ledger_ref const& l, track t, ledger_ref const& out, track to) {
  team.for_each(l.table_floats, [&](std::uint32_t i) { out.table_of(to)[i] = l.table_of(t)[i]; });
  if (team.lane() == 0 && l.members.count != nullptr) out.members.count[to.index] = l.members.count[t.index];
}

/// The array of the channel with this tag; null if there is none. The number of turns is fixed, so that a
/// device need not keep the lists in memory that can be indexed.
KVMELD_HD inline float* channel_of(channel_list const& channels, float* const* data, std::uint32_t tag) {
  float* found = nullptr;
  for (std::uint32_t i = 0; i < max_channels; ++i) {
    if (i < channels.count && channels.at[i].tag == tag && found == nullptr) found = data[i];
  }
  return found;
}

/// The weight of an entry in a merge by attention (EMS Eq. 7). It is the sum of the weights that the entry
/// has merged with so far. An entry that has not merged yet weighs its window attention, or its accumulated
/// attention if the score keeps no window. `data` holds the arrays of the channels and `i` is the entry's
/// place in them.
KVMELD_HD inline float carried_weight(channel_list const& channels, float* const* data, std::size_t i) {
  auto const value = [&](std::uint32_t tag) {
    float const* const x = channel_of(channels, data, tag);
    return x != nullptr ? x[i] : 0.0f;
  };
  float const carried = value(channel_tag::merge_weight);
  if (carried > 0.0f) return carried;
  if (channel_of(channels, data, channel_tag::window_past) != nullptr) {
    return value(channel_tag::window_past) + value(channel_tag::window_current);
  }
  return value(channel_tag::accumulated_attention);
}

}  // namespace detail

/// The key of a random draw for an entry. It does not depend on the number of the sequence in the cache, the
/// rank or the device.
KVMELD_HD inline random_key draw_key(ledger_ref const& l, track where, slot_t s, std::uint64_t seed) {
  return {seed, l.first_layer + where.layer, l.id[where.sequence], l.first_kv_head + where.kv_head,
          static_cast<std::uint32_t>(l.position[l.at(where, s)])};
}

/// Bytes that the ledger holds per entry with these channels, without members.
constexpr std::size_t ledger_bytes_per_entry(channel_list const& channels) {
  return sizeof(float) + sizeof(position_t) + sizeof(std::uint8_t) + channels.count * sizeof(float);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
