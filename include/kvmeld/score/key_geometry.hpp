// SPDX-License-Identifier: Apache-2.0
// Scores of keys alone: how far a key points away from the others (KeyDiff), and how short it is (Knorm).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cstddef>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// KeyDiff (Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
/// Resource-Constrained Environments", 2025): minus the cosine of a key and the mean direction of all keys,
/// from -1 (as all the others) to 1. Keys are read as they are stored, with their rotation. The mean is over
/// tokens: a merged entry counts as often as its degree. A key of zeros scores 0. Needs no attention. Reads
/// the keys twice.
struct key_difference {
  static constexpr char const* name = "key_difference";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};

  std::size_t scratch_bytes(shape const& s, int) const { return scratch_size(s.key_dim * sizeof(float)); }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    float* const mean = block_scratch<float>(team, rows.keys.channels());
    rows.keys.weighted_sum(
        team, [&](slot_t s, float norm) { return ratio(view.degree(s), norm); }, mean);
    float const length = row_ref(mean, rows.keys.channels()).norm();
    rows.keys.products(team, mean, [&](slot_t s, float norm, float product) {
      out[s] = -ratio(ratio(product, length), norm);
    });
  }

private:
  KVMELD_HD static float ratio(float a, float b) { return b > 0.0f ? a / b : 0.0f; }
};

/// Knorm (Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", 2024):
/// minus the norm of the key, because short keys draw attention. Needs no attention. Reads the keys once.
struct key_norm {
  static constexpr char const* name = "key_norm";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::rows_alone};

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const&, Rows const& rows, float* out) const {
    rows.keys.norms(team, [&](slot_t s, float norm) { out[s] = -norm; });
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
