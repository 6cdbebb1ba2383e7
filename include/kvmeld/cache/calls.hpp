// The calls of merged_cache that are longer than a line. Included by merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

// ---- a cache as a value -------------------------------------------------------------------------

template <class E, class P, class K, class V>
merged_cache<E, P, K, V>::merged_cache(E executor, P policy, kv<K, V> tensors, cache_options sizes)
    : executor_(std::move(executor)),
      policy_(detail::used_policy<policy_type>(policy)),
      tensors_{detail::used_layout<keys_used>(tensors.keys),
               detail::used_layout<values_used>(tensors.values)},
      sizes_(sizes) {
  detail::require_layout<K>();
  detail::require_layout<V>();
  detail::require_whole(static_cast<P const*>(nullptr));
  detail::require_guarded_rows<P, K, V>();
  construction_ = raise(detail::construction_problem(policy_, tensors_, sizes_));
  if (!construction_.ok()) return;
  sizes_.wave_tracks = detail::tracks_of_wave(sizes_, executor_.workers());
  std::size_t const bytes = detail::cache_bytes(sizes_, channels_of(policy_.score, sizes_.extent), 1,
                                                table_floats_of(policy_.score, sizes_.extent));
  memory_ = executor_.allocate(bytes);
  require_memory(bytes);
  if (!construction_.ok()) return;
  executor_.clear(memory_.data(), memory_.size());
  if constexpr (!immediate) mirror_ = detail::host_mirror(sizes_.extent);
  planned_.reserve(sizes_.extent.sequences);
  if (sizes_.stats) stats_.resize(sizes_.extent.tracks());
  bind_memory();
  policy_name_ = name_of_policy(policy_);
}

template <class E, class P, class K, class V>
merged_cache<E, P, K, V>::merged_cache(merged_cache&& other) noexcept
    : ledger_readings(std::move(other)),
      executor_(std::move(other.executor_)),
      policy_(other.policy_),
      tensors_(other.tensors_),
      sizes_(other.sizes_),
      memory_(std::move(other.memory_)),
      policy_name_(std::move(other.policy_name_)),
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
  sizes_ = other.sizes_;
  memory_ = std::move(other.memory_);
  policy_name_ = std::move(other.policy_name_);
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
  arrays_ = detail::carve_cache(a, sizes_, channels_of(policy_.score, sizes_.extent),
                                table_floats_of(policy_.score, sizes_.extent));
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

/// Calls `before`, launches an operation, and repeats it on the host's mirror. The launch reads `in_place`
/// instead of `counts` if it is not null.
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
        executor_.run(sequences::whole_sequences_phase<Operation>{all, operation}, sizes_.extent,
                      all.work.sequence_count, sequences::sequence_source{sizes_.extent, all.work});
      }
    }
    if (!few) sequences::launch_operation([&](auto const& phase) { launch(phase); }, operation, all);
    if (Operation::leaves == sequences::effect::begun && arrays_.workspace.stats != nullptr)
      launch(first_stats(all));
  });
  if (s.ok()) note_done(operation, sequences, counts);
  return s;
}

