// SPDX-License-Identifier: Apache-2.0
// Checks that several calls on sequences share. Each returns why a call is refused; empty if it is not.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace check_calls {

/// The first text that problem(track) returns for a track of a sequence; empty if there is none.
template <class F> std::string first_track_problem(ledger_ref const& l, std::uint32_t sequence, F problem) {
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      std::string text = problem(make_track(l.extent, layer, sequence, head));
      if (!text.empty()) return text;
    }
  }
  return {};
}

inline std::string track_name(track t) {
  return message("track (layer ", t.layer, ", sequence ", t.sequence, ", head ", t.kv_head, ")");
}

inline std::string in_range(char const* call, ledger_ref const& l, std::uint32_t sequence) {
  if (sequence < l.extent.sequences) return {};
  return refusal(call, "sequence", sequence, "0 to ", l.extent.sequences - 1);
}

/// Checks that every sequence sequence_at(0 .. count - 1) is in range, open, and listed once.
template <class SlotAt>
std::string each_is_open(char const* call, ledger_ref const& l, std::size_t count, SlotAt sequence_at) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const sequence = sequence_at(i);
    if (std::string text = in_range(call, l, sequence); !text.empty()) return text;
    if (l.is_open[sequence] == 0) return refusal(call, "sequence", sequence, "open (call open first)");
    for (std::size_t j = 0; j < i; ++j) {
      if (sequence_at(j) == sequence) return refusal(call, "sequence", sequence, "listed only once");
    }
  }
  return {};
}

inline std::string is_open(char const* call, ledger_ref const& l, index_list sequences) {
  return each_is_open(call, l, sequences.size(), [&](std::size_t i) { return sequences[i]; });
}

/// Checks that `sequence` is in range and not open.
inline std::string is_closed(char const* call, ledger_ref const& l, std::uint32_t sequence) {
  if (std::string text = in_range(call, l, sequence); !text.empty()) return text;
  return l.is_open[sequence] == 0 ? std::string()
                                  : refusal(call, "sequence", sequence, "closed (call close first)");
}

inline std::string one_count_each(char const* call, index_list sequences, index_list counts) {
  if (sequences.size() == counts.size()) return {};
  return refusal(call, "number of counts", counts.size(), sequences.size(), ", one for each sequence");
}

inline std::string nothing_pending(char const* call, ledger_ref const& l, std::uint32_t sequence) {
  if (l.pending[sequence] == 0) return {};
  return refusal(call, message("number of pending entries of sequence ", sequence), l.pending[sequence],
                 "0 (call commit first)");
}

/// Checks that `more` tokens can be added to `tokens`: a sequence has at most largest::tokens.
inline std::string tokens_fit(char const* call, std::string const& argument, std::uint32_t more,
                              std::uint64_t tokens) {
  std::uint64_t const room = largest::tokens - min_of<std::uint64_t>(tokens, largest::tokens);
  if (more <= room) return {};
  return refusal(call, argument, more, "at most ", room, ", so that the tokens of a sequence are at most ",
                 largest::tokens);
}

/// Number of committed entries and empty slots of a sequence's shortest track.
inline std::uint32_t shortest(ledger_ref const& l, std::uint32_t sequence) {
  std::uint32_t least = l.extent.capacity;
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      least = min_of(least, l.length[make_track(l.extent, layer, sequence, head).index]);
    }
  }
  return least - l.pending[sequence];
}

/// Checks that the first `frozen` slots of every track are committed entries, before any empty slot.
inline std::string frozen_fits(char const* call, ledger_ref const& l, std::uint32_t sequence,
                               std::uint32_t frozen) {
  std::uint32_t const committed = shortest(l, sequence);
  std::uint32_t most = committed;
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      std::uint32_t const from = l.word(make_track(l.extent, layer, sequence, head), track_word::padded_from);
      if (from != 0) most = min_of(most, from - 1);
    }
  }
  if (frozen <= most) return {};
  return refusal(call, "frozen", frozen, "at most ", most,
                 ", the committed entries of the shortest track of sequence ", sequence,
                 most == committed ? "" : " before its first empty slot");
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
