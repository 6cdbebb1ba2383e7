// SPDX-License-Identifier: Apache-2.0
// A merged_cache as a value, and the one way in which its calls check, launch and note an operation. Included
// by merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

// ---- a cache as a value -------------------------------------------------------------------------

template <class E, class P, class K, class V>
merged_cache<E, P, K, V>::merged_cache(E executor, P policy, kv<K, V> tensors, cache_options options)
    : executor_(std::move(executor)),
      policy_(detail::used_policy<policy_type>(policy)),
      tensors_{detail::used_layout<keys_used>(tensors.keys),
               detail::used_layout<values_used>(tensors.values)},
      options_(options) {
  detail::require_layout<K>();
  detail::require_layout<V>();
  detail::require_whole(static_cast<P const*>(nullptr));
  construction_ = raise(detail::construction_problem(policy_, tensors_, options_));
  if (!construction_.ok()) return;
  options_.wave_tracks = detail::tracks_of_wave(options_, executor_.workers());
  std::size_t const bytes = detail::cache_bytes(options_, channels_of(policy_.score, options_.extent), 1,
                                                table_floats_of(policy_.score, options_.extent));
  memory_ = executor_.allocate(bytes);
  require_memory(bytes);
  if (!construction_.ok()) return;
  executor_.clear(memory_.data(), memory_.size());
  if constexpr (!immediate) mirror_ = detail::host_mirror(options_.extent);
  planned_.reserve(options_.extent.sequences);
  if (options_.stats) stats_.resize(options_.extent.tracks());
  bind_memory();
}

template <class E, class P, class K, class V>
merged_cache<E, P, K, V>::merged_cache(merged_cache&& other) noexcept
    : ledger_readings(std::move(other)),
      executor_(std::move(other.executor_)),
      policy_(other.policy_),
      tensors_(other.tensors_),
      options_(other.options_),
      memory_(std::move(other.memory_)),
      mirror_(std::move(other.mirror_)),
      planned_(std::move(other.planned_)),
      bounds_(std::move(other.bounds_)),
      budgets_(std::move(other.budgets_)),
      stats_(std::move(other.stats_)),
      report_(std::move(other.report_)),
      stats_report_(std::move(other.stats_report_)) {
  if (valid().ok()) bind_memory();
  other.ledger_ = other.facts_ = {};
  other.arrays_ = {};
  other.moved_from_ = true;
}

template <class E, class P, class K, class V>
merged_cache<E, P, K, V>& merged_cache<E, P, K, V>::operator=(merged_cache&& other) noexcept {
  if (this == &other) return *this;
  executor_ = std::move(other.executor_);
  policy_ = other.policy_;
  tensors_ = other.tensors_;
  options_ = other.options_;
  memory_ = std::move(other.memory_);
  mirror_ = std::move(other.mirror_);
  planned_ = std::move(other.planned_);
  bounds_ = std::move(other.bounds_);
  budgets_ = std::move(other.budgets_);
  stats_ = std::move(other.stats_);
  report_ = std::move(other.report_);
  stats_report_ = std::move(other.stats_report_);
  ledger_readings::operator=(std::move(other));
  if (valid().ok()) bind_memory();
  other.ledger_ = other.facts_ = {};
  other.arrays_ = {};
  other.moved_from_ = true;
  return *this;
}

template <class E, class P, class K, class V>
merged_cache<E, P, K, V> merged_cache<E, P, K, V>::clone(kv<K, V> tensors) const {
  merged_cache copy(*this);
  if (!copy.valid().ok()) return copy;
  copy.require_memory(memory_.size());
  if (!copy.valid().ok()) return copy;
  copy.bind_memory();
  copy.construction_ = copy.rebind(
      {detail::used_layout<keys_used>(tensors.keys), detail::used_layout<values_used>(tensors.values)});
  return copy;
}

