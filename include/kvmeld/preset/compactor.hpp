// SPDX-License-Identifier: Apache-2.0
// Compactor: what no other key can stand in for, and what the tokens around it look at.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/chunk_attention.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// Compactor (Chari and Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with
/// Approximate Leverage Scores", 2025): leverage of keys before their rotation, plus non-causal attention
/// inside chunks of 256. It needs no question: a prompt compressed once serves all of them. Show it the
/// queries of the whole prompt with `observe`; log-sum-exps may be empty.
namespace compactor {
/// Compactor's parts.
using type = policy<score::blended<score::leverage, score::chunk_attention>, select::top,
                    identify::evict_rest, merge::drop>;
/// Leverage counts by the share of the entries that has to go, as in the authors' kvpress. The first 8 and
/// the last 4 entries stay, the best by score fill the rest of the budget. Where a prompt ends with its
/// question, ask for more recents, such as quantity::at_most(32, 0.25): the score does not know the question.
/// `rope` says how the engine rotated the keys that it stored; without one, keys count as they are stored.
inline type with_rope(rope_params const& rope, quantity recents = quantity::at_most(4, 0.25),
                      quantity sinks = quantity::at_most(8, 0.25)) {
  type out{{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
  out.score.first.rope = rope;
  out.score.by_removal = true;
  return out;
}
}  // namespace compactor

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
