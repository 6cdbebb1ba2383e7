// SPDX-License-Identifier: Apache-2.0
// Moves kept entries to the front of their track: in place, in ascending order.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/fields.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/columns.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/stored_rows.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/gather_row.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/shared/move_members.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Lists the entries that stay in wave.live, and writes their new slots and the track's old and new length
/// into the plan.
struct new_slots_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    fate const* const fates = wave.plan.fates + wave.plan.at(t.item, 0);
    slot_t* const new_slot = wave.plan.new_slot + wave.plan.at(t.item, 0);
    slot_t* const kept = wave.live + wave.at(t.item, 0);
    std::uint32_t const count = compact_indices(
        team, n, [=](std::uint32_t s) { return fates[s] == fate::keep; },
        [=](std::uint32_t rank, std::uint32_t s) {
          new_slot[s] = rank;
          kept[rank] = s;
        });
    if (team.lane() == 0) {
      wave.plan.old_length[t.item] = n;
      wave.plan.new_length[t.item] = count;
    }
  }
};

/// The entries of a track that stay: entry from(i) goes to slot i. The first of them stay where they are.
struct kept_entries {
  slot_t const* slots;  ///< ascending, as new_slots_phase lists them
  std::uint32_t count, first_move;

  KVMELD_HD kept_entries(wave_ref const& wave, std::uint32_t item)
      : slots(wave.live + wave.at(item, 0)), count(wave.plan.new_length[item]), first_move(0) {
    std::uint32_t end = count;  // of the entries among which the first that moves may be
    while (first_move < end) {
      std::uint32_t const middle = (first_move + end) / 2;
      if (slots[middle] == middle) {
        first_move = middle + 1;
      } else {
        end = middle;
      }
    }
  }
  KVMELD_HD slot_t from(std::uint32_t i) const { return slots[i]; }
  /// Whether entries [i, i + n) are neighbours.
  KVMELD_HD bool adjoin(std::uint32_t i, std::uint32_t n) const {
    return i + n <= count && slots[i + n - 1] - slots[i] == n - 1;
  }
};

/// Whether rows are moved past the caches, so that lines need not be read before they are written: where all
/// tracks of the call would not stay in a cache for the attention that follows. Counts every track of the
/// call with as many rows as this one; tracks within their budget move none.
KVMELD_HD constexpr bool outgrow_caches(std::uint32_t rows, std::size_t row_bytes, std::uint32_t tracks) {
  constexpr std::uint64_t worth_streaming = std::uint64_t{8} << 20;
  return std::uint64_t{rows} * row_bytes * tracks >= worth_streaming;
}

/// Moves kept rows of K or V as raw bits. If `zero` is set, emptied rows become zeros.
template <class Layout> struct compact_rows_phase {
  static constexpr std::uint32_t channel_slice = 16;
  static constexpr bool spans_blocks = true;
  static constexpr int min_blocks = 4;  ///< blocks per multiprocessor; each waits for memory between barriers
  Layout layout;
  wave_ref wave;
  bool zero;
  std::uint32_t slice = 0;  ///< pieces of a row that a tile of several lanes moves; 0: all

  std::uint32_t tiles(shape const&) const {
    if (runs_along_tokens<Layout>) return ceil_div(layout.channels(), channel_slice);
    return tiles_of_slices(layout, slice);
  }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    std::uint32_t const n = plan.old_length[t.item];
    if (plan.new_length[t.item] == n) return;
    kept_entries const kept(wave, t.item);
    if constexpr (has_row_pieces<Layout>::value) {
      if (shares_pieces<Layout>(team.lanes())) return move_pieces(team, t, kept, n);
    }
    if constexpr (runs_along_tokens<Layout>) {
      using T = typename Layout::element_type;
      segment<T> const s = layout.locate(t.where, 0);
      std::uint32_t const first = t.index * channel_slice;
      std::uint32_t const channels = min_of(channel_slice, layout.channels() - first);
      auto const column = [&](std::uint32_t i) {
        return s.base + std::int64_t{first + i} * s.channel_stride;
      };
      if constexpr (may_be_tuned<Team>) {  // whole columns, where packing is vectorised
        if (is_tuned(team)) {
          return pack_columns(team, plan.fates + plan.at(t.item, 0), kept, n, column(0), s.channel_stride,
                              channels);
        }
      }
      // The outer loop goes over runs of kept slots, the inner one over channels. A lane always has the same
      // channels, so runs need no barrier.
      for (slot_t to = kept.first_move; to < kept.count;) {
        slot_t const from = kept.from(to);
        std::uint32_t run = 1;
        while (kept.adjoin(to, run + 1)) ++run;
        team.for_each(channels, [&](std::uint32_t i) {
          T* const x = column(i);
          for (std::uint32_t r = 0; r < run; ++r) x[to + r] = x[from + r];
        });
        to += run;
      }
      if (!zero) return;
      team.for_each(channels, [&](std::uint32_t i) {
        T* const x = column(i);
        for (slot_t to = kept.count; to < n; ++to) x[to] = element_traits<T>::from_float(0.0f);
      });
    } else {
      bool const past_caches = streams(team, kept.count - kept.first_move);
      move_rows(team, t.where, kept, past_caches);
      if constexpr (has_row_kernels<Team, Layout>::value) {
        if (past_caches) finish_streams(team);
      }
      if (!zero) return;
      team.sync();
      clear_rows(team, t.where, kept.count, n);
    }
  }

