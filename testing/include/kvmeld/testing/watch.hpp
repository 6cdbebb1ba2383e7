// SPDX-License-Identifier: Apache-2.0
// Remembers a cache before an operation, as digests, and checks what the operation may not have done.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/testing/check_state.hpp>
#include <kvmeld/testing/layout_options.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// A running hash of 32-bit words (like FNV-1a, 64 bits, a word at a time, with a shift after each word).
class digest {
public:
  /// Adds one word.
  void add(std::uint32_t word) {
    hash_ = (hash_ ^ word) * 0x100000001b3u;
    hash_ ^= hash_ >> 29;
  }
  /// The digest so far.
  std::uint64_t value() const { return hash_; }

private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

/// Digest of one row as a layout reads it.
template <class Layout> std::uint64_t row_digest(Layout const& layout, track t, slot_t s) {
  std::vector<float> row(layout.channels());
  std::vector<std::byte> scratch(4096);
  layout.load_tile(serial_team(scratch.data(), scratch.size()), t, s, 1, 0, layout.channels(), row.data(),
                   layout.channels());
  digest d;
  for (float x : row) d.add(float_bits(x));
  return d.value();
}

/// Whether every channel of a row is 0.
template <class Layout> bool is_zero_row(Layout const& layout, track t, slot_t s) {
  std::vector<float> row(layout.channels());
  std::vector<std::byte> scratch(4096);
  layout.load_tile(serial_team(scratch.data(), scratch.size()), t, s, 1, 0, layout.channels(), row.data(),
                   layout.channels());
  for (float x : row) {
    if ((float_bits(x) & 0x7fffffffu) != 0) return false;
  }
  return true;
}

/// Remembers a cache (32 bytes per slot, and some numbers per track and sequence). After an operation on the
/// cache, or on a copy of it, it says which promise was broken; an empty text: none. Host only. Reads every
/// row of K and V, in use or not.
class watch {
public:
  /// Remembers the cache as it is.
  template <class Cache> explicit watch(Cache const& cache) : now_(look(cache)) {}

  /// Checks after `compress`, or `plan` and `apply`, of the sequences in `slots`. The ledger's invariants
  /// hold. Other sequences and frozen, shared or unused rows have the same bits. Tracks are not longer. A
  /// track of the same length has the same bits. Entries keep their stored positions and order. Degrees sum
  /// to no more than before, unless values are spread or degrees fitted (such degrees are masses). Emptied
  /// value rows are zero if the options clear them. Frozen entries may lose members. Padded tracks
  /// may gain and lose empty slots. This holds for every preset; a plan by hand may choose other weights.
  template <class Cache> std::string after_compress(Cache const& cache, index_list slots) const {
    std::string problem = invariant_problem(cache);
    if (!problem.empty()) return problem;
    image const next = look(cache);
    if (next.tables != now_.tables) return "a table of the score changed";
    auto const ref = cache.ref();
    ledger_ref const& l = cache.ledger();
    for (std::uint32_t q = 0; q < l.extent.sequences; ++q) {
      if (now_.counters[q] != next.counters[q]) {
        return message("sequence ", q, ": open, seen, pending, frozen or id changed");
      }
    }
    each_track(l.extent, [&](track t) {
      if (!problem.empty()) return;
      bool const listed = lists(slots, t);
      std::uint32_t const before = now_.length[t.index], after = next.length[t.index];
      if (after > before) {
        problem = message(check_calls::track_name(t), " grew from ", before, " to ", after, " entries");
      } else if (!listed || (after == before && !l.padded)) {
        problem =
            change(next, t, 0, l.extent.capacity,
                   listed ? ", though its track kept its length" : ", though its sequence was not listed");
        if (problem.empty()) problem = members_change(next, t);
      } else {
        problem = change(next, t, 0, l.frozen[t.sequence], ", though it is frozen");
        for (slot_t s = 0; problem.empty() && s < before; ++s) {
          if (!ref.keys.writable(t, s) || !ref.values.writable(t, s)) {
            problem = change(next, t, s, s + 1, ", though it is not writable");
          }
        }
        if (problem.empty())
          problem = change(next, t, before, l.extent.capacity, ", though it was not in use");
        for (slot_t s = after; problem.empty() && s < before && cache.options().clears_emptied(); ++s) {
          if (!is_zero_row(ref.values, t, s))
            problem = slot_name(t, s) + " was emptied, but its value is not zero";
        }
        if (problem.empty()) problem = kept_problem(l, t, before, after, has_masses(cache.policy().merge));
      }
    });
    return problem;
  }

