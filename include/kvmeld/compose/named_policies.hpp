// SPDX-License-Identifier: Apache-2.0
// The presets by name, each as a composed policy, with a sentence about it.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/preset/attention_matching.hpp>
#include <kvmeld/preset/cam.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/preset/compactor.hpp>
#include <kvmeld/preset/d2o.hpp>
#include <kvmeld/preset/ems.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/keepkv.hpp>
#include <kvmeld/preset/kvmerger.hpp>
#include <kvmeld/preset/learned.hpp>
#include <kvmeld/preset/merging.hpp>
#include <kvmeld/preset/recommended.hpp>
#include <kvmeld/preset/row_scores.hpp>
#include <kvmeld/queries/rope.hpp>

#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// A preset that a program can choose by its name.
struct named_policy {
  char const* name;                        ///< "snapkv"
  char const* does;                        ///< what it does, in one sentence
  composed (*make)(rope_params const& r);  ///< `r`: how the model rotates queries, and keys that it stores
};

/// All presets that a composed policy can hold, with their default numbers. Chelsea pins 16 first and 64 last
/// entries, or fewer if the budget is small. Presets that share entries are types of their own and
/// not among them. May be called by any thread.
inline span<named_policy const> named_policies() {
  using r = rope_params const&;
  static constexpr named_policy all[] = {
      {"streaming_llm", "keeps the first 4 entries and the last ones",
       [](r) { return composed_of(preset::streaming_llm::with_sinks()); }},
      {"h2o", "keeps recent entries and those with the most attention",
       [](r) { return composed_of(preset::h2o::defaults()); }},
      {"scissorhands", "keeps recent entries and those that often get more than the mean attention",
       [](r) { return composed_of(preset::scissorhands::defaults()); }},
      {"snapkv", "keeps what the last 32 queries look at",
       [](r) { return composed_of(preset::snapkv::with_window()); }},
      {"tova", "keeps what the last query looks at", [](r) { return composed_of(preset::tova::defaults()); }},
      {"chunkkv", "keeps whole chunks of 20 entries, those that the last 32 queries look at most",
       [](r) { return composed_of(preset::chunkkv::over(preset::snapkv::with_window())); }},
      {"criticalkv",
       "keeps what the last 32 queries look at; for half of the budget the size of values counts too",
       [](r) { return composed_of(preset::criticalkv::over(preset::snapkv::with_window())); }},
      {"kvzip", "keeps what a second reading of the prompt looks at",
       [](r) { return composed_of(preset::kvzip::for_budget()); }},
      {"kvzip_centroids",
       "keeps what kvzip would, on nine tenths of the budget, and makes centroids of all else",
       [](r rope) { return composed_of(preset::recommended::with_second_reading(rope)); }},
      {"learned", "keeps what kvzip would, as far as keys tell: weights were learned of the model",
       [](r rope) { return composed_of(preset::learned::with_weights({}, rope)); }},
      {"learned_centroids",
       "keeps what learned would, on nine tenths of the budget, and makes centroids of all else",
       [](r rope) { return composed_of(preset::recommended::with_learned({}, rope)); }},
      {"learned_leverage",
       "keeps what learned would and what no other key can stand in for: where all heads share a plan",
       [](r rope) { return composed_of(preset::learned_leverage::with_weights({}, rope)); }},
      {"kvzip_plus", "keeps what adds most to the outputs of a second reading, by the length of values",
       [](r) { return composed_of(preset::kvzip_plus::for_budget()); }},
      {"kvzap", "keeps what the scores of the engine put at or above a threshold",
       [](r) { return composed_of(preset::kvzap::with_threshold(0.0f)); }},
      {"knorm", "keeps the shortest keys", [](r) { return composed_of(preset::knorm::for_budget()); }},
      {"lagkv", "keeps what differs from the text that follows",
       [](r) { return composed_of(preset::lagkv::with_lag()); }},
      {"keydiff", "keeps keys that point away from the others",
       [](r) { return composed_of(preset::keydiff::for_budget()); }},
      {"keydiff_merging", "clusters what keydiff would evict",
       [](r) { return composed_of(preset::merging(preset::keydiff::for_budget())); }},
      {"leverage", "keeps keys that the other keys cannot stand in for",
       [](r) { return composed_of(preset::leverage::for_budget()); }},
      {"leverage_merging", "clusters what leverage would evict",
       [](r) { return composed_of(preset::merging(preset::leverage::for_budget())); }},
      {"leverage_fitted", "evicts by leverage and fits the values that stay",
       [](r) { return composed_of(preset::fitting(preset::leverage::for_budget())); }},
      {"compactor", "adds to leverage what the tokens around an entry look at",
       [](r rope) { return composed_of(preset::compactor::with_rope(rope)); }},
      {"expected_attention", "keeps what future queries will look at, if they are like those so far",
       [](r rope) { return composed_of(preset::expected_attention::with_rope(rope)); }},
      {"triattention", "keeps what queries will look at, by how far back they look on average",
       [](r rope) { return composed_of(preset::triattention::with_rope(rope)); }},
      {"triattention_merging", "clusters what triattention would evict",
       [](r rope) { return composed_of(preset::merging(preset::triattention::with_rope(rope))); }},
      {"rkv", "keeps what the last 8 queries look at and no later key resembles",
       [](r) { return composed_of(preset::rkv::for_budget()); }},
      {"rkv_merging", "clusters what rkv would evict",
       [](r) { return composed_of(preset::merging(preset::rkv::for_budget())); }},
      {"dropkv", "keeps the entries without which the outputs of the last 8 queries would change most",
       [](r) { return composed_of(preset::dropkv::with_window()); }},
      {"dropkv_merging", "clusters what dropkv would evict",
       [](r) { return composed_of(preset::merging(preset::dropkv::with_window())); }},
      {"leverage_dropkv",
       "keeps what the outputs of the last 8 queries need and what no other key can stand in for",
       [](r) { return composed_of(preset::leverage_dropkv::for_budget()); }},
      {"attention_matching", "keeps what a second reading looks at and fits the values that stay",
       [](r) { return composed_of(preset::attention_matching::for_budget()); }},
      {"chelsea", "clusters each chunk by similarity, round by round",
       [](r) {
         return composed_of(
             preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25), quantity::at_most(64, 1.0 / 3)));
       }},
      {"kvmerger", "merges runs of similar neighbours, with Gaussian weights around the best",
       [](r) { return composed_of(preset::kvmerger::for_budget()); }},
      {"d2o", "evicts by attention and merges what resembles a kept entry",
       [](r) { return composed_of(preset::d2o::defaults()); }},
      {"keepkv", "clusters so that an entry keeps the attention of its members",
       [](r) { return composed_of(preset::keepkv::for_budget()); }},
      {"cam", "evicts and adds evicted values to recent entries",
       [](r) { return composed_of(preset::cam::over_h2o()); }},
      {"ems_collapsed", "evicts what neither score needs and merges the rest into centres",
       [](r) { return composed_of(preset::ems::collapsed()); }},
  };
  return span<named_policy const>(all, sizeof all / sizeof all[0]);
}

/// The names of all presets as "a, b, c", for messages.
inline std::string names_of_policies() {
  std::string out;
  for (named_policy const& p : named_policies()) out += (out.empty() ? "" : ", ") + std::string(p.name);
  return out;
}

/// Looks up a preset by its name and assigns it to `policy`. Returns false, and leaves `policy` as it was, if
/// there is none.
inline bool find_policy(std::string const& name, rope_params const& rope, composed& policy) {
  for (named_policy const& p : named_policies()) {
    if (name != p.name) continue;
    policy = p.make(rope);
    return true;
  }
  return false;
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
