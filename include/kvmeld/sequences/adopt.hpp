// SPDX-License-Identifier: Apache-2.0
// Degrees and positions that travel with pages: they are written beside the pages, and read by the sequence
// that gets the pages.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/page_places.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>
#include <kvmeld/shared/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// For every token of every page: the degree of the entry there (0: no entry) and its position. The engine
/// owns the arrays, in memory that phases can read and write.
template <class Entry = std::int32_t, class Index = std::int32_t> struct page_metadata {
  page_places<Entry, Index> places;  ///< where the numbers of a page and token lie
  float* degree = nullptr;           ///< tokens that the entry there stands for; 0: no entry
  position_t* position =
      nullptr;  ///< token position of the entry there; they ascend strictly in a track, below the tokens seen

  std::string problem(char const* call) const {
    if (degree == nullptr || position == nullptr) {
      return refusal(call, degree == nullptr ? "notes.degree" : "notes.position", "null",
                     "an array with an element for every token of every page");
    }
    return places.problem(call);
  }
};

/// Where the numbers of entry_metadata lie: one row per layer and head, or one row that they share.
struct entry_places {
  std::int64_t layer_stride = 0, head_stride = 0;  ///< in elements; 0: layers or heads share a row

  /// Index of an entry's element.
  KVMELD_HD std::int64_t at(track where, slot_t slot) const {
    return std::int64_t{where.layer} * layer_stride + std::int64_t{where.kv_head} * head_stride +
           std::int64_t{slot};
  }
  /// Number of slots that the arrays cover: all `slots`. page_places has the same function.
  KVMELD_HD std::uint32_t covered(track, std::uint32_t slots, std::uint32_t) const { return slots; }
};

/// Degrees and positions of the entries that a sequence begins with, in plain arrays instead of pages: for
/// `adopt`. The engine owns the arrays, in memory that phases can read.
struct entry_metadata {
  float const* degree = nullptr;  ///< tokens that each entry stands for; 0: no entry, a track ends before it
  position_t const* position =
      nullptr;  ///< token position of each entry; they ascend strictly in a track, below the tokens seen
  entry_places places{};  ///< where the row of a track begins

  std::string problem(char const* call) const {
    if (degree == nullptr) return refusal(call, "degree", "null", "an array, one number per entry");
    if (position == nullptr) return refusal(call, "position", "null", "an array, one number per entry");
    return {};
  }
};

namespace sequences {

/// Why what a ledger knows has no place in a page; empty if it has.
inline std::string no_pages(char const* call, ledger_ref const& l) {
  return detail::shares_problem(call, l, "members have no place in a page (or use save and resume)");
}

/// Why export_page_metadata is refused; empty if it is not.
template <class Notes>
std::string export_problem(ledger_ref const& l, index_list sequences, Notes const& notes) {
  if (std::string text = no_pages("export_page_metadata", l); !text.empty()) return text;
  if (std::string text = notes.problem("export_page_metadata"); !text.empty()) return text;
  if (std::string text = check_calls::is_open("export_page_metadata", l, sequences); !text.empty())
    return text;
  for (std::uint32_t sequence : sequences) {
    if (std::string text = check_calls::nothing_pending("export_page_metadata", l, sequence); !text.empty())
      return text;
  }
  return {};
}

/// Writes degree and position of the entries of every track, and 0 behind them up to the end of the pages
/// that hold `count` slots.
template <class Notes> struct export_phase : detail::sequence_phase {
  Notes notes;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index];
    team.for_each(notes.places.covered(t.where, count_of(t), n), [&](std::uint32_t s) {
      std::int64_t const at = notes.places.at(t.where, s);
      notes.degree[at] = s < n ? ledger.degree[ledger.at(t.where, s)] : 0.0f;
      notes.position[at] = s < n ? ledger.position[ledger.at(t.where, s)] : 0;
    });
  }
};

/// Gives the `n` slots of a sequence that was just opened the degrees and positions of the notes. A track
/// ends before its first slot without an entry; a padded track keeps such slots as empty slots. The lengths
/// depend on data, so the host's mirror keeps `n` as a bound.
template <class Notes> struct adopt : operation {
  Notes notes;
  std::uint32_t tokens;  ///< tokens seen: the next position

  static constexpr char const* name = "adopt";
  static constexpr effect leaves = effect::begun;
  static constexpr bool at_once = true;
  static constexpr bool recordable = false;

  adopt(Notes const& given, std::uint32_t seen) : notes(given), tokens(seen) {}

  std::string problem(ledger_ref const& l, index_list sequences, index_list held) const {
    if (std::string text = no_pages(name, l); !text.empty()) return text;
    if (std::string text = notes.problem(name); !text.empty()) return text;
    if (std::string text = check_calls::is_closed(name, l, sequences[0]); !text.empty()) return text;
    if (held[0] > l.extent.capacity) {
      return refusal(name, "entries", held[0], "at most ", l.extent.capacity, ", the capacity");
    }
    if (std::string text = check_calls::tokens_fit(name, "tokens", tokens, 0); !text.empty()) return text;
    if (l.padded || tokens >= held[0]) return {};
    return refusal(name, "tokens", tokens, "at least ", held[0], ", the entries that the notes may hold");
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t n) const {
    std::uint32_t const there = min_of(n, notes.places.covered(t, n, n));
    std::uint32_t first = n, held = 0;
    team.for_each(n, [&](std::uint32_t s) {
      std::int64_t const at = s < there ? notes.places.at(t, s) : 0;
      float const degree = s < there ? notes.degree[at] : 0.0f;
      bool const holds = degree > 0.0f && is_finite(degree);
      l.degree[l.at(t, s)] = holds ? degree : 0.0f;
      l.position[l.at(t, s)] = s < there ? notes.position[at] : 0;
      if (!holds) first = min_of(first, s);
      held += holds ? 1 : 0;
    });
    first = team.reduce(first, op_min{});
    held = team.reduce(held, op_sum{});
    std::uint32_t const length = l.padded ? n : first;
    if (team.lane() != 0) return;
    l.length[t.index] = length;
    l.word(t, track_word::empty) = l.padded ? n - held : 0;
    l.word(t, track_word::padded_from) = l.padded && held < n ? 1 + first : 0;
  }
  /// Any of these tokens may have merged, so `truncate` cannot go below their number.
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t) const {
    l.seen[sequence] = l.sequence_state(sequence, sequence_word::compressed_at) = tokens;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