  /// Writes NaN to the writable K and V rows that `compress` of the sequences in `slots` emptied. An
  /// attention kernel that reads such a row afterwards shows NaN in its output. Call it directly after
  /// `compress`, before blocks are freed or tokens appended. Padded caches have no such rows. Returns how
  /// many of the rows read back as NaN: 0 for formats that cannot hold one. Host only.
  template <class Cache> std::size_t poison_emptied(Cache const& cache, index_list slots) const {
    auto const ref = cache.ref();
    std::size_t poisoned = 0;
    auto const poison = [&](auto const& rows, track t, slot_t s) {
      if (!rows.writable(t, s)) return;
      std::vector<std::byte> scratch(4096);
      rows.encode_row(serial_team(scratch.data(), scratch.size()), t, s,
                      [](std::uint32_t) { return bits_float(0x7fc00000u); });
      float first = 0;
      rows.load_tile(serial_team(scratch.data(), scratch.size()), t, s, 1, 0, 1, &first, 1);
      poisoned += (float_bits(first) & 0x7fffffffu) > 0x7f800000u ? 1 : 0;
    };
    each_track(cache.ledger().extent, [&](track t) {
      bool const listed = lists(slots, t);
      std::uint32_t const end = listed && !cache.options().padded ? now_.length[t.index] : 0;
      for (slot_t s = ref.length(t); s < end; ++s) {
        poison(ref.keys, t, s);
        poison(ref.values, t, s);
      }
    });
    return poisoned;
  }

  /// Checks after a refused call, or after `plan` alone, that K, V, lengths, entries and sequences are as
  /// they were. Flags, warnings and words of tracks may differ, since planning looks for NaN and leaves
  /// warnings.
  template <class Cache> std::string unchanged(Cache const& cache) const {
    image const next = look(cache);
    if (next.tables != now_.tables) return "a table of the score changed";
    ledger_ref const& l = cache.ledger();
    for (std::uint32_t q = 0; q < l.extent.sequences; ++q) {
      if (now_.counters[q] != next.counters[q]) return message("sequence ", q, " changed its counters");
    }
    std::string problem;
    each_track(l.extent, [&](track t) {
      if (!problem.empty()) return;
      if (now_.length[t.index] != next.length[t.index]) {
        problem = message(check_calls::track_name(t), " went from ", now_.length[t.index], " to ",
                          next.length[t.index], " entries");
      } else {
        problem = change(next, t, 0, l.extent.capacity, "");
        if (problem.empty()) problem = members_change(next, t);
      }
    });
    return problem;
  }

private:
  /// Whether a track's sequence is one of `slots`.
  static bool lists(index_list slots, track t) {
    bool found = false;
    for (std::uint32_t q : slots) found = found || q == t.sequence;
    return found;
  }
  /// Whether degrees are masses, whose sum may grow.
  template <class Merge> static bool has_masses(Merge const& merge) {
    return facts_of<merge_facts>(merge).spreads || fit_of(merge).degrees;
  }

  struct image {
    std::uint32_t capacity;
    std::vector<std::uint32_t> length;
    std::vector<std::uint64_t> keys, values, entries, counters, members, tables;
    std::vector<float> degree;
    std::vector<position_t> position;
  };

