// SPDX-License-Identifier: Apache-2.0
// Importance over the whole text and over the last queries at once.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/local.hpp>
#include <kvmeld/score/pooling.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// EMS section 3.2: s = max(s_Glo * mean(s_Loc) / mean(s_Glo), s_Loc). s_Glo is the attention of all queries,
/// and s_Loc that of the last `window` queries (kept in two halves as in score::local). The means run over
/// all entries of the track. The pooling runs over the entries before the window. After whole prompts,
/// mean(s_Loc) / mean(s_Glo) is window / queries exactly, since every row of attention sums to 1.
struct global_local {
  std::uint32_t window = 32;  ///< queries of the window
  kvmeld::pooling pooling{};  ///< pooling of the scores, along the slots

  static constexpr char const* name = "global_local";
  static constexpr score_facts facts{score_kind::weights, &score_facts::light};
  /// Channels: over all queries, over the last window, over the current one.
  static constexpr std::uint32_t accumulated = 0, past = 1, current = 2;
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::accumulated_attention, channel_rule::sum, 0.0f});
    c.add({channel_tag::window_past, channel_rule::sum, 0.0f});
    c.add({channel_tag::window_current, channel_rule::sum, 0.0f});
    c.add({channel_tag::merge_weight, channel_rule::weight, 0.0f});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t channel, std::uint32_t filled, std::uint32_t rows) const {
    if (channel == accumulated) return {accumulated, 0};
    if (channel != past && channel != current) return {static_cast<std::int32_t>(channel), rows};
    channel_update const u = local{window, pooling}.update(channel - past, filled, rows);
    return {u.base < 0 ? u.base : u.base + static_cast<std::int32_t>(past), u.first_row};
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t rows) const {
    return local{window, pooling}.next_window(filled, rows);
  }

  template <class Team> KVMELD_HD void evaluate(Team const& team, score_view const& view, float* out) const {
    float const scale = alignment(team, view);
    auto const raw = [&](std::uint32_t s) { return combined(view, s, scale); };
    std::uint32_t const n = view.length();
    std::uint32_t const before = n > window ? n - window : 0;
    team.for_each(n, [&](std::uint32_t s) { out[s] = s < before ? pooling.at(s, before, raw) : raw(s); });
    team.sync();
  }
  /// Members have no neighbours to pool with.
  template <class Team>
  KVMELD_HD void evaluate_members(Team const& team, score_view const& view, float* out) const {
    float const scale = alignment(team, view);
    score_view const members = view.members();
    team.for_each(members.length(), [&](std::uint32_t m) { out[m] = combined(members, m, scale); });
    team.sync();
  }

  void tell_kept(kept_facts& to) const { to.add("window", window); }
  std::string problem() const {
    if (window == 0) return refusal("policy", "score::global_local.window", 0, "at least 1");
    return pooling.problem();
  }

private:
  KVMELD_HD static float combined(score_view const& view, std::uint32_t i, float scale) {
    float const global = view.channel(accumulated, i) * scale;
    float const local = view.channel(past, i) + view.channel(current, i);
    return global > local ? global : local;
  }
  /// mean(s_Loc) / mean(s_Glo); 0 where nothing was observed. Entries whose attention is NaN or infinite
  /// count as 0.
  template <class Team> KVMELD_HD static float alignment(Team const& team, score_view const& view) {
    float* const partial = team.template scratch<float>(team_partials);
    auto const sum = [&](auto attention) {
      auto const finite = [&](std::uint32_t s) {
        float const x = attention(s);
        return is_finite(x) ? x : 0.0f;
      };
      return team_sum(team, view.length(), finite, partial);
    };
    float const global = sum([&](std::uint32_t s) { return view.channel(accumulated, s); });
    float const local =
        sum([&](std::uint32_t s) { return view.channel(past, s) + view.channel(current, s); });
    return global > 0.0f ? local / global : 0.0f;
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
