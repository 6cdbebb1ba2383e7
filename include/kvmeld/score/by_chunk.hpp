// SPDX-License-Identifier: Apache-2.0
// Scores of chunks of neighbouring entries, so that chunks stay whole (ChunkKV).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Every entry scores the mean of its chunk of `chunk` neighbouring slots (ChunkKV: Liu et al., "ChunkKV:
/// Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference", 2025). Chunks begin at
/// slot 0; the last one may be shorter. The best entries are then whole chunks, but for the chunk at which
/// the budget ends: its first entries stay. An entry whose score is not finite, or whose row holds NaN or
/// infinity, does not count in the mean.
template <class Of> struct by_chunk : Of {
  std::uint32_t chunk = 20;  ///< slots of a chunk, at least 1

  static constexpr score_facts facts = changed_facts(stated_facts<score_facts, Of>, &score_facts::light,
                                                     false, &score_facts::rows_alone, false);

  by_chunk() = default;
  /// The mean of a score over chunks of `slots` slots.
  by_chunk(Of const& score, std::uint32_t slots = 20) : Of(score), chunk(slots) {}

  std::string name() const { return full_name_of(of()) + "/chunk"; }
  /// The score of single entries.
  Of const& of() const { return *this; }

  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return detail::scratch_of_score(of(), s, lanes);
  }
  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    detail::evaluate_score(static_cast<Of const&>(*this), team, view, rows, out);
    std::uint32_t const n = view.length();
    team.for_each(n / chunk + (n % chunk != 0 ? 1u : 0u), [&](std::uint32_t i) {
      slot_t const first = i * chunk, end = n - first > chunk ? first + chunk : n;
      float sum = 0.0f, count = 0.0f;
      for (slot_t s = first; s < end; ++s) {
        if (!view.usable(s) || !is_finite(out[s])) continue;
        sum += out[s];
        count += 1.0f;
      }
      for (slot_t s = first; s < end && count > 0.0f; ++s) out[s] = sum / count;
    });
    team.sync();
  }
  template <class Team> KVMELD_HD void evaluate(Team const& team, score_view const& view, float* out) const {
    evaluate(team, view, 0, out);
  }
  void importance() const = delete;
  void evaluate_members() const = delete;

  std::string problem() const {
    if (chunk == 0) return refusal("policy", "score::by_chunk.chunk", chunk, "at least 1");
    return problem_of(of());
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
