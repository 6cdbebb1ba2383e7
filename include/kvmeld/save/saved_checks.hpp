// SPDX-License-Identifier: Apache-2.0
// Checks that a saved ledger agrees with the cache that resumes it, and with itself.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fields.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/save/terms.hpp>
#include <kvmeld/shared/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace saved {

/// Calls f(name, number) for every number in which the cache that saved a ledger and the cache that resumes
/// it have to agree, because the saved numbers mean something else where it differs, or because what follows
/// would be decided otherwise. Number of sequences and capacity may differ.
template <class F> void for_each_identity(ledger_ref const& l, terms const& own, F f) {
  shape const& s = l.extent;
  f("shape.layers", s.layers);
  f("shape.kv_heads", s.kv_heads);
  f("shape.queries_per_kv_head", s.queries_per_kv_head);
  f("shape.key_dim", s.key_dim);
  f("shape.value_dim", s.value_dim);
  f("options.first_layer", l.first_layer);
  f("options.first_kv_head", l.first_kv_head);
  f("number of tracks that share a plan (options.scope)", own.tracks_per_plan);
  f("options.ignore_degree", l.ignore_degree ? 1 : 0);
  f("options.padded", l.padded ? 1 : 0);
  f("options.members", l.members.capacity);  // a full room decides which members a compression keeps
  f("number of score channels", l.channels.count);
  for (std::uint32_t c = 0; c < l.channels.count; ++c) {
    f("tag of a score channel", l.channels.at[c].tag);
    f("rule of a score channel", static_cast<std::uint32_t>(l.channels.at[c].rule));
    f("initial value of a score channel (bits)", float_bits(l.channels.at[c].initial));
  }
  f("number of floats that the score keeps of a track", l.table_floats);
  std::uint32_t digest = 0;
  detail::for_each_field_as_bytes(l, [&](detail::field const& x) {
    digest = digest * 31 + static_cast<std::uint32_t>(x.what) * 1000 + x.bytes;
  });
  f("digest of the arrays", digest);
}

/// Why the part just read, if it is a length or a number of members, is too large; empty if it is not.
inline std::string count_problem(ledger_ref const& l, detail::field const& f, track t) {
  if (f.data == reinterpret_cast<std::byte*>(l.length) && l.length[t.index] > l.extent.capacity) {
    return refusal("resume", "number of entries of a track of the saved ledger", l.length[t.index],
                   "at most ", l.extent.capacity, ", the capacity of this cache");
  }
  return detail::saved_count_problem(l, f.data, t);
}

