// Moves kept entries to the front of their track: in place, in ascending order.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/columns.hpp>
#include <kvmeld/exec/stored_rows.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/gather_row.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Writes the new slots of kept entries, and the track's old and new length, into the plan.
struct new_slots_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    fate const* const fates = wave.plan.fates + wave.plan.at(t.item, 0);
    slot_t* const new_slot = wave.plan.new_slot + wave.plan.at(t.item, 0);
    std::uint32_t const kept = compact_indices(
        team, n, [=](std::uint32_t s) { return fates[s] == fate::keep; },
        [=](std::uint32_t rank, std::uint32_t s) { new_slot[s] = rank; });
    if (team.lane() == 0) {
      wave.plan.old_length[t.item] = n;
      wave.plan.new_length[t.item] = kept;
    }
  }
};

/// First slot that is not kept; n if all are kept. Entries before it do not move.
KVMELD_HD inline slot_t first_move(plan_ref const& plan, std::uint32_t item, std::uint32_t n) {
  slot_t s = 0;
  while (s < n && plan.fates[plan.at(item, s)] == fate::keep) ++s;
  return s;
}

/// Whether rows are moved past the caches, so that lines need not be read before they are written: where all
/// tracks of the call would not stay in a cache for the attention that follows. Counts every track of the
/// call with as many rows as this one; tracks within their budget move none.
KVMELD_HD constexpr bool outgrow_caches(std::uint32_t rows, std::size_t row_bytes, std::uint32_t tracks) {
  constexpr std::uint64_t worth_streaming = std::uint64_t{8} << 20;
  return std::uint64_t{rows} * row_bytes * tracks >= worth_streaming;
}

/// Calls use(slots, count) for the slots of [begin, n) that are kept, a stretch of them at a time, in
/// ascending order. One lane. Hardly a branch depends on the fates, and what `use` does costs nothing for
/// evicted slots.
template <class Use> void each_stretch_of_kept(fate const* what, slot_t begin, slot_t n, Use use) {
  constexpr std::uint32_t stretch = 256;
  slot_t kept[stretch];
  while (begin < n) {
    slot_t const end = begin + min_of(stretch, n - begin);
    std::uint32_t count = 0;
    for (; begin < end; ++begin) {
      kept[count] = begin;
      count += what[begin] == fate::keep ? 1u : 0u;
    }
    use(static_cast<slot_t const*>(kept), count);
  }
}

