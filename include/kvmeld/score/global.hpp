// SPDX-License-Identifier: Apache-2.0
// What all queries so far gave an entry: in sum (H2O; KVMerger section 4.1), at most (KVzip), or in the root
// of the mean square (Attention Matching).
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/score.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Column sums of the attention probabilities over all observed queries, averaged over the query heads of a
/// KV head. It has one channel. When entries merge, their sums add, since the result stands for all of them.
struct global {
  static constexpr char const* name = "global";
  static constexpr score_facts facts{score_kind::weights, &score_facts::light};
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::accumulated_attention, channel_rule::sum, 0.0f});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const { return view.channel(0, i); }
};

/// The most attention that any observed query, of any query head of the KV head, gave an entry (KVzip: Kim et
/// al., "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction", 2025). It has one channel.
/// When entries merge, the strongest member counts. Wants to be shown the queries of a second reading of the
/// prompt, and no others.
struct max_attention {
  static constexpr char const* name = "max_attention";
  static constexpr score_facts facts{score_kind::peaks, observation::replay, &score_facts::light};
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::max_attention, channel_rule::max, 0.0f});
    return c;
  }

  /// The largest over heads and over rows.
  KVMELD_HD static constexpr attention_fold fold() { return {head_fold::max, row_fold::max}; }
  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const { return view.channel(0, i); }
};

/// The root of the mean square, over all observed queries of all query heads of a KV head, of the attention
/// that an entry received (Zweiger et al., "Fast KV Compaction via Attention Matching", 2026: the ranking of
/// "highest attention keys"), times the root of the number of queries, which orders entries alike. It has one
/// channel, of squares. When entries merge, their squares add. Wants to be shown the queries of a second
/// reading of the prompt (the paper's "repeat-prefill"), and no others.
struct root_mean_square {
  static constexpr char const* name = "root_mean_square";
  static constexpr score_facts facts{observation::replay, &score_facts::light};
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::squared_attention, channel_rule::sum, 0.0f});
    return c;
  }

  /// The root of the mean square over heads; its squares add up over rows.
  KVMELD_HD static constexpr attention_fold fold() { return {head_fold::root_mean_square, row_fold::sum}; }
  KVMELD_HD static float contribution(std::uint32_t, float p, std::uint32_t) { return p * p; }
  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {0, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const {
    return std::sqrt(view.channel(0, i));
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
