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
  static constexpr bool needs_attention = true;
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::accumulated_attention, channel_rule::sum, 0.0f});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  template <class Team>
  KVMELD_HD void evaluate(Team const& team, ledger_ref const& ledger, track where, std::uint32_t length,
                          float* out) const {
    float const* const sum = ledger.channel_data[0] + ledger.at(where, 0);
    team.for_each(length, [&](std::uint32_t s) { out[s] = sum[s]; });
    team.sync();
  }
  template <class Team>
  KVMELD_HD void evaluate_members(Team const& team, ledger_ref const& ledger, track where, std::uint32_t,
                                  float* out) const {
    team.for_each(ledger.members.count[where.index], [&](std::uint32_t m) {
      out[m] = ledger.members.channel_data[0][ledger.member_at(where, m)];
    });
    team.sync();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