template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::require_memory(std::size_t bytes) {
  if (memory_.size() >= bytes) return;
  construction_ = raise(refusal("merged_cache", "memory in bytes", bytes, detail::memory_to_be_had));
}
template <class E, class P, class K, class V> void merged_cache<E, P, K, V>::bind_memory() {
  arena a(memory_.data(), memory_.size());
  arrays_ = detail::carve_cache(a, options_, channels_of(policy_.score, options_.extent),
                                table_floats_of(policy_.score, options_.extent));
  ledger_ = arrays_.ledger;
  facts_ = immediate ? ledger_ : mirror_.view(ledger_);
}

// ---- one way for all operations -----------------------------------------------------------------

/// Refuses the call while recording. For calls that wait, and for calls whose numbers are not lists: a replay
/// would repeat the recorded numbers.
template <class E, class P, class K, class V>
template <class Problem>
status merged_cache<E, P, K, V>::refuse_once(char const* call, Problem problem) const {
  return refuse([&]() -> std::string {
    if (executor_.records())
      return refusal(call, "recording", "on", "off, because this call cannot be recorded");
    return problem();
  });
}

/// Checks an operation and carries it out.
template <class E, class P, class K, class V>
template <class Operation>
status merged_cache<E, P, K, V>::operate(Operation const& operation, index_list sequences,
                                         index_list counts) {
  auto const problem = [&] { return operation.problem(facts_, sequences, counts); };
  status s = Operation::recordable ? refuse(problem) : refuse_once(Operation::name, problem);
  if (!s.ok()) return s;
  return carry_out(operation, sequences, counts, [](detail::sequence_phase const&) {});
}

/// Calls `before`, launches an operation, and repeats it on the host's mirror. If `in_place` is not null, the
/// launch reads it instead of `counts`, which are then what the host guesses.
template <class E, class P, class K, class V>
template <class Operation, class Before>
status merged_cache<E, P, K, V>::carry_out(Operation const& operation, index_list sequences,
                                           index_list counts, Before before, std::uint32_t const* in_place) {
  keep_mirror();
  bool const stages_counts = Operation::has_counts && in_place == nullptr;
  detail::sequence_phase all = stage_call(sequences, stages_counts ? &counts : nullptr);
  if (in_place != nullptr) all.counts = in_place;
  bool const few = writes_few(operation, sequences, counts);
  status const s = kvmeld::launch_all(executor_, Operation::name, [&] {
    before(all);
    if constexpr (may_write_few<Operation>) {
      if (few) {
        executor_.run(sequences::whole_sequences_phase<Operation>{all, operation}, options_.extent,
                      all.work.sequence_count, sequences::sequence_source{options_.extent, all.work});
      }
    }
    if (!few) sequences::launch_operation([&](auto const& phase) { launch(phase); }, operation, all);
    if (Operation::leaves == sequences::effect::begun && arrays_.workspace.stats != nullptr)
      launch(first_stats(all));
  });
  if (s.ok()) note_done(operation, sequences, counts, in_place != nullptr);
  return s;
}

/// Repeats an operation on the host's mirror, and forgets plans that it outdates. `guessed`: the counts are
/// upper bounds.
template <class E, class P, class K, class V>
template <class Operation>
void merged_cache<E, P, K, V>::note_done(Operation const& operation, index_list sequences, index_list counts,
                                         bool guessed) {
  if (Operation::outdates_plan) forget_plan_of(sequences);
  for (std::size_t i = 0; !immediate && i < sequences.size(); ++i) {
    if (Operation::leaves == sequences::effect::begun) mirror_.set_known(sequences[i], true);
    mirror_.apply(operation, sequences[i], Operation::has_counts ? counts[i] : 0);
    if (guessed) mirror_.mark_tokens_unknown(sequences[i]);
  }
}

/// Call it before what the host knows changes. Keeps what the host goes back to if recorded calls are refused
/// later.
template <class E, class P, class K, class V> void merged_cache<E, P, K, V>::keep_mirror() {
  if constexpr (!immediate) {
    auto const undo = [](void* self) {
      auto& cache = *static_cast<merged_cache*>(self);
      cache.mirror_.take_back();
      cache.facts_ = cache.mirror_.view(cache.ledger_);
    };
    if (!executor_.records()) mirror_.keep_nothing();
    executor_.remember(this, undo, [&] { mirror_.keep(); });
  }
}