/// Repeats an operation on the host's mirror, and forgets plans that it outdates.
template <class E, class P, class K, class V>
template <class Operation>
void merged_cache<E, P, K, V>::note_done(Operation const& operation, index_list sequences,
                                         index_list counts) {
  if (Operation::outdates_plan) forget_plan_of(sequences);
  for (std::size_t i = 0; !immediate && i < sequences.size(); ++i) {
    if (Operation::leaves == sequences::effect::begun) mirror_.set_known(sequences[i], true);
    mirror_.apply(operation, sequences[i], Operation::has_counts ? counts[i] : 0);
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

/// Whether the host knows the lengths of a sequence, not only bounds.
template <class E, class P, class K, class V>
bool merged_cache<E, P, K, V>::is_known(std::uint32_t sequence) const {
  return immediate || mirror_.known(sequence);
}

/// Reads the numbers of a sequence if the host has only bounds of its lengths, and may wait.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::know_lengths([[maybe_unused]] std::uint32_t sequence) {
  if constexpr (!immediate) {
    bool const bounds_only = valid().ok() && sequence < sizes_.extent.sequences && !is_known(sequence);
    if (bounds_only && !executor_.records()) mirror_.read(readable().ledger, sequence);
  }
}
/// Likewise, if the host has only a bound of its tokens. Refuses if it cannot wait for them.
template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::know_tokens([[maybe_unused]] std::uint32_t sequence) {
  if constexpr (!immediate) {
    if (!valid().ok() || sequence >= sizes_.extent.sequences) return {};  // the call itself says so
    if (!mirror_.tokens_known(sequence)) know_lengths(sequence);
    if (!mirror_.tokens_known(sequence)) {
      return raise(
          refusal("truncate", message("number of tokens of sequence ", sequence), "unknown",
                  "known, because device_counts were committed (call sync_lengths before recording)"));
    }
  }
  return {};
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
  launch(phase, {sizes_.extent, phase.work});
}
template <class E, class P, class K, class V>
template <class Phase>
void merged_cache<E, P, K, V>::launch(Phase const& phase, track_source const& source) {
  executor_.run(phase, sizes_.extent, source.work.tracks(sizes_.extent), source);
}

// ---- sequences ----------------------------------------------------------------------------------

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::append(index_list sequences, index_list counts, when_full const& full) {
  std::vector<std::uint32_t> no_room;
  auto const problem = [&] { return full_problem(sequences, counts, full, no_room); };
  if (status s = refuse_once("append", problem); !s.ok()) return s;
  if (!no_room.empty()) {
    index_list const list{no_room.data(), no_room.size()};
    if (status s = compress(list, full.shrink_to, full.fallback); !s.ok()) return s;
  }
  return append(sequences, counts);
}

/// Why append cannot make room; fills `no_room` with the sequences that have none.
template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::full_problem(index_list sequences, index_list counts,
                                                   when_full const& full,
                                                   std::vector<std::uint32_t>& no_room) const {
  std::string text = check_calls::one_count_each("append", sequences, counts);
  if (text.empty()) text = check_calls::is_open("append", facts_, sequences);
  if (!text.empty()) return text;
  std::uint32_t const capacity = sizes_.extent.capacity;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] > capacity) {
      return refusal("append", message("counts[", i, "]"), counts[i], "at most ", capacity, ", the capacity");
    }
    if (longest(sequences[i]) > capacity - counts[i]) no_room.push_back(sequences[i]);
  }
  if (no_room.empty()) return {};
  text = compress_problem("compress", {no_room.data(), no_room.size()}, full.shrink_to, full.fallback);
  if (!text.empty()) return text;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    text =
        check_calls::tokens_fit("append", message("counts[", i, "]"), counts[i], facts_.tokens(sequences[i]));
    if (!text.empty()) return text;
    std::uint32_t const left = longest(sequences[i]) > capacity - counts[i]
                                   ? length_after(sequences[i], full.shrink_to, full.fallback)
                                   : 0;
    if (left <= capacity - counts[i]) continue;
    return refusal("append",
                   message("what full.shrink_to and full.fallback leave of sequence ", sequences[i]), left,
                   "at most ", capacity - counts[i], " entries, so that counts[", i, "] = ", counts[i],
                   " fit into the capacity of ", capacity);
  }
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::commit(index_list sequences, device_counts accepted) {
  auto const problem = [&] {
    std::string text = check_calls::is_open("commit", facts_, sequences);
    if (!text.empty() || accepted.data != nullptr) return text;
    return refusal("commit", "accepted.data", "null", "an array with one number for each sequence");
  };
  if (status s = refuse(problem); !s.ok()) return s;
  if constexpr (immediate) {
    return commit(sequences, index_list(accepted.data, sequences.size()));
  } else {
    auto const nothing = [](detail::sequence_phase const&) {};
    status const s =
        carry_out(sequences::commit{}, sequences, all_pending(sequences), nothing, accepted.data);
    for (std::size_t i = 0; s.ok() && i < sequences.size(); ++i) mirror_.mark_tokens_unknown(sequences[i]);
    return s;
  }
}