private:
  KVMELD_HD std::size_t row_bytes() const {
    return layout.channels() * sizeof(typename Layout::element_type);
  }

  template <class Team> KVMELD_HD bool streams(Team const& team, std::uint32_t rows) const {
    if constexpr (has_row_kernels<Team, Layout>::value) {
      return team.lanes() == 1 && outgrow_caches(rows, row_bytes(), wave.work.tracks(wave.ledger.extent));
    } else {
      return false;
    }
  }

  /// Moves the rows that stay: neighbours together, and the next of the others prefetched.
  template <class Team>
  KVMELD_HD void move_rows(Team const& team, track where, kept_entries const& kept, bool past_caches) const {
    constexpr std::uint32_t together = 16, ahead = 4;
    for (slot_t to = kept.first_move; to < kept.count;) {
      std::uint32_t run = min_of(together, kept.count - to);
      if (kept.adjoin(to, run)) {
        while (kept.adjoin(to, run + together)) run += together;
        move_run(team, where, to, kept.from(to), run, past_caches);
        to += run;
        continue;
      }
      for (std::uint32_t const end = to + run; to < end; ++to) {
        if constexpr (may_be_tuned<Team>) {
          if (to + ahead < kept.count) prefetch_row(team, layout, where, kept.from(to + ahead));
        }
        move_run(team, where, to, kept.from(to), 1, past_caches);
      }
    }
  }

  /// Moves rows [from, from + rows) to slots [to, to + rows), to < from. One lane moves rows that lie
  /// together at once.
  template <class Team>
  KVMELD_HD void move_run(Team const& team, track where, slot_t to, slot_t from, std::uint32_t rows,
                          [[maybe_unused]] bool past_caches) const {
    for (std::uint32_t run = 1; rows != 0; to += run, from += run, rows -= run, run = 1) {
      if constexpr (has_row_kernels<Team, Layout>::value) {
        auto const target = layout.locate(where, to);
        auto const source = layout.locate(where, from);
        if (team.lanes() == 1 && target.channel_stride == 1 && source.channel_stride == 1) {
          std::int64_t const d = layout.channels();
          if (target.token_stride == d && source.token_stride == d)
            run = min_of(min_of(rows, from - to), min_of(target.remaining, source.remaining));
          if (past_caches) {
            stream_row(team, target.base, source.base, run * row_bytes());
          } else {
            std::memcpy(target.base, source.base, run * row_bytes());
          }
          continue;
        }
      }
      layout.copy_row(team, where, to, from);
    }
  }

  /// Zeroes the rows of slots [begin, end). Collective.
  template <class Team>
  KVMELD_HD void clear_rows(Team const& team, track where, slot_t begin, slot_t end) const {
    while (begin < end) {
      if constexpr (has_row_kernels<Team, Layout>::value) {
        auto const s = layout.locate(where, begin);
        if (team.lanes() == 1 && s.channel_stride == 1) {
          std::uint32_t const run = min_of(end - begin, s.remaining);
          kvmeld::clear_rows(team, s.base, s.token_stride * std::int64_t{sizeof(*s.base)}, run, row_bytes());
          begin += run;
          continue;
        }
      }
      layout.encode_row(team, where, begin, [](std::uint32_t) { return 0.0f; });
      ++begin;
    }
  }

  /// Moves kept rows in batches of pieces. All lanes read a batch before any lane writes it. No later batch
  /// reads what was written, because the k-th kept row lies in slot k or behind it.
  template <class Team>
  KVMELD_HD void move_pieces(Team const& team, tile const& t, kept_entries const& kept,
                             std::uint32_t n) const {
    using piece = typename row_pieces<Layout>::piece;
    row_pieces<Layout> const rows(layout, t.where);
    std::uint32_t const first_piece = slice * t.index;
    std::uint32_t const pieces = slice == 0 ? rows.count() : min_of(slice, rows.count() - first_piece);
    piece_share const mine(team, pieces);
    for (slot_t batch = kept.first_move; batch < kept.count; batch += mine.rows * pieces_in_flight) {
      for (std::uint32_t p = 0; p < pieces; p += mine.width) {
        bool const has = mine.has_row() && p + mine.piece < pieces;
        std::uint32_t const number = first_piece + p + mine.piece;
        piece held[pieces_in_flight];
        for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
          slot_t const to = batch + j * mine.rows + mine.row;
          if (has && to < kept.count) held[j] = rows.read(kept.from(to), number);
        }
        team.sync();
        for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
          slot_t const to = batch + j * mine.rows + mine.row;
          if (has && to < kept.count) rows.write(to, number, held[j]);
        }
      }
    }
    if (!zero) return;
    piece nothing;
    for (auto& x : nothing.x) x = element_traits<typename Layout::element_type>::from_float(0.0f);
    for (std::uint32_t p = mine.piece; mine.has_row() && p < pieces; p += mine.width) {
      for (slot_t s = kept.count + mine.row; s < n; s += mine.rows) rows.write(s, first_piece + p, nothing);
    }
  }

  /// Packs columns one by one, in stretches of slots. Fates become bits once per stretch, for all columns.
  template <class Team, class T>
  void pack_columns(Team const& team, fate const* what, kept_entries const& kept, slot_t n, T* columns,
                    std::int64_t stride, std::uint32_t count) const {
    constexpr std::uint32_t stretch = 4096;
    std::uint64_t bits[stretch / 64];
    slot_t to = kept.first_move;
    for (slot_t from = kept.first_move; from < n; from += stretch) {
      std::uint32_t const slots = min_of(stretch, n - from);
      std::uint32_t moved = 0;
      for (std::uint32_t i = 0; i < slots; i += 64) {
        std::uint64_t word = 0;
        for (std::uint32_t j = 0; j < min_of(64u, slots - i); ++j) {
          word |= std::uint64_t{what[from + i + j] == fate::keep} << j;
        }
        bits[i / 64] = word;
      }
      for (std::uint32_t i = 0; i < slots; ++i) moved += what[from + i] == fate::keep ? 1 : 0;
      for (std::uint32_t c = 0; c < count; ++c) {
        T* const x = columns + std::int64_t{c} * stride;
        pack_elements(team, x + to, x + from, bits, slots);
      }
      to += moved;
    }
    for (std::uint32_t c = 0; c < count && zero; ++c) {
      T* const x = columns + std::int64_t{c} * stride;
      for (slot_t s = kept.count; s < n; ++s) x[s] = element_traits<T>::from_float(0.0f);
    }
  }
};

