// SPDX-License-Identifier: Apache-2.0
// Merged entries keep the attention their members had (after "KeepKV: Achieving Periodic Lossless KV Cache
// Compression for Efficient LLM Inference", 2025: electoral votes and zero-perturbation merging).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// The merged entry has k* = sum w_i k_i and v* = sum w_i v_i with w_i = p_i / sum p. p_i is the attention
/// that member i received (the score). The degree d* is such that the merged entry receives sum p:
///
/// A member of degree d_i has attention p_i = d_i exp(q.k_i) / Z, so q.k_i = log(p_i / d_i) + log Z. d* must
/// satisfy d* exp(q.k*) / Z = sum p. With q.k* = sum w_i q.k_i and sum w_i = 1,
///     log d* = log sum p + log Z - sum w_i (log(p_i / d_i) + log Z) = sum w_i log(d_i / w_i).
/// Z cancels, and so does any factor that all p_i share. p_i may therefore be a sum over queries: it stands
/// for a query whose attention is the mean of theirs.
///
/// For that query the merge is exact: mass and output equal those of the members. d* is at most the sum of
/// the d_i. It equals the sum if attention depends on degrees alone (equal keys). It is smaller the more one
/// member outweighs the others, because the mean key is then closer to that member's key. KeepKV adds the
/// votes and rescales the key to the same end. With an engine that biases logits by degrees, the key can stay
/// a mean of keys.
///
/// If the members have no attention, weights are proportional to degrees and d* is the sum of the d_i. A
/// score that is NaN, infinite or negative counts as 0. The score should be unpooled attention:
/// score::global.
struct mass_preserving {
  static constexpr char const* name = "mass_preserving";
  static constexpr merge_facts facts{&merge_facts::needs_score};
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t, member_list const& m) const {
    auto const attention = [&](std::uint32_t i) {
      float const p = wave.score[wave.at(t.item, m.slots[i])];
      return is_finite(p) && p > 0.0f ? p : 0.0f;
    };
    auto const degree = [&](std::uint32_t i) {
      return wave.ledger.degree[wave.ledger.at(t.where, m.slots[i])];
    };
    float total = 0.0f, tokens = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) {
      total += attention(i);
      tokens += degree(i);
    }
    bool const usable = is_finite(total) && total > 0.0f;
    auto const weight = [&](std::uint32_t i) { return usable ? attention(i) / total : degree(i) / tokens; };
    write_weights(wave, t, m, weight);
    if (!usable) return;
    float log_degree = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) {
      float const w = weight(i);
      if (w > 0.0f) log_degree += w * std::log(degree(i) / w);
    }
    // The plan adds up weighted degrees: every member contributes the same share of its degree.
    float const share = min_of(1.0f, std::exp(log_degree) / tokens);
    for (std::uint32_t i = 0; i < m.count; ++i) {
      wave.step.degree_weight[wave.step.at(t.item, m.slots[i])] = share;
    }
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
