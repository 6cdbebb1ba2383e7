// SPDX-License-Identifier: Apache-2.0
// Local-window attention: how much the most recent queries looked at an entry (SnapKV; EMS section 4.1).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/kept_facts.hpp>
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
  static constexpr score_facts facts{score_kind::weights, observation::prefill_window, &score_facts::light};
  static constexpr std::uint32_t past = 0, current = 1;  ///< channels: the last window, the current one
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::window_past, channel_rule::sum, 0.0f});
    c.add({channel_tag::window_current, channel_rule::sum, 0.0f});
    return c;
  }

  /// Number of queries of a call that count.
  KVMELD_HD std::uint32_t observed_rows() const { return window; }
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

  /// Members have no neighbours to pool with.
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const {
    auto const raw = [&](std::uint32_t s) { return view.channel(past, s) + view.channel(current, s); };
    std::uint32_t const before = view.length() > window ? view.length() - window : 0;
    return !view.of_members() && i < before ? pooling.at(i, before, raw) : raw(i);
  }

  void tell_kept(kept_facts& to) const { to.add("window", window); }
  std::string problem() const {
    if (window == 0) return refusal("policy", "score::local.window", 0, "at least 1");
    return pooling.problem();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
