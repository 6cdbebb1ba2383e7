// SPDX-License-Identifier: Apache-2.0
// How often an entry mattered: the number of recent queries that gave it more than the mean attention
// (Scissorhands, section 3.2).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/local.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Number of rows among the last `window` in which the entry's attention, averaged over the query heads of a
/// KV head, is above the mean over the entries that the row sees: p > 1 / visible. An entry counts once
/// whatever its degree: the mean is over entries, not over tokens. With blocks shorter than `window`
/// (decode), `window` to 2 `window` - 1 rows count, as in score::local. When entries merge, their counts add.
struct above_mean {
  std::uint32_t window = 400;  ///< queries that count

  static constexpr char const* name = "above_mean";
  static constexpr score_facts facts{score_kind::weights, &score_facts::light};
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::hits_past, channel_rule::sum, 0.0f});
    c.add({channel_tag::hits_current, channel_rule::sum, 0.0f});
    return c;
  }

  /// Number of queries of a call that count.
  KVMELD_HD std::uint32_t observed_rows() const { return window; }
  KVMELD_HD static float contribution(std::uint32_t, float p, std::uint32_t visible) {
    return p * static_cast<float>(visible) > 1.0f ? 1.0f : 0.0f;
  }
  KVMELD_HD channel_update update(std::uint32_t channel, std::uint32_t filled, std::uint32_t rows) const {
    return halves().update(channel, filled, rows);
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t rows) const {
    return halves().next_window(filled, rows);
  }

  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const {
    return view.channel(local::past, i) + view.channel(local::current, i);
  }

  void tell_kept(kept_facts& to) const { to.add("window", window); }
  std::string problem() const {
    if (window == 0) return refusal("policy", "score::above_mean.window", 0, "at least 1");
    return {};
  }

private:
  KVMELD_HD constexpr local halves() const { return {window, {1, pooling_mode::mean}}; }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
