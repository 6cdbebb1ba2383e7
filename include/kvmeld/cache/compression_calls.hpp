// SPDX-License-Identifier: Apache-2.0
// The calls of merged_cache that plan and compress. Included by merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/facts.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::compress_problem(char const* call, index_list sequences,
                                                       budget allowed) const {
  std::string text = check_calls::shared_budget(call, allowed, policy_, options_);
  if (text.empty()) text = check_calls::compress(call, facts_, sequences, allowed, policy_, seen_tensors());
  if (text.empty())
    text = check_calls::scopes(call, facts_, sequences, allowed, options_.scope, seen_tensors());
  return text;
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::plan(index_list sequences, budget allowed, shortfall fallback) {
  auto const problem = [&] {
    if (!options_.whole_plan) {
      return refusal("plan", "options.whole_plan", "false",
                     "true, so that there is memory for a whole plan (or call compress)");
    }
    return compress_problem("plan", sequences, allowed);
  };
  if (status s = refuse_once("plan", problem); !s.ok()) return s;
  work_list const work = plan_work(arrays_.planned, sequences.size());
  budget const staged = stage_budget(allowed);
  auto const launches = [&] {
    kvmeld::plan(executor_, policy_, tensors_, ledger_, work, staged, fallback, arrays_.workspace);
  };
  if (status s = make_room(executor_, "plan", launches); !s.ok()) return s;
  planned_.assign(sequences.begin(), sequences.end());
  executor_.upload(arrays_.planned, planned_.data(), planned_.size() * sizeof(std::uint32_t));
  launches();
  return {};
}

template <class E, class P, class K, class V> status merged_cache<E, P, K, V>::apply() {
  auto const problem = [&]() -> std::string {
    if (planned_.empty()) return check_calls::no_plan();
    if constexpr (immediate)
      return check_calls::apply(ledger_, arrays_.workspace.plan, planned_work(), tensors_);
    return {};
  };
  if (status s = refuse_once("apply", problem); !s.ok()) return s;
  status const s = kvmeld::launch_all(executor_, "apply", [&] {
    kvmeld::apply(executor_, policy_, tensors_, ledger_, plan_work(arrays_.planned, planned_.size()),
                  arrays_.workspace);
  });
  if (!s.ok()) return s;
  for (std::uint32_t sequence : planned_) {
    if constexpr (immediate) break;
    mirror_.mark_inexact(sequence);  // the plan may have been edited
    mirror_.compressed(sequence);
  }
  planned_.clear();
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::compress(index_list sequences, budget allowed, shortfall fallback) {
  auto const problem = [&] { return compress_problem("compress", sequences, allowed); };
  if (status s = refuse(problem); !s.ok()) return s;
  bounds_.assign(sequences.size(), 0);
  launch_counts counts;
  if constexpr (!immediate) counts = counts_for(sequences, allowed, fallback);
  work_list const work = stage(sequences);
  detail::sequence_phase const all{ledger_, work,
                                   options_.padded ? executor_.stage(bounds()).data() : nullptr};
  budget const staged = stage_budget(allowed);
  workspace_ref const room = fitting_tracks(arrays_.workspace, longest_of(sequences));
  keep_mirror();
  status const s = kvmeld::launch_all(executor_, "compress", [&] {
    kvmeld::compress(executor_, policy_, tensors_, ledger_, plan_work(work.sequences, work.sequence_count),
                     staged, fallback, room, counts.rounds, counts.likely_rounds);
    if (options_.padded) pad(all, sequences);
  });
  if (!s.ok()) return s;
  planned_.clear();
  if constexpr (!immediate) {
    for (std::uint32_t sequence : sequences) mirror_compression(sequence, allowed, fallback);
  }
  return {};
}

/// Slots that no track of these sequences exceeds. A recorded call may be replayed with longer ones.
template <class E, class P, class K, class V>
std::uint32_t merged_cache<E, P, K, V>::longest_of(index_list sequences) const {
  if (executor_.records()) return options_.extent.capacity;
  std::uint32_t most = 0;
  for (std::uint32_t sequence : sequences) most = max_of(most, facts_.longest(sequence));
  return most;
}

/// How many rounds a compression enqueues. If launches are immediate, as many as it takes.
template <class E, class P, class K, class V> struct merged_cache<E, P, K, V>::launch_counts {
  std::uint32_t rounds = 0xffffffffu;         ///< most rounds
  std::uint32_t likely_rounds = 0xffffffffu;  ///< the host launches this many first rounds phase by phase
};

/// The rounds to enqueue where launches are not immediate. Also raises bounds_ to the largest length of each
/// sequence after the compression.
template <class E, class P, class K, class V>
auto merged_cache<E, P, K, V>::counts_for(index_list sequences, budget allowed, shortfall fallback)
    -> launch_counts {
  detail::forecast<policy_type> const ahead = foresee(allowed, fallback);
  std::uint32_t rounds = 0, likely = 0;
  std::uint32_t most = 0;  // for any lengths, because recorded calls may be replayed with others
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    bool const guesses = guesses_budget(sequences[i], allowed);
    ahead.each_track(sequences[i], lengths_known(sequences[i]),
                     [&](track, std::uint32_t bound, detail::budget_sum const& sum) {
                       bounds_[i] = max_of(bounds_[i], bound);
                       detail::budget_sum full = sum, least = sum;
                       full.held = sum.tracks * options_.extent.capacity;
                       if (guesses) least.allowed = sum.tracks;
                       rounds = max_of(rounds, ahead.rounds(least));
                       if (executor_.records()) most = max_of(most, ahead.rounds(full));
                       if (sum.tracks == 1)
                         likely = max_of(likely,
                                         ahead.likely_rounds(sequences[i], executor_.records() ? full : sum));
                     });
  }
  // A replay with a smaller budget has more likely rounds. Those that were not recorded are still taken.
  return {executor_.limit("rounds", rounds, most), executor_.as_recorded(likely)};
}

/// Whether the device may find a smaller budget than the host: a share of tokens of which the host has only a
/// bound. Recorded calls take the host's budget.
template <class E, class P, class K, class V>
bool merged_cache<E, P, K, V>::guesses_budget(std::uint32_t sequence, budget allowed) const {
  return allowed.is_ratio() && !executor_.records() && !tokens_known(sequence);
}

/// Repeats on the mirror what a compression does to a sequence.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::mirror_compression(std::uint32_t sequence, budget allowed,
                                                  shortfall fallback) {
  // The last slots of a track may be empty from now on, or the selector thins any track.
  bool const thins = facts_of<select_facts>(policy_.select).thins_any_track;
  bool const guesses = guesses_budget(sequence, allowed);
  bool changes = options_.padded || thins || guesses;
  bool loses = (thins && !exact(fallback)) || guesses;  // what the host knew of the lengths
  if (options_.padded) mirror_.drop_padding(sequence);
  foresee(allowed, fallback)
      .each_track(sequence, lengths_known(sequence),
                  [&](track t, std::uint32_t bound, detail::budget_sum const& sum) {
                    if (sum.held > sum.allowed) {
                      changes = true;
                      loses = loses || sum.tracks > 1 || !exact(fallback);
                    }
                    mirror_.lower(t, bound);
                  });
  if (changes) mirror_.compressed(sequence);
  if (loses) mirror_.mark_inexact(sequence);
  if (options_.padded) mirror_.pad(sequence, writes_all && mirror_.known(sequence));
}