  template <class Cache> static image look(Cache const& cache) {
    ledger_ref const& l = cache.ledger();
    auto const ref = cache.ref();
    image i;
    i.capacity = l.extent.capacity;
    each_track(l.extent, [&](track t) {
      i.length.push_back(l.length[t.index]);
      for (slot_t s = 0; s < l.extent.capacity; ++s) {
        i.keys.push_back(row_digest(ref.keys, t, s));
        i.values.push_back(row_digest(ref.values, t, s));
        bool const held = s < i.length.back() && (l.is_open[t.sequence] != 0 || !l.paged());
        i.degree.push_back(held ? l.degree[l.at(t, s)] : 0.0f);
        i.position.push_back(held ? l.position[l.at(t, s)] : 0);
        digest d;
        d.add(float_bits(i.degree.back() - members_in(l, t, s)));
        for (std::uint32_t c = 0; held && c < l.channels.count; ++c) {
          // A learned score is computed when a compression first asks for it, whatever becomes of the entry.
          if (l.channels.at[c].tag == channel_tag::learned_score) continue;
          d.add(float_bits(l.channel_data[c][l.at(t, s)]));
        }
        d.add(static_cast<std::uint32_t>(i.position.back()));
        i.entries.push_back(d.value());
      }
      i.members.push_back(member_digest(l, t));
      digest table;
      for (std::uint32_t n = 0; n < l.table_floats; ++n) table.add(float_bits(l.table_of(t)[n]));
      i.tables.push_back(table.value());
    });
    for (std::uint32_t q = 0; q < l.extent.sequences; ++q) {
      digest d;
      for (auto* field : {l.is_open, l.seen, l.pending, l.frozen, l.id}) d.add(field[q]);
      i.counters.push_back(d.value());
    }
    return i;
  }

  static float members_in(ledger_ref const& l, track t, slot_t s) {
    if (l.members.capacity == 0 || s >= l.length[t.index]) return 0.0f;
    return static_cast<float>(l.members.first_of(t, s + 1) - l.members.first_of(t, s));
  }
  static std::uint64_t member_digest(ledger_ref const& l, track t) {
    digest d;
    std::uint32_t const count = l.members.capacity == 0 ? 0 : l.members.count[t.index];
    for (std::uint32_t m = 0; m < count; ++m) {
      std::size_t const i = l.members.at(t, m);
      d.add(l.members.owner[i]);
      d.add(static_cast<std::uint32_t>(l.members.position[i]));
      d.add(float_bits(l.members.norm[i]));
      for (std::uint32_t c = 0; c < l.channels.count; ++c) d.add(float_bits(l.members.channel_data[c][i]));
    }
    for (slot_t s = 0; l.members.capacity != 0 && s < l.length[t.index]; ++s) {
      d.add(float_bits(l.members.own_norm[l.at(t, s)]));
    }
    return d.value();
  }

  std::string members_change(image const& next, track t) const {
    if (next.members[t.index] == now_.members[t.index]) return {};
    return check_calls::track_name(t) + " changed its members";
  }

  /// Names the first slot of [begin, end) whose row or entry changed; empty if none did.
  std::string change(image const& next, track t, slot_t begin, slot_t end, char const* why) const {
    for (slot_t s = begin; s < end; ++s) {
      std::size_t const i = std::size_t{t.index} * now_.capacity + s;
      char const* const what = next.keys[i] != now_.keys[i]       ? " changed its key"
                               : next.values[i] != now_.values[i] ? " changed its value"
                               : next.entries[i] != now_.entries[i]
                                   ? " changed its degree, position or scores"
                                   : nullptr;
      if (what != nullptr) return slot_name(t, s) + what + why;
    }
    return {};
  }

  std::string kept_problem(ledger_ref const& l, track t, std::uint32_t before, std::uint32_t after,
                           bool masses) const {
    std::size_t const base = std::size_t{t.index} * now_.capacity;
    double was = 0, is = 0;
    for (slot_t s = 0; s < before; ++s) was += static_cast<double>(now_.degree[base + s]);
    slot_t old = 0;
    for (slot_t s = 0; s < after; ++s) {
      if (l.padded && l.degree[l.at(t, s)] == 0.0f) continue;
      position_t const p = l.position[l.at(t, s)];
      while (old < before && now_.position[base + old] < p) ++old;
      if (old == before || now_.position[base + old] != p) {
        return message(slot_name(t, s), " is stored at position ", p, ", which no entry had before");
      }
      is += static_cast<double>(l.degree[l.at(t, s)]);
    }
    if (!masses && is > was * (1 + 1e-5)) {
      return message(check_calls::track_name(t), " stands for ", is, " tokens after, but for ", was,
                     " before");
    }
    return {};
  }

  image now_;
};

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
