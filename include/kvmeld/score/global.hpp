// Accumulated attention: how much all queries so far looked at an entry (H2O; KVMerger section 4.1).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Column sums of the attention probabilities over all observed queries, averaged over the query heads of a
/// KV head. It has one channel. When entries merge, their sums add, since the result stands for all of them.
struct global {
  static constexpr char const* name = "global";
  static constexpr bool light = true;
  static constexpr score_kind gives = score_kind::weights;
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::accumulated_attention, channel_rule::sum, 0.0f});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const { return view.channel(0, i); }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
