// SPDX-License-Identifier: Apache-2.0
// CaM, "CaM: Cache Merging for Memory-efficient LLMs Inference" (2024): defaults and citations.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/local_span.hpp>
#include <kvmeld/merge/additive.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// CaM merges what any selector would evict. The default differs from the paper. One-shot compression of a
/// prompt merges almost every old entry: an old entry has gathered more attention than recent ones, so p = 1.
/// The paper does not restore the softmax's denominator, so values then grow to about 1 / (1 - sum A) of
/// themselves, which is far worse than eviction. By default, therefore, the mass is corrected
/// (merge::additive), and the mask is its mean p instead of a draw. V_i then enters the output with mass p_i
/// mean(A) = A_i for every p_i <= 1. A draw gives this mass only on average: each draw gives mean(A) or
/// nothing.
///
/// During generation, call `compress` when `due`: every step (trigger.interval 1) or every g steps. The
/// attention of evicted entries does not move to the targets. Evicting E entries reads E rows of V once, adds
/// their sum to m rows, and reads and writes about 80 bytes of metadata per entry. It also moves every row of
/// K and V behind the first gap, which is the whole local window or more: up to 2 x length rows per
/// compression, so 2 x length / g per token. On one core with 1024 entries of 128 channels in bfloat16, a
/// track costs 130 to 180 us per token at g = 1, 6 to 11 us at 16 and 2 to 3 us at 64. Plain eviction costs
/// about as much. At g = 16 the rest of a step costs more than this.
namespace cam {

/// The type of CaM over any selector and score.
template <class Score, class Select>
using type_over = policy<Score, Select, identify::local_span, merge::additive>;
/// The type of CaM over StreamingLLM.
using type = type_over<score::global, select::sinks_and_recents>;
/// The type of CaM over H2O.
using type_over_h2o = type_over<score::global, select::top>;

/// CaM over any selector that pins a local window (recents). The score has to be accumulated attention, and
/// the whole window receives. With another score the rates mean something else: score::above_mean compares
/// counts.
template <class Select, class Score = score::global>
type_over<Score, Select> over(Select select, Score score = {}) {
  return {score, select, {}, {}};
}

/// CaM over StreamingLLM: half of the budget is sinks, the rest recents. With budget::ratio(0.2) these are
/// 0.1 + 0.1 of the context, as in the authors' examples. The paper's setting for the PG-19 books (section
/// 4.1) is budget::entries(1024) with sinks quantity::entries(4).
inline type over_streaming_llm(quantity sinks = quantity::of_budget(0.5)) {
  return over(select::sinks_and_recents{sinks, quantity::rest_of_budget()});
}
/// CaM over H2O: half of the budget is recent entries, half is chosen by accumulated attention (section 4.3).
inline type_over_h2o over_h2o() { return over(h2o::defaults().select); }

/// `p` as the paper prints it: Bernoulli masks (eq. 14), and values added without the denominator (eq. 15).
/// The paper gives means over five seeds. With `reference_max`, rates are relative to the highest score of
/// sinks and recents, as in the authors' code.
template <class Score, class Select>
type_over<Score, Select> as_printed(type_over<Score, Select> p, std::uint64_t seed = 0,
                                    bool reference_max = false) {
  p.identify.mode = identify::mask_mode::bernoulli;
  p.identify.seed = seed;
  p.identify.reference_max = reference_max;
  p.merge.variant = merge::additive_variant::paper;
  return p;
}

}  // namespace cam
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
