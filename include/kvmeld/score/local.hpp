// Local-window attention: how much the most recent queries looked at an entry (SnapKV; EMS section 4.1).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/pooling.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Attention of the last `window` queries: summed, averaged over the query heads of a KV head, and pooled
/// over the entries before the window. A block of at least `window` rows replaces the window exactly. Shorter
/// blocks (decode) fill a second half, which becomes the past when it is full. So the effective window is
/// `window` to 2 `window` - 1 rows.
struct local {
  std::uint32_t window = 32;  ///< queries that count
  kvmeld::pooling pooling{};  ///< pooling of the scores, along the slots

  static constexpr char const* name = "local";
  static constexpr bool light = true;
  static constexpr bool needs_attention = true;
  /// The last queries before a compression.
  static constexpr observation observes = observation::prefill_window;
  static constexpr std::uint32_t past = 0, current = 1;  ///< channels: the last window, the current one
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::window_past, channel_rule::sum, 0.0f});
    c.add({channel_tag::window_current, channel_rule::sum, 0.0f});
    return c;
  }

  /// Number of queries of a call that count.
  std::uint32_t observed_rows() const { return window; }
  KVMELD_HD channel_update update(std::uint32_t channel, std::uint32_t filled, std::uint32_t rows) const {
    if (rows >= window) {  // the block alone is the window
      return channel == past ? channel_update{-1, rows} : channel_update{-1, rows - window};
    }
    if (filled + rows > window) {  // the current half is full: it becomes the past
      return channel == past ? channel_update{current, rows} : channel_update{-1, 0};
    }
    if (filled + rows == window) {  // the current half alone is the window
      return channel == past ? channel_update{-1, rows} : channel_update{current, 0};
    }
    return channel == past ? channel_update{past, rows} : channel_update{current, 0};
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t rows) const {
    if (rows >= window) return window;
    return filled + rows > window ? rows : filled + rows;
  }

  template <class Team>
  KVMELD_HD void evaluate(Team const& team, ledger_ref const& ledger, track where, std::uint32_t length,
                          float* out) const {
    float const* const a = ledger.channel_data[past] + ledger.at(where, 0);
    float const* const b = ledger.channel_data[current] + ledger.at(where, 0);
    auto const raw = [&](std::uint32_t s) { return a[s] + b[s]; };
    std::uint32_t const before = length > window ? length - window : 0;
    team.for_each(length,
                  [&](std::uint32_t s) { out[s] = s < before ? pooling.at(s, before, raw) : raw(s); });
    team.sync();
  }

  /// Members have no neighbours to pool with.
  template <class Team>
  KVMELD_HD void evaluate_members(Team const& team, ledger_ref const& ledger, track where, std::uint32_t,
                                  float* out) const {
    team.for_each(ledger.members.count[where.index], [&](std::uint32_t m) {
      std::size_t const i = ledger.member_at(where, m);
      out[m] = ledger.members.channel_data[past][i] + ledger.members.channel_data[current][i];
    });
    team.sync();
  }

  std::string problem() const {
    if (window == 0) return refusal("policy", "score::local.window", 0, "at least 1");
    return pooling.problem();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