/// Moves the entries of the ledger's arrays, and their members, and sets the new length.
struct compact_ledger_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = plan.old_length[t.item];
    std::uint32_t const kept = plan.new_length[t.item];
    if (kept != n) {
      kept_entries const entries(wave, t.item);
      entry_indices const at = l.from(t.where);
      for_each_field(
          [&](field_of what, std::uint32_t, auto* x) {
            if (what == field_of::entry) move(team, entries, at, x);
          },
          l);
    }
    compact_members(team, wave, t);
    team.sync();
    if (team.lane() == 0) {
      l.length[t.where.index] = kept;
      l.word(t.where, track_word::changed) = kept != n ? 1 : 0;
    }
  }

private:
  /// Moves the elements of one array. Several lanes read a batch before any of them writes it, and no later
  /// batch reads what was written. Collective.
  template <class Team, class T>
  KVMELD_HD void move(Team const& team, kept_entries const& kept, entry_indices const& at, T* x) const {
    if (team.lanes() == 1) {
      for (slot_t to = kept.first_move; to < kept.count; ++to) x[at(to)] = x[at(kept.from(to))];
      return;
    }
    constexpr std::uint32_t at_once = 4;
    std::uint32_t const lanes = team.lanes();
    for (slot_t first = kept.first_move; first < kept.count; first += at_once * lanes) {
      T held[at_once] = {};  // compilers do not see that only elements that were read are written
      for (std::uint32_t j = 0; j < at_once; ++j) {
        slot_t const to = first + j * lanes + team.lane();
        if (to < kept.count) held[j] = x[at(kept.from(to))];
      }
      team.sync();
      for (std::uint32_t j = 0; j < at_once; ++j) {
        slot_t const to = first + j * lanes + team.lane();
        if (to < kept.count) x[at(to)] = held[j];
      }
    }
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
