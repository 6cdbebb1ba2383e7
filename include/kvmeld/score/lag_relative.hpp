// SPDX-License-Identifier: Apache-2.0
// How much an entry's rows vary beside the rows that follow (LagKV).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// LagKV (Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important",
/// 2025). The entries behind the first `sinks` are cut into chunks of `lag` slots. Every channel of a chunk
/// is normalised by its least and its greatest element in the next chunk. An entry's value is the standard
/// deviation over its channels (n - 1 in the denominator), as a softmax over the chunk, of keys plus of
/// values. The score is the rank of that value in the chunk, divided by `lag`, so that every chunk keeps an
/// equal share. Sinks, the last whole chunk and what follows it score 1 or more, as all entries of a track of
/// fewer than sinks + 2 lag entries do: the later an entry, the higher its score, so that small budgets keep
/// the newest of them. A channel without extent in the next chunk counts as 0. Ties go to the
/// later entry. Needs no attention. Reads keys and values twice.
struct lag_relative {
  std::uint32_t sinks = 4;  ///< first entries
  std::uint32_t lag = 128;  ///< entries of a chunk

  static constexpr std::uint32_t most_lag = 1024;  ///< largest `lag`

  static constexpr char const* name = "lag_relative";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};

  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const bounds = 2 * scratch_size((s.key_dim > s.value_dim ? s.key_dim : s.value_dim) * 4);
    return bounds + 2 * scratch_size(lag * sizeof(float)) + team_sum_scratch();
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length();
    team.for_each(n, [&](std::uint32_t i) { out[i] = 1.0f + static_cast<float>(i) / static_cast<float>(n); });
    std::uint32_t const chunks = n > sinks ? (n - sinks) / lag : 0;
    std::uint32_t const d = max_of(rows.keys.channels(), rows.values.channels());
    float* const low = block_scratch<float>(team, d);
    float* const high = block_scratch<float>(team, d);
    float* const spread = block_scratch<float>(team, lag);
    float* const total = block_scratch<float>(team, lag);
    float* const partial = block_scratch<float>(team, team_partials);
    team.sync();
    auto const& part = block_of(team);  // the blocks of the team take turns with the chunks
    block_place const mine = place_of_block(team);
    for (std::uint32_t chunk = mine.index; chunk + 1 < chunks; chunk += mine.count) {
      slot_t const first = sinks + chunk * lag;
      part.for_each(lag, [&](std::uint32_t i) { total[i] = 0.0f; });
      part.sync();
      auto const add = [&](auto const& side) {
        side.bounds(part, first + lag, first + 2 * lag, low, high);
        part.for_each(lag, [&](std::uint32_t i) { spread[i] = 0.0f; });
        part.sync();
        side.for_each(part, first, first + lag,
                      [&](slot_t s, row_ref const& row) { spread[s - first] = deviation(row, low, high); });
        // Deviations are at least 0, so their order keys compare like themselves.
        std::uint32_t most = 0;
        part.for_each(lag, [&](std::uint32_t i) { most = max_of(most, order_key(spread[i])); });
        float const highest = order_value(part.reduce(most, op_max{}));
        float const sum = team_sum(
            part, lag, [&](std::uint32_t i) { return std::exp(spread[i] - highest); }, partial);
        part.for_each(lag, [&](std::uint32_t i) { total[i] += std::exp(spread[i] - highest) / sum; });
        part.sync();
      };
      add(rows.keys);
      add(rows.values);
      part.for_each(lag, [&](std::uint32_t i) {
        std::uint32_t below = 0;
        for (std::uint32_t j = 0; j < lag; ++j) {
          below += total[j] < total[i] || (total[j] == total[i] && j < i) ? 1u : 0u;
        }
        out[first + i] = static_cast<float>(below) / static_cast<float>(lag);
      });
      part.sync();
    }
    if (mine.count != 1) team.sync();
  }

  std::string problem() const {
    if (lag == 0 || lag > most_lag) {
      return refusal("policy", "score::lag_relative.lag", lag, "between 1 and ", most_lag);
    }
    return {};
  }

private:
  /// Standard deviation over the channels of a row that is normalised by `low` and `high`.
  KVMELD_HD static float deviation(row_ref const& row, float const* low, float const* high) {
    std::uint32_t const d = row.size();
    auto const value = [&](std::uint32_t c) {
      float const extent = high[c] - low[c];
      return extent > 0.0f ? (row[c] - low[c]) / extent : 0.0f;
    };
    float const mean = ordered_sum(d, value) / static_cast<float>(d);
    float const square = ordered_sum(d, [&](std::uint32_t c) {
      float const x = value(c) - mean;
      return x * x;
    });
    return d > 1 ? std::sqrt(square / static_cast<float>(d - 1)) : 0.0f;
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