/// Drops the plan made last if it is a plan of any of these sequences.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::forget_plan_of(index_list sequences) {
  for (std::uint32_t planned : planned_) {
    for (std::uint32_t sequence : sequences) {
      if (planned == sequence) return planned_.clear();
    }
  }
}

/// The layouts for checks on the host. On devices they are stand-ins, because block tables lie in executor
/// memory.
template <class E, class P, class K, class V> auto merged_cache<E, P, K, V>::seen_tensors() const {
  if constexpr (immediate) {
    return tensors_;
  } else {
    return kv<check_calls::unseen_rows, check_calls::unseen_rows>{};
  }
}

/// Reads the numbers of a sequence: the words of the ledger, which lie before the arrays of entries. Waits.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::read_numbers(std::uint32_t sequence) {
  keep_mirror();
  mirror_.read(detail::read_ledger(executor_, arrays_, memory_.data(), options_, arrays_.word_bytes).ledger,
               sequence, sequence);
}
/// Reads the numbers of a sequence if the host has only bounds of its lengths, and may wait.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::know_lengths([[maybe_unused]] std::uint32_t sequence) {
  if constexpr (!immediate) {
    bool const bounds_only = valid().ok() && sequence < options_.extent.sequences && !lengths_known(sequence);
    if (bounds_only && !executor_.records()) read_numbers(sequence);
  }
}
/// Likewise, if the host has only a bound of its tokens.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::know_tokens(std::uint32_t sequence) {
  if (!tokens_known(sequence)) know_lengths(sequence);
}
/// False if the host has only a bound of the tokens of a sequence.
template <class E, class P, class K, class V>
bool merged_cache<E, P, K, V>::tokens_known([[maybe_unused]] std::uint32_t sequence) const {
  if constexpr (immediate) {
    return true;
  } else {
    bool const there = valid().ok() && sequence < options_.extent.sequences;
    return !there || mirror_.tokens_known(sequence);
  }
}

// Stages the lists of a call; `numbers` may be null. They travel together. A record fills each list up to its
// recorded length, so there each list has a place of its own.
template <class E, class P, class K, class V>
detail::sequence_phase merged_cache<E, P, K, V>::stage_call(index_list sequences, index_list const* numbers) {
  if (immediate || executor_.records() || numbers == nullptr) {
    work_list const work = stage(sequences);
    return {ledger_, work, numbers == nullptr ? nullptr : executor_.stage(*numbers).data()};
  }
  lists_.assign(sequences.begin(), sequences.end());
  lists_.insert(lists_.end(), numbers->begin(), numbers->end());
  index_list const both = executor_.stage({lists_.data(), lists_.size()});
  std::size_t const n = both.size() == 0 ? 0 : sequences.size();
  return {ledger_, {both.data(), static_cast<std::uint32_t>(n)}, both.data() + n};
}

// Whether an operation writes so few entries that one launch is best. In a record the recorded numbers
// decide.
template <class E, class P, class K, class V>
template <class Operation>
bool merged_cache<E, P, K, V>::writes_few([[maybe_unused]] Operation const& operation,
                                          [[maybe_unused]] index_list sequences,
                                          [[maybe_unused]] index_list counts) const {
  if constexpr (!may_write_few<Operation>) {
    return false;
  } else {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      most = max_of(most, operation.entries(facts_, sequences[i], counts[i]));
    return executor_.as_recorded(most) <= sequences::whole_sequences_phase<Operation>::few;
  }
}

// Copies a list, because phases may run after the caller's list is gone.
template <class E, class P, class K, class V>
work_list merged_cache<E, P, K, V>::stage(index_list sequences) {
  index_list const staged = executor_.stage(sequences);
  return {staged.data(), static_cast<std::uint32_t>(staged.size())};
}

template <class E, class P, class K, class V>
template <class Phase>
void merged_cache<E, P, K, V>::launch(Phase const& phase) {
  launch(phase, {options_.extent, phase.work});
}
template <class E, class P, class K, class V>
template <class Phase>
void merged_cache<E, P, K, V>::launch(Phase const& phase, track_source const& source) {
  executor_.run(phase, options_.extent, source.work.tracks(options_.extent), source);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
