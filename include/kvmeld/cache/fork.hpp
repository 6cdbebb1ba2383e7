// One sequence becomes two: the ledger is copied, and rows where the engine does not share or copy them itself.
#pragma once

#include <kvmeld/cache/fields.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/copy_across.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Who sees to the rows of a forked sequence behind its frozen beginning.
enum class fork_rows : std::uint8_t {
  copy,    ///< kvmeld copies them through the layouts
  shared,  ///< the engine: it shares pages or copies them itself
};

/// Copies what the ledger knows about a track, and about its sequence, to the same track of sequence `into`.
struct fork_phase {
  ledger_ref ledger;
  std::uint32_t into, frozen, id;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = ledger;
    track const to = make_track(l.extent, t.where.layer, into, t.where.kv_head);
    bool const leads = t.where.layer == 0 && t.where.kv_head == 0;
    std::uint32_t const n = l.length[t.where.index];
    field_list const fields = fields_of(l);
    for (std::uint32_t f = 0; f < fields.count; ++f) {
      field const& x = fields.at[f];
      if (x.what == field_of::sequence && !leads) continue;
      std::byte* const target = part_of_field(l, x, to);
      std::byte const* const source = part_of_field(l, x, t.where);
      team.for_each(static_cast<std::uint32_t>(bytes_of_part(l, x, t.where) / x.bytes), [&](std::uint32_t i) {
        std::memcpy(target + std::size_t{i} * x.bytes, source + std::size_t{i} * x.bytes, x.bytes);
      });
    }
    team.for_each(l.extent.capacity - n, [&](std::uint32_t i) { l.degree[l.at(to, n + i)] = 0.0f; });
    team.sync();
    if (!leads || team.lane() != 0) return;
    l.frozen[into] = frozen;
    l.id[into] = id;
    l.is_open[into] = 1;
    l.frozen[t.where.sequence] = max_of(l.frozen[t.where.sequence], frozen);
  }
};

/// Copies rows `first` .. length - 1 of K or V of a track to the same track of sequence `into`, where they may be written.
template <class Layout> struct fork_rows_phase {
  static constexpr std::uint32_t block = 256;  ///< rows per tile
  Layout layout;
  ledger_ref ledger;
  std::uint32_t into, first;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int) const { return scratch_size(layout.channels() * sizeof(float)); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index];
    std::uint32_t const begin = max_of(first, t.index * block);
    std::uint32_t const end = min_of(n, (t.index + 1) * block);
    track const to = make_track(ledger.extent, t.where.layer, into, t.where.kv_head);
    float* const scratch = team.template scratch<float>(layout.channels());
    for (slot_t s = begin; s < end; ++s) {
      if (layout.writable(to, s)) copy_row_across(team, layout, to, t.where, s, scratch);
    }
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
