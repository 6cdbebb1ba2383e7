// SPDX-License-Identifier: Apache-2.0
// A score chosen at run time.
#pragma once

#include <kvmeld/compose/any_part.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/above_mean.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/by_chunk.hpp>
#include <kvmeld/score/chunk_attention.hpp>
#include <kvmeld/score/critical.hpp>
#include <kvmeld/score/distance_preference.hpp>
#include <kvmeld/score/drop_error.hpp>
#include <kvmeld/score/expected_attention.hpp>
#include <kvmeld/score/given.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/score/global_local.hpp>
#include <kvmeld/score/keeping_queries.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/key_geometry.hpp>
#include <kvmeld/score/lag_relative.hpp>
#include <kvmeld/score/learned.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/score/local.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/redundancy.hpp>
#include <kvmeld/score/reference_queries.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the listed scores, and is itself a score.
template <class... Scores> class any_score_of : public any_part<score_facts, Scores...> {
public:
  static constexpr score_facts facts =
      changed_facts(score_facts{score_kind::weights, &score_facts::reads_rows, &score_facts::keeps_queries},
                    &score_facts::spans_blocks, (stated_facts<score_facts, Scores>.may_span() && ...),
                    &score_facts::max_channels, max_channels);

  using any_part<score_facts, Scores...>::any_part;

  /// Which queries the score that is held needs to observe.
  observation_need need() const {
    return this->of_.visit([](auto const& s) { return kvmeld::detail::need_of_score(s); });
  }
  channel_list channels(shape const& extent) const {
    return this->of_.visit([&](auto const& s) { return channels_of(s, extent); });
  }
  /// The reference queries that the score that is held keeps; count 0: none.
  reference_queries references() const {
    return this->of_.visit([](auto const& s) { return kvmeld::detail::references_of(s); });
  }
  /// Whether the score that is held has a contribution.
  KVMELD_HD bool contributes() const {
    return this->of_.visit([](auto const& s) { return kvmeld::detail::contributes(s); });
  }
  KVMELD_HD float contribution(std::uint32_t channel, float p, std::uint32_t visible) const {
    return this->of_.visit([&](auto const& s) { return contribution_of(s, channel, p, visible); });
  }
  /// How the score that is held folds attention over heads and rows.
  KVMELD_HD attention_fold fold() const {
    return this->of_.visit([](auto const& s) { return kvmeld::detail::fold_of(s); });
  }
  KVMELD_HD channel_update update(std::uint32_t channel, std::uint32_t filled, std::uint32_t rows) const {
    return this->of_.visit(
        [&](auto const& s) { return kvmeld::detail::update_of(s, channel, filled, rows); });
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t rows) const {
    return this->of_.visit([&](auto const& s) { return kvmeld::detail::next_window_of(s, filled, rows); });
  }
  std::size_t table_floats(shape const& extent) const {
    return this->of_.visit([&](auto const& s) { return std::size_t{table_floats_of(s, extent)}; });
  }
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    this->of_.visit([&](auto const& s) { kvmeld::detail::absorb_queries(s, team, table, head, queries); });
  }
  std::size_t scratch_bytes(shape const& extent, int lanes) const {
    return this->of_.visit([&](auto const& s) { return kvmeld::detail::scratch_of_score(s, extent, lanes); });
  }
  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    this->of_.visit([&](auto const& s) { kvmeld::detail::evaluate_score(s, team, view, rows, out); });
  }
  void tell_kept(kept_facts& to) const {
    this->of_.visit([&](auto const& s) { kvmeld::detail::tell_kept_of(s, to); });
  }
  std::string problem_for(shape const& extent) const {
    return this->of_.visit([&](auto const& s) { return kvmeld::detail::table_problem(s, extent); });
  }
};

/// Holds one of the ready-made scores.
class any_score
    : public any_score_of<
          score::global, score::local, score::global_local, score::above_mean, score::none,
          score::key_difference, score::key_norm, score::lag_relative, score::leverage,
          score::blended<score::leverage, score::drop_error>, score::expected_attention, score::given,
          score::learned, score::max_attention, score::distance_preference, score::redundancy,
          score::drop_error, score::chunk_attention, score::blended<score::leverage, score::chunk_attention>,
          score::blended<score::leverage, score::learned>, score::root_mean_square,
          score::keeping_queries<score::root_mean_square>, score::keeping_queries<score::local>,
          score::keeping_queries<score::leverage>, score::max_output<float>, score::by_chunk<score::local>,
          score::critical<score::local>> {
public:
  using any_score_of::any_score_of;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