/// Fills the tracks of every sequence up to bounds_. If launches are immediate, sets bounds_ to the length of
/// the longest track first.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::pad(detail::sequence_phase const& all, index_list sequences) {
  for (std::size_t i = 0; immediate && i < sequences.size(); ++i) bounds_[i] = longest(sequences[i]);
  launch(detail::clear_padding_phase<keys_used>{all, tensors_.keys});
  launch(detail::clear_padding_phase<values_used>{all, tensors_.values});
  launch(detail::pad_phase{all});
  launch(detail::pad_settle_phase{all});
}

/// The budget for phases. While recording it is one number per track, because a replay may have a budget of
/// another kind.
template <class E, class P, class K, class V> budget merged_cache<E, P, K, V>::stage_budget(budget allowed) {
  if (!executor_.records()) return allowed.staged(executor_, options_.extent);
  budgets_.assign(options_.extent.tracks(), 0);
  for (std::uint32_t sequence = 0; sequence < options_.extent.sequences; ++sequence) {
    for_tracks(sequence, [&](track t) { budgets_[t.index] = allowed.resolve(t, facts_.seen[sequence]); });
  }
  return budget::per_track(budgets_.data())
      .over(allowed.among(), allowed.floor())
      .staged(executor_, options_.extent);
}

template <class E, class P, class K, class V>
std::uint32_t merged_cache<E, P, K, V>::length_after(std::uint32_t sequence, budget allowed,
                                                     shortfall fallback) const {
  auto const problem = [&] { return compress_problem("length_after", {&sequence, 1}, allowed); };
  if (!refuse(problem).ok()) return 0;
  return foresee(allowed, fallback).longest(sequence, lengths_known(sequence));
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