/// Moves kept rows of K or V as raw bits. If `zero` is set, emptied rows become zeros.
template <class Layout> struct compact_rows_phase {
  static constexpr std::uint32_t channel_slice = 16;
  static constexpr std::uint32_t window = 4096;  ///< slots that teams of several lanes look through at a time
  static constexpr int min_blocks = 4;  ///< blocks per multiprocessor; each waits for memory between barriers
  Layout layout;
  wave_ref wave;
  bool zero;
  std::uint32_t slice = 0;  ///< pieces of a row that a tile of several lanes moves; 0: all

  std::uint32_t tiles(shape const&) const {
    if constexpr (has_row_pieces<Layout>::value) {
      if (slice != 0) return ceil_div(row_pieces<Layout>::count_of(layout.channels()), slice);
    }
    return runs_along_tokens<Layout> ? ceil_div(layout.channels(), channel_slice) : 1;
  }
  std::size_t scratch_bytes(int lanes) const {
    return shares_pieces<Layout>(static_cast<std::uint32_t>(lanes)) ? scratch_size(window * sizeof(slot_t))
                                                                    : 0;
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    std::uint32_t const n = plan.old_length[t.item];
    std::uint32_t const kept = plan.new_length[t.item];
    if (kept == n) return;
    if constexpr (has_row_pieces<Layout>::value) {
      if (shares_pieces<Layout>(team.lanes())) return move_pieces(team, t, kept, n);
    }
    slot_t const begin = first_move(plan, t.item, n);
    std::size_t const base = plan.at(t.item, 0);
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
          return pack_columns(team, plan.fates + base, begin, kept, n, column(0), s.channel_stride, channels);
        }
      }
      // The outer loop goes over runs of kept slots, the inner one over channels. A lane always has the same
      // channels, so runs need no barrier.
      for (slot_t from = begin; from < n;) {
        if (plan.fates[base + from] != fate::keep) {
          ++from;
          continue;
        }
        std::uint32_t run = 1;
        while (from + run < n && plan.fates[base + from + run] == fate::keep) ++run;
        slot_t const to = plan.new_slot[base + from];
        team.for_each(channels, [&](std::uint32_t i) {
          T* const x = column(i);
          for (std::uint32_t r = 0; r < run; ++r) x[to + r] = x[from + r];
        });
        from += run;
      }
      if (!zero) return;
      team.for_each(channels, [&](std::uint32_t i) {
        T* const x = column(i);
        for (slot_t to = kept; to < n; ++to) x[to] = element_traits<T>::from_float(0.0f);
      });
    } else {
      bool const past_caches = streams(team, kept - begin);
      fate const* const fates = plan.fates + base;
      if (!move_listed(team, t.where, fates, begin, n, past_caches)) {
        for (slot_t from = begin; from < n; ++from) {
          if (fates[from] != fate::keep) continue;
          move_row(team, t.where, plan.new_slot[base + from], from, past_caches);
        }
      }
      if constexpr (has_row_kernels<Team, Layout>::value) {
        if (past_caches) finish_streams(team);
      }
      if (!zero) return;
      team.sync();
      clear_rows(team, t.where, kept, n);
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

  template <class Team>
  KVMELD_HD void move_row(Team const& team, track where, slot_t to, slot_t from,
                          [[maybe_unused]] bool past_caches) const {
    if constexpr (has_row_kernels<Team, Layout>::value) {
      if (past_caches) {
        auto const target = layout.locate(where, to);
        auto const source = layout.locate(where, from);
        if (target.channel_stride == 1 && source.channel_stride == 1) {
          return stream_row(team, target.base, source.base, row_bytes());
        }
      }
    }
    layout.copy_row(team, where, to, from);
  }

  /// Moves the kept rows of slots [begin, n), where the team has tuned forms: the next rows are prefetched.
  /// Returns whether it has.
  template <class Team>
  KVMELD_HD bool move_listed([[maybe_unused]] Team const& team, [[maybe_unused]] track where,
                             [[maybe_unused]] fate const* fates, [[maybe_unused]] slot_t begin,
                             [[maybe_unused]] slot_t n, [[maybe_unused]] bool past_caches) const {
    if constexpr (may_be_tuned<Team>) {
      if (!is_tuned(team)) return false;
      constexpr std::uint32_t ahead = 4;
      slot_t to = begin;
      each_stretch_of_kept(fates, begin, n, [&](slot_t const* from, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) {
          if (i + ahead < count) prefetch_row(team, layout, where, from[i + ahead]);
          move_row(team, where, to++, from[i], past_caches);
        }
      });
      return true;
    }
    return false;
  }

  /// Zeroes the rows of slots [begin, end). Cooperative.
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
  KVMELD_HD void move_pieces(Team const& team, tile const& t, std::uint32_t kept, std::uint32_t n) const {
    using piece = typename row_pieces<Layout>::piece;
    row_pieces<Layout> const rows(layout, t.where);
    std::uint32_t const first_piece = slice * t.index;
    std::uint32_t const pieces = slice == 0 ? rows.count() : min_of(slice, rows.count() - first_piece);
    fate const* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    slot_t* const from = team.template scratch<slot_t>(window);
    piece_share const mine(team, pieces);
    slot_t to = 0;
    for (slot_t first = 0; first < n; first += window) {
      std::uint32_t const slots = min_of(window, n - first);
      std::uint32_t const found = compact_indices(
          team, slots, [&](std::uint32_t i) { return what[first + i] == fate::keep; },
          [&](std::uint32_t rank, std::uint32_t i) { from[rank] = first + i; });
      bool const moves = to != first || found != slots;  // false: all rows lie where they belong
      std::uint32_t const total = moves ? found : 0;
      for (std::uint32_t batch = 0; batch < total; batch += mine.rows * pieces_in_flight) {
        for (std::uint32_t p = 0; p < pieces; p += mine.width) {
          bool const has = mine.has_row() && p + mine.piece < pieces;
          std::uint32_t const number = first_piece + p + mine.piece;
          piece held[pieces_in_flight];
          for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
            std::uint32_t const i = batch + j * mine.rows + mine.row;
            if (has && i < total) held[j] = rows.read(from[i], number);
          }
          team.sync();
          for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
            std::uint32_t const i = batch + j * mine.rows + mine.row;
            if (has && i < total) rows.write(to + i, number, held[j]);
          }
        }
      }
      team.sync();  // the next window overwrites the list
      to += found;
    }
    if (!zero) return;
    piece nothing;
    for (auto& x : nothing.x) x = element_traits<typename Layout::element_type>::from_float(0.0f);
    for (std::uint32_t p = mine.piece; mine.has_row() && p < pieces; p += mine.width) {
      for (slot_t s = kept + mine.row; s < n; s += mine.rows) rows.write(s, first_piece + p, nothing);
    }
  }

  /// Packs columns one by one, in stretches of slots. Fates become bits once per stretch, for all columns.
  template <class Team, class T>
  void pack_columns(Team const& team, fate const* what, slot_t begin, slot_t kept, slot_t n, T* columns,
                    std::int64_t stride, std::uint32_t count) const {
    constexpr std::uint32_t stretch = 4096;
    std::uint64_t bits[stretch / 64];
    slot_t to = begin;
    for (slot_t from = begin; from < n; from += stretch) {
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
      for (slot_t s = kept; s < n; ++s) x[s] = element_traits<T>::from_float(0.0f);
    }
  }
};