/// What the host takes for the accepted entries where it cannot know them.
template <class E, class P, class K, class V>
index_list merged_cache<E, P, K, V>::all_pending(index_list sequences) {
  counts_.clear();
  for (std::uint32_t sequence : sequences) counts_.push_back(facts_.pending[sequence]);
  return {counts_.data(), counts_.size()};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::append(index_list sequences, index_list counts, in_kernel) {
  sequences::append const operation{};
  if (status s = refuse([&] { return operation.problem(facts_, sequences, counts); }); !s.ok()) return s;
  keep_mirror();
  note_done(operation, sequences, counts);
  if (!immediate) forget_plan_of(sequences);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::commit(index_list sequences, in_kernel) {
  if (status s = refuse([&] { return check_calls::is_open("commit", facts_, sequences); }); !s.ok()) return s;
  keep_mirror();
  note_done(sequences::commit{}, sequences, all_pending(sequences));
  for (std::size_t i = 0; !immediate && i < sequences.size(); ++i) mirror_.mark_tokens_unknown(sequences[i]);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen,
                                      sequence_id id, fork_rows how) {
  sequences::fork const operation{from, frozen, static_cast<std::uint32_t>(id)};
  if (frozen != 0) know_lengths(from);
  auto const problem = [&] { return operation.problem(facts_, into, how, seen_tensors()); };
  if (status s = refuse_once("fork", problem); !s.ok()) return s;
  status const s = carry_out(operation, {into}, {}, [&](detail::sequence_phase const& all) {
    if (how == fork_rows::shared) return;
    track_source const source{sizes_.extent, all.work};
    launch(sequences::copy_rows_phase<keys_used>{tensors_.keys, ledger_, from, frozen}, source);
    launch(sequences::copy_rows_phase<values_used>{tensors_.values, ledger_, from, frozen}, source);
  });
  if (!s.ok()) return s;
  forget_plan_of({from});
  if constexpr (!immediate) mirror_.know_alike(into, from);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::shift(std::uint32_t sequence, position_t offset, rope_params const& rope,
                                       position_t first) {
  if (!executor_.records()) (void)know_tokens(sequence);
  sequences::shift<keys_used> const operation{tensors_.keys, rope, offset, first};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    return operation.entries_problem(readable().ledger, sequence, seen_tensors().keys);
  };
  if (status s = refuse_once("shift", problem); !s.ok()) return s;
  return change_positions(operation, sequence);
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::renumber(std::uint32_t sequence, rope_params const& rope) {
  if (!executor_.records()) (void)know_tokens(sequence);
  sequences::renumber<keys_used> operation{tensors_.keys, rope, 0};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    detail::readable_ledger const now = readable();
    for_tracks(sequence,
               [&](track t) { operation.longest = max_of(operation.longest, now.ledger.length[t.index]); });
    return operation.entries_problem(now.ledger, sequence, seen_tensors().keys);
  };
  if (status s = refuse_once("renumber", problem); !s.ok()) return s;
  return change_positions(operation, sequence);
}

template <class E, class P, class K, class V>
template <class Operation>
status merged_cache<E, P, K, V>::change_positions(Operation const& operation, std::uint32_t sequence) {
  return carry_out(operation, {sequence}, {}, [&](detail::sequence_phase const& all) {
    if (!operation.rope.active()) return;
    auto const step = operation.step();
    launch(sequences::turn_keys_phase<keys_used, std::decay_t<decltype(step)>>{tensors_.keys, ledger_,
                                                                               operation.rope, step},
           {sizes_.extent, all.work});
  });
}

template <class E, class P, class K, class V>
template <class Entry, class Index>
status merged_cache<E, P, K, V>::export_page_metadata(index_list sequences,
                                                      page_metadata<Entry, Index> const& notes) {
  auto const problem = [&] { return sequences::export_problem(facts_, sequences, notes); };
  if (status s = refuse(problem); !s.ok()) return s;
  bounds_.clear();
  for (std::uint32_t sequence : sequences) bounds_.push_back(longest(sequence));
  detail::sequence_phase const all{ledger_, stage(sequences), executor_.stage(bounds()).data()};
  return kvmeld::launch_all(executor_, "export_page_metadata", [&] {
    launch(sequences::export_phase<page_metadata<Entry, Index>>{all, notes});
  });
}

template <class E, class P, class K, class V>
template <class Notes>
status merged_cache<E, P, K, V>::adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                                       Notes const& notes, sequence_id id) {
  sequences::adopt<Notes> const operation{notes, tokens};
  auto const problem = [&] { return operation.problem(facts_, {sequence}, {entries}); };
  if (status s = refuse_once("adopt", problem); !s.ok()) return s;
  sequences::open const begin{0, static_cast<std::uint32_t>(id)};
  status const s = carry_out(operation, {sequence}, {entries}, [&](detail::sequence_phase const& all) {
    sequences::launch_operation([&](auto const& phase) { launch(phase); }, begin, all);
  });
  if (!s.ok()) return s;
  if constexpr (!immediate) {
    mirror_.apply(begin, sequence, entries);
    mirror_.apply(operation, sequence, entries);
    mirror_.set_known(sequence, false);
    if (sizes_.padded) mirror_.pad(sequence, false);
  }
  return {};
}

// ---- compression --------------------------------------------------------------------------------

template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::compress_problem(char const* call, index_list sequences, budget allowed,
                                                       shortfall fallback) const {
  std::string text = check_calls::splits(call, allowed, policy_, sizes_);
  if (text.empty()) text = check_calls::compress(call, facts_, sequences, allowed, policy_, seen_tensors());
  if (text.empty()) text = check_calls::guarded(call, policy_, fallback);
  if (text.empty())
    text = check_calls::scopes(call, facts_, sequences, allowed, sizes_.scope, seen_tensors());
  return text;
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::plan(index_list sequences, budget allowed, shortfall fallback) {
  auto const problem = [&] {
    if (!sizes_.whole_plan) {
      return refusal("plan", "options.whole_plan", "false",
                     "true, so that there is memory for a whole plan (or call compress)");
    }
    return compress_problem("plan", sequences, allowed, fallback);
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
  auto const problem = [&] { return compress_problem("compress", sequences, allowed, fallback); };
  if (status s = refuse(problem); !s.ok()) return s;
  launch_counts const counts = counts_for(sequences, allowed, fallback);
  work_list const work = stage(sequences);
  detail::sequence_phase const all{ledger_, work, sizes_.padded ? executor_.stage(bounds()).data() : nullptr};
  budget const staged = stage_budget(allowed);
  keep_mirror();
  status const s = kvmeld::launch_all(executor_, "compress", [&] {
    kvmeld::compress(executor_, policy_, tensors_, ledger_, plan_work(work.sequences, work.sequence_count),
                     staged, fallback, arrays_.workspace, counts.rounds, counts.likely_rounds);
    if (sizes_.padded) pad(all, sequences);
  });
  if (!s.ok()) return s;
  planned_.clear();
  for (std::uint32_t sequence : sequences) {
    if constexpr (!immediate) mirror_compression(sequence, allowed, fallback);
  }
  return {};
}

/// How many rounds a compression enqueues.
template <class E, class P, class K, class V> struct merged_cache<E, P, K, V>::launch_counts {
  std::uint32_t rounds;         ///< most rounds; if launches are immediate, as many as it takes
  std::uint32_t likely_rounds;  ///< the host launches this many first rounds phase by phase
};

/// The rounds to enqueue. Also fills bounds_ with the largest length of each sequence after the compression.
template <class E, class P, class K, class V>
auto merged_cache<E, P, K, V>::counts_for(index_list sequences, budget allowed, shortfall fallback)
    -> launch_counts {
  detail::forecast<policy_type> const ahead = foresee(allowed, fallback);
  std::uint32_t rounds = immediate ? 0xffffffffu : 0;
  std::uint32_t most = rounds;  // for any lengths, because recorded calls may be replayed with others
  std::uint32_t likely = rounds;
  bounds_.assign(sequences.size(), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    ahead.each_track(
        sequences[i], is_known(sequences[i]), [&](track, std::uint32_t bound, detail::split_sum const& sum) {
          bounds_[i] = max_of(bounds_[i], bound);
          if constexpr (!immediate) {
            detail::split_sum full = sum;
            full.held = sum.tracks * sizes_.extent.capacity;
            rounds = max_of(rounds, ahead.rounds(sum));
            if (executor_.records()) most = max_of(most, ahead.rounds(full));
            if (sum.tracks == 1)
              likely = max_of(likely, ahead.likely_rounds(sequences[i], executor_.records() ? full : sum));
          }
        });
  }
  // A replay with a smaller budget has more likely rounds. Those that were not recorded are still taken.
  return {executor_.limit("rounds", rounds, most), executor_.as_recorded(likely)};
}

/// Repeats on the mirror what a compression does to a sequence.
template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::mirror_compression(std::uint32_t sequence, budget allowed,
                                                  shortfall fallback) {
  // The last slots of a track may be empty from now on, or the selector thins any track.
  bool const thins = traits_of_selector(policy_.select).thins_any_track;
  bool changes = sizes_.padded || thins;
  bool loses = thins && !exact(fallback);  // what the host knew of the lengths
  if (sizes_.padded) mirror_.drop_padding(sequence);
  foresee(allowed, fallback)
      .each_track(sequence, is_known(sequence),
                  [&](track t, std::uint32_t bound, detail::split_sum const& sum) {
                    if (sum.held > sum.allowed) {
                      changes = true;
                      loses = loses || sum.tracks > 1 || !exact(fallback);
                    }
                    mirror_.lower(t, bound);
                  });
  if (changes) mirror_.compressed(sequence);
  if (loses) mirror_.mark_inexact(sequence);
  if (sizes_.padded) mirror_.pad(sequence, writes_all && mirror_.known(sequence));
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
  if (!executor_.records()) return allowed.staged(executor_, sizes_.extent);
  budgets_.assign(sizes_.extent.tracks(), 0);
  for (std::uint32_t sequence = 0; sequence < sizes_.extent.sequences; ++sequence) {
    for_tracks(sequence, [&](track t) { budgets_[t.index] = allowed.resolve(t, facts_.seen[sequence]); });
  }
  return budget::per_track(budgets_.data())
      .over(allowed.among(), allowed.floor())
      .staged(executor_, sizes_.extent);
}

template <class E, class P, class K, class V>
std::uint32_t merged_cache<E, P, K, V>::length_after(std::uint32_t sequence, budget allowed,
                                                     shortfall fallback) const {
  std::uint32_t most = 0;
  auto const problem = [&] { return compress_problem("length_after", {&sequence, 1}, allowed, fallback); };
  if (!refuse(problem).ok()) return most;
  foresee(allowed, fallback)
      .each_track(sequence, is_known(sequence),
                  [&](track, std::uint32_t bound, detail::split_sum const&) { most = max_of(most, bound); });
  return most;
}

template <class E, class P, class K, class V>
template <class Guard>
status merged_cache<E, P, K, V>::set_guard(Guard const& guard) {
  static_assert(is_guarded<typename policy_type::identify_type>::value,
                "kvmeld: the policy has no guard to set");
  static_assert(std::is_same_v<Guard, typename policy_type::identify_type::guard_type>,
                "kvmeld: the guard is of another type than the policy's");
  if (status s = refuse([&] { return problem_of(guard); }); !s.ok()) return s;
  policy_.identify.guard = guard;
  planned_.clear();  // it was made with the guard before
  return {};
}

template <class E, class P, class K, class V>
template <class Stream>
void merged_cache<E, P, K, V>::print_plan(Stream& out) const {
  if (!refuse([&] { return reader().unreadable("print_plan"); }).ok()) return;
  for (std::uint32_t item = 0; item < planned_work().tracks(sizes_.extent); ++item) {
    kvmeld::print_plan(out, planned_work().at(sizes_.extent, item), arrays_.workspace.plan, item);
  }
}
template <class E, class P, class K, class V>
role merged_cache<E, P, K, V>::planned_role(std::uint32_t item, slot_t s) const {
  bool const there = refuse([&] { return reader().unknown("planned_role", item, s); }).ok();
  return there ? reader().role_of(item, s) : role::pinned;
}
template <class E, class P, class K, class V>
float merged_cache<E, P, K, V>::planned_score(std::uint32_t item, slot_t s) const {
  bool const there = refuse([&] { return reader().no_score("planned_score", item, s); }).ok();
  return there ? reader().score_of(item, s) : 0.0f;
}
template <class E, class P, class K, class V>
candidate merged_cache<E, P, K, V>::planned_candidate(std::uint32_t item, slot_t s) const {
  bool const there = refuse([&] { return reader().no_candidate("planned_candidate", item, s); }).ok();
  return there ? reader().candidate_of(item, s) : candidate{0, s, s};
}
template <class E, class P, class K, class V>
float merged_cache<E, P, K, V>::planned_sigma(std::uint32_t item, slot_t pivot) const {
  static_assert(std::is_same_v<typename policy_type::merge_type, merge::gaussian>,
                "kvmeld: planned_sigma is for policies whose merge function is merge::gaussian");
  bool const there = refuse([&] { return reader().unplanned("planned_sigma", item, pivot); }).ok();
  return there ? reader().sigma_of(tensors_.keys, item, pivot) : 0.0f;
}

// ---- reports and stats --------------------------------------------------------------------------

template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::sync_lengths(std::uint32_t sequence) {
  if (!within("sync_lengths", sequence)) return;
  if (!refuse_once("sync_lengths", [] { return std::string(); }).ok()) return;
  if constexpr (!immediate) mirror_.read(readable().ledger, sequence);
}

template <class E, class P, class K, class V> status merged_cache<E, P, K, V>::request_lengths() {
  if (status s = refuse_once("request_lengths", [] { return std::string(); }); !s.ok()) return s;
  if constexpr (!immediate) {
    if (report_.sent()) return {};
    report_.send(executor_, memory_.data(), arrays_.word_bytes);
    mirror_.expect_report();
  }
  return {};
}

template <class E, class P, class K, class V> bool merged_cache<E, P, K, V>::poll_lengths() {
  if constexpr (immediate) {
    return true;
  } else {
    if (!report_.arrived(executor_)) return false;
    arena a(report_.data(), arrays_.word_bytes);
    mirror_.take_report(detail::carve_ledger(a, sizes_, ledger_.channels, ledger_.table_floats));
    return true;
  }
}

template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::no_stats(char const* call) const {
  if (arrays_.stats != nullptr) return {};
  return refusal(call, "options.stats", "false",
                 "true when the cache is constructed; otherwise nothing is counted");
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::request_stats(index_list sequences) {
  auto const problem = [&] {
    std::string text = no_stats("request_stats");
    return text.empty() ? check_calls::is_open("request_stats", facts_, sequences) : text;
  };
  if (status s = refuse_once("request_stats", problem); !s.ok()) return s;
  if (!immediate && stats_report_.sent()) return {};
  detail::show_stats_phase const show{
      {ledger_, stage(sequences), nullptr}, arrays_.workspace.stats, arrays_.stats};
  status const s = kvmeld::launch_all(executor_, "request_stats", [&] { launch(show); });
  if (!s.ok()) return s;
  std::size_t const bytes = stats_.size() * sizeof(cache_stats);
  if constexpr (immediate) {
    std::memcpy(stats_.data(), arrays_.stats, bytes);
  } else {
    stats_report_.send(executor_, arrays_.stats, bytes);
  }
  return {};
}

template <class E, class P, class K, class V> bool merged_cache<E, P, K, V>::stats_ready() {
  if constexpr (immediate) {
    return true;
  } else {
    if (!stats_report_.arrived(executor_)) return false;
    std::memcpy(stats_.data(), stats_report_.data(), stats_.size() * sizeof(cache_stats));
    return true;
  }
}

/// What arrived last for a track. What was never asked for arrives as zeros.
template <class E, class P, class K, class V> cache_stats merged_cache<E, P, K, V>::stats_of(track t) const {
  cache_stats const& s = stats_[t.index];
  bool const asked = s.tokens != 0 || s.held != 0 || s.mass_retained_in_all != 0.0f;
  return asked ? s : cache_stats{};
}

template <class E, class P, class K, class V>
cache_stats merged_cache<E, P, K, V>::stats(std::uint32_t layer, std::uint32_t sequence,
                                            std::uint32_t kv_head) const {
  if (!within("stats", sequence, layer, kv_head) || !raise(no_stats("stats")).ok()) return {};
  return stats_of(make_track(sizes_.extent, layer, sequence, kv_head));
}

template <class E, class P, class K, class V>
stats_sum merged_cache<E, P, K, V>::stats(std::uint32_t sequence) const {
  stats_sum sum;
  if (!within("stats", sequence) || !raise(no_stats("stats")).ok()) return sum;
  for_tracks(sequence, [&](track t) { sum += stats_sum(stats_of(t)); });
  return sum;
}

// ---- saving -------------------------------------------------------------------------------------

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::save_problem(std::uint32_t sequence) const {
  return refuse_once("save", [&] { return check_calls::is_open("save", facts_, {sequence}); });
}
template <class E, class P, class K, class V>
std::size_t merged_cache<E, P, K, V>::saved_bytes(std::uint32_t sequence) const {
  return save_problem(sequence).ok() ? saved::bytes_of(readable().ledger, sequence, policy_name_) : 0;
}
template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::save(std::uint32_t sequence, span<std::byte> out) const {
  if (status s = save_problem(sequence); !s.ok()) return s;
  return raise(saved::save(readable().ledger, sequence, policy_name_, out));
}
template <class E, class P, class K, class V>
std::vector<std::byte> merged_cache<E, P, K, V>::save(std::uint32_t sequence) const {
  if (!save_problem(sequence).ok()) return {};
  return saved::save(readable().ledger, sequence, policy_name_);
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::resume(std::uint32_t sequence, span<std::byte const> from) {
  auto const problem = [&] { return saved::problem(facts_, sequence, from, policy_name_); };
  if (status s = refuse_once("resume", problem); !s.ok()) return s;
  detail::readable_ledger const to = readable();
  work_list const work = stage({&sequence, 1});
  auto const launches = [&] {
    if (arrays_.workspace.stats != nullptr) launch(first_stats({ledger_, work, nullptr}));
  };
  if (status s = make_room(executor_, "resume", launches); !s.ok()) return s;
  saved::resume(to.ledger, sequence, from, policy_name_);
  if (!to.memory.empty()) executor_.upload(memory_.data(), to.memory.data(), to.memory.size());
  if constexpr (!immediate) mirror_.read(to.ledger, sequence);
  launches();
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
