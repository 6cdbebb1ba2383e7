// Finiteness of rows, checked once per new entry and kept as a flag.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/tile_view.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Looks at rows of K or V that were not looked at before and flags those with NaN or infinity.
template <class Layout> struct inspect_phase {
  static constexpr std::uint32_t block = 16;
  static constexpr std::uint32_t rows_per_tile = 1024;
  Layout layout;
  wave_ref wave;
  std::uint8_t checked;  ///< entry_flag::key_checked or value_checked

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, rows_per_tile); }
  std::size_t scratch_bytes(int) const {
    return scratch_size(std::size_t{block} * layout.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = l.length[t.where.index];
    std::uint32_t const first = t.index * rows_per_tile;
    if (first >= n) return;
    std::uint32_t const last = min_of(n, first + rows_per_tile);
    std::uint32_t const d = layout.channels();
    float* const rows = team.template scratch<float>(std::size_t{block} * d);
    std::uint8_t* const flags = l.flags + l.at(t.where, 0);
    for (std::uint32_t s = first; s < last; s += block) {
      std::uint32_t const count = min_of(block, last - s);
      std::uint32_t fresh = 0;
      for (std::uint32_t i = 0; i < count; ++i) fresh += (flags[s + i] & checked) == 0 ? 1u : 0u;
      if (fresh == 0) continue;  // the same for every lane: flags change only behind the barrier below
      auto const note = [&](std::uint32_t i, bool good) {
        flags[s + i] = static_cast<std::uint8_t>(flags[s + i] | checked | (good ? 0 : entry_flag::nonfinite));
      };
      if constexpr (has_kernels<Team>::value) {
        if (auto const* const tuned = team.kernels()) {
          with_tile(*tuned, team, layout, t.where, s, count, rows, [&](auto const& x) {
            // Nearly always all of them are.
            bool const all = x.ld == d && tuned->all_finite(x.rows, count * d);
            for (std::uint32_t i = 0; i < count; ++i) {
              if ((flags[s + i] & checked) == 0) note(i, all || tuned->all_finite(x.rows + i * x.ld, d));
            }
          });
          continue;
        }
      }
      layout.load_tile(team, t.where, s, count, 0, d, rows, d);
      team.sync();
      team.for_each(count, [&](std::uint32_t i) {
        if ((flags[s + i] & checked) != 0) return;
        std::uint32_t bad = 0;
        for (std::uint32_t c = 0; c < d; ++c) bad |= is_finite(rows[std::size_t{i} * d + c]) ? 0u : 1u;
        note(i, bad == 0);
      });
      team.sync();
    }
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