/// Moves the entries of the ledger's arrays, renumbers owners of members, removes members of dropped owners,
/// and sets the new length.
struct compact_ledger_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = plan.old_length[t.item];
    std::uint32_t const kept = plan.new_length[t.item];
    if (kept != n) {
      slot_t const begin = team.lanes() == 1 ? first_move(plan, t.item, n) : 0;
      if (!move_listed(team, t, begin, n)) each_array([&](auto* array) { move(team, t, begin, n, array); });
      team.for_each(n - kept, [&](std::uint32_t i) { l.degree[l.at(t.where, kept + i)] = 0.0f; });
    }
    if (l.members.capacity != 0) move_members(team, t);
    team.sync();
    if (team.lane() == 0) {
      l.length[t.where.index] = kept;
      l.word(t.where, track_word::changed) = kept != n ? 1 : 0;
    }
  }

private:
  /// Calls use(array) for every array that has an element per entry.
  template <class Use> KVMELD_HD void each_array(Use use) const {
    ledger_ref const& l = wave.ledger;
    use(l.degree);
    use(l.position);
    use(l.flags);
    for (std::uint32_t c = 0; c < l.channels.count; ++c) use(l.channel_data[c]);
    if (l.members.capacity != 0) use(l.members.own_norm);
  }

  /// Moves the kept elements of all arrays from `begin` on, where the team has tuned forms. Returns whether
  /// it has.
  template <class Team>
  KVMELD_HD bool move_listed([[maybe_unused]] Team const& team, [[maybe_unused]] tile const& t,
                             [[maybe_unused]] slot_t begin, [[maybe_unused]] std::uint32_t n) const {
    if constexpr (may_be_tuned<Team>) {
      if (!is_tuned(team)) return false;
      std::size_t const first = wave.ledger.at(t.where, 0);
      slot_t to = begin;
      each_stretch_of_kept(wave.plan.fates + wave.plan.at(t.item, 0), begin, n,
                           [&](slot_t const* from, std::uint32_t count) {
                             each_array([&](auto* array) {
                               auto* const x = array + first;
                               for (std::uint32_t i = 0; i < count; ++i) x[to + i] = x[from[i]];
                             });
                             to += count;
                           });
      return true;
    }
    return false;
  }

  /// Moves the kept elements of one array, from `begin` on. Several lanes read a batch before any of them
  /// writes it. A new slot is never above its old slot. Cooperative; barrier at the end.
  template <class Team, class T>
  KVMELD_HD void move(Team const& team, tile const& t, slot_t begin, std::uint32_t n, T* array) const {
    constexpr std::uint32_t at_once = 4;
    plan_ref const& plan = wave.plan;
    T* const x = array + wave.ledger.at(t.where, 0);
    fate const* const what = plan.fates + plan.at(t.item, 0);
    slot_t const* const to = plan.new_slot + plan.at(t.item, 0);
    if (team.lanes() == 1) {
      // What goes is overwritten by what stays; a branch would cost more.
      std::uint32_t const kept = plan.new_length[t.item];
      slot_t next = begin;
      for (slot_t s = begin; next < kept; ++s) {
        x[next] = x[s];
        next += what[s] == fate::keep ? 1u : 0u;
      }
      return;
    }
    for (slot_t first = begin; first < n; first += at_once * team.lanes()) {
      T held[at_once] = {};  // compilers do not see that only elements that were read are written
      for (std::uint32_t j = 0; j < at_once; ++j) {
        slot_t const s = first + j * team.lanes() + team.lane();
        if (s < n) held[j] = x[s];
      }
      team.sync();
      for (std::uint32_t j = 0; j < at_once; ++j) {
        slot_t const s = first + j * team.lanes() + team.lane();
        if (s < n && what[s] == fate::keep) x[to[s]] = held[j];
      }
    }
    team.sync();
  }

  /// Moves members of kept owners, as many at a time as there are lanes. Cooperative; barrier at the end.
  template <class Team> KVMELD_HD void move_members(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    member_ref const& m = wave.ledger.members;
    std::uint32_t const count = m.count[t.where.index];
    std::size_t const base = wave.ledger.member_at(t.where, 0);
    std::uint32_t kept = 0;
    for (std::uint32_t first = 0; first < count; first += team.lanes()) {
      std::uint32_t const i = first + team.lane();
      std::size_t const owner = i < count ? plan.at(t.item, m.owner[base + i]) : 0;
      bool const stays = i < count && plan.fates[owner] == fate::keep;
      scan_result const places = team.scan(stays ? 1u : 0u);
      std::size_t const from = base + i, to = base + kept + places.before;
      auto const shift = [&](auto* array) {
        auto held = array[base];
        if (stays) held = array[from];
        team.sync();
        if (stays) array[to] = held;
      };
      shift(m.norm);
      shift(m.position);
      for (std::uint32_t c = 0; c < wave.ledger.channels.count; ++c) shift(m.channel_data[c]);
      team.sync();
      if (stays) m.owner[to] = plan.new_slot[owner];
      kept += places.total;
    }
    team.sync();
    if (team.lane() == 0) m.count[t.where.index] = kept;
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
