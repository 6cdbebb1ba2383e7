// SPDX-License-Identifier: Apache-2.0
// Reads the rows of several tracks as one long row, to compare entries over all heads that share a plan.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Row s is row s of the leader's track, followed by row s of the `count - 1` tracks after it, in the order
/// (layer, head). All tracks belong to one sequence. Read only. With a count of 1 it reads like `layout`.
template <class Layout> struct joined_rows {
  using element_type = typename Layout::element_type;
  Layout layout;
  std::uint32_t kv_heads;  ///< KV heads of the cache
  std::uint32_t sequences;
  std::uint32_t count;

  KVMELD_HD std::uint32_t channels() const { return layout.channels() * count; }

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track leader, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    if (count == 1) return layout.load_tile(team, leader, first, tokens, channel, channels, out, ld);
    std::uint32_t const d = layout.channels();
    for (std::uint32_t done = 0; done < channels;) {
      std::uint32_t const at = (channel + done) % d;
      std::uint32_t const part = min_of(channels - done, d - at);
      track const t = follower(leader, (channel + done) / d);
      layout.load_tile(team, t, first, tokens, at, part, out + done, ld);
      done += part;
    }
  }

  /// The n-th of the joined tracks.
  KVMELD_HD track follower(track leader, std::uint32_t n) const {
    std::uint32_t const head = leader.kv_head + n;
    std::uint32_t const layer = leader.layer + head / kv_heads;
    std::uint32_t const h = head % kv_heads;
    return {(layer * sequences + leader.sequence) * kv_heads + h, layer, leader.sequence, h};
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
