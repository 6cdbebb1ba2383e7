// SPDX-License-Identifier: Apache-2.0
// The operation that copies a sequence: its part of the ledger, and its rows if the engine does not share or
// copy them itself.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/copy_across.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/copy_sequence.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Who provides the rows of a forked sequence behind its frozen entries.
enum class fork_rows : std::uint8_t {
  copy,    ///< kvmeld copies them through the layouts
  shared,  ///< the engine: it shares pages or copies them itself
};

namespace sequences {

/// Copies what the ledger knows about sequence `from` to the new sequence.
struct fork : operation {
  std::uint32_t from;
  std::uint32_t frozen;  ///< number of first entries that both sequences share, frozen in both
  std::uint32_t id;      ///< key of the copy's random draws

  static constexpr char const* name = "fork";
  static constexpr effect leaves = effect::begun;
  static constexpr bool at_once = true;
  static constexpr bool has_counts = false;
  static constexpr bool recordable = false;

  fork(std::uint32_t source, std::uint32_t frozen_entries, std::uint32_t sequence_id)
      : from(source), frozen(frozen_entries), id(sequence_id) {}

  /// Why the fork is refused; empty if it is not. `tensors` tell which rows may be written.
  template <class Keys, class Values>
  std::string problem(ledger_ref const& l, std::uint32_t into, fork_rows how,
                      kv<Keys, Values> const& tensors) const {
    if (std::string text = check_calls::is_open(name, l, {from}); !text.empty()) return text;
    if (std::string text = check_calls::is_closed(name, l, into); !text.empty()) return text;
    if (std::string text = check_calls::nothing_pending(name, l, from); !text.empty()) return text;
    if (std::string text = check_calls::frozen_fits(name, l, from, frozen); !text.empty()) return text;
    if (how == fork_rows::shared) return {};
    if constexpr (!is_always_writable<Keys>::value || !is_always_writable<Values>::value) {
      return check_calls::first_track_problem(l, from, [&](track t) -> std::string {
        track const to = make_track(l.extent, t.layer, into, t.kv_head);
        for (slot_t s = frozen; s < l.length[t.index]; ++s) {
          if (tensors.keys.writable(to, s) && tensors.values.writable(to, s)) continue;
          return refusal(name, message("slot ", s, " of ", check_calls::track_name(to)), "not writable",
                         "writable, because it lies behind frozen = ", frozen,
                         " (or give fork_rows::shared)");
        }
        return {};
      });
    } else {
      (void)tensors;
      return {};
    }
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track to, std::uint32_t) const {
    copy_entries(team, l, source_of(l, to), l, to);
  }
  KVMELD_HD void on_track(ledger_ref const& l, track to, std::uint32_t) const {
    copy_track(l, source_of(l, to), l, to);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t into, std::uint32_t) const {
    copy_state(l, from, l, into);
    l.frozen[into] = frozen;
    l.frozen[from] = max_of(l.frozen[from], frozen);
    l.id[into] = id;
    l.is_open[into] = 1;
  }

private:
  KVMELD_HD track source_of(ledger_ref const& l, track to) const {
    return make_track(l.extent, to.layer, from, to.kv_head);
  }
};

/// Runs before fork. Copies rows `first` .. length - 1 of K or V to each track from the same track of
/// sequence `from`. Skips rows that may not be written.
template <class Layout> struct copy_rows_phase {
  static constexpr std::uint32_t block = 256;  ///< rows per tile
  Layout layout;
  ledger_ref ledger;
  std::uint32_t from, first;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int) const { return scratch_size(layout.channels() * sizeof(float)); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track const source = make_track(ledger.extent, t.where.layer, from, t.where.kv_head);
    std::uint32_t const n = ledger.length[source.index];
    std::uint32_t const begin = max_of(first, t.index * block);
    std::uint32_t const end = min_of(n, (t.index + 1) * block);
    float* const scratch = team.template scratch<float>(layout.channels());
    for (slot_t s = begin; s < end; ++s) {
      if (layout.writable(t.where, s)) copy_row_across(team, layout, t.where, source, s, scratch);
    }
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