/// How a track's numbers contradict each other or those of its sequence; null if they do not.
inline char const* track_contradiction(ledger_ref const& l, track t) {
  std::uint32_t const n = l.length[t.index], pending = l.pending[t.sequence], seen = l.seen[t.sequence];
  std::uint32_t const merged = l.sequence_state(t.sequence, sequence_word::compressed_at);
  if (std::uint64_t{seen} + pending > largest::tokens) return "more tokens than a sequence may have";
  if (pending > n) return "more pending entries than entries";
  if (merged > seen) return "a compression of more tokens than were seen";
  if (l.sequence_state(t.sequence, sequence_word::gap_end) > seen) return "a gap behind the tokens seen";
  std::uint32_t const each = seen - l.one_entry_each_from(t.sequence);  // tokens that have an entry each
  if (l.frozen[t.sequence] > n - pending) return "a frozen beginning longer than the track";
  std::uint32_t const empty = l.word(t, track_word::empty), from = l.word(t, track_word::padded_from);
  if (std::uint64_t{n} > std::uint64_t{seen} + pending + empty) return "more entries than tokens seen";
  if (empty > n - pending || from > n - pending || (empty == 0) != (from == 0))
    return "empty slots that cannot be";
  if (empty != 0 && l.frozen[t.sequence] >= from) return "an empty slot in its frozen beginning";
  if (l.padded && n != l.length[0]) return "another length than a track that it is padded with";
  std::uint32_t found = 0;
  std::int64_t next = 0;  // the least position that the next entry may have
  if (n - pending < each) return "fewer entries than tokens seen since its last compression";
  if (l.word(t, track_word::changed) > 1) return "a flag that is neither 0 nor 1";
  for (slot_t s = 0; s < n; ++s) {
    float const degree = l.degree[l.at(t, s)];
    bool const may_be_empty = l.padded && from != 0 && s + 1 >= from && s < n - pending;
    if (may_be_empty && degree == 0.0f) {
      ++found;
      continue;
    }
    if (!is_finite(degree) || !(degree > 0.0f)) return "an entry that stands for no tokens";
    // A cache saves no larger degree, and the sum over a track stays finite.
    if (degree > largest::degree * static_cast<float>(largest::capacity))
      return "an entry that stands for more tokens than any plan makes";
    std::uint8_t const known = entry_flag::key_checked | entry_flag::value_checked | entry_flag::nonfinite;
    if ((l.flags[l.at(t, s)] & ~known) != 0) return "unknown flags";
    position_t const position = l.position[l.at(t, s)];
    if (position < next) return "stored positions that do not ascend from 0 on";
    next = std::int64_t{position} + 1;
    if (next > std::int64_t{seen} + pending) return "a stored position beyond the tokens seen and pending";
    bool const is_pending = s >= n - pending;
    if (is_pending && (degree != 1.0f || std::int64_t{position} + n != std::int64_t{seen} + pending + s))
      return "a pending entry that is not one new token";
  }
  if (found != empty) return "another number of empty slots than it says";
  return detail::members_contradiction(l, t, n - pending - each, merged);
}

/// Why the degrees of a track need more of attention than a cache of these terms has; empty if they do not.
inline std::string degree_problem(ledger_ref const& l, track t, terms const& own) {
  if (l.ignore_degree || (!own.degrees_are_one && !own.heads_alike)) return {};
  track const first = make_track(l.extent, t.layer, t.sequence, 0);
  auto const refuse = [&](char const* what, slot_t s, auto const& value, auto const&... condition) {
    return refusal("resume",
                   message(what, s, " of the saved track (layer ", t.layer, ", head ", t.kv_head, ")"), value,
                   condition...);
  };
  for (slot_t s = 0; s < l.length[t.index]; ++s) {
    float const degree = l.degree[l.at(t, s)];
    if (own.degrees_are_one && degree != 1.0f) {
      return refuse("degree of entry ", s, degree,
                    "1, because options.bias of this cache is bias_support::none (or set ignore_degree)");
    }
    if (!own.heads_alike) continue;
    if (l.length[t.index] != l.length[first.index]) {
      return refusal("resume",
                     message("length of the saved track (layer ", t.layer, ", head ", t.kv_head, ")"),
                     l.length[t.index], l.length[first.index],
                     ", as that of head 0, because options.bias of this cache is bias_support::shared");
    }
    if (degree == l.degree[l.at(first, s)]) continue;
    return refuse("degree of entry ", s, degree, l.degree[l.at(first, s)],
                  ", as that of head 0, because options.bias of this cache is bias_support::shared");
  }
  return {};
}

/// Why the numbers of the only sequence of `l` contradict each other, or these terms; empty if they do not.
inline std::string contents_problem(ledger_ref const& l, terms const& own) {
  for (std::uint32_t i = 0; i < l.extent.tracks(); ++i) {
    track const t =
        make_track(l.extent, i / l.extent.kv_heads, 0, i % l.extent.kv_heads);  // `l` has one sequence
    if (char const* const what = track_contradiction(l, t); what != nullptr) {
      return refusal("resume", message("saved track (layer ", t.layer, ", head ", t.kv_head, ")"),
                     message("one with ", what), "free of contradictions");
    }
    if (std::string text = degree_problem(l, t, own); !text.empty()) return text;
  }
  return {};
}

}  // namespace saved
}  // namespace KVMELD_ABI
}  // namespace kvmeld
