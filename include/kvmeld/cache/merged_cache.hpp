// The cache: an engine's K and V, the ledger beside them, and a policy, as one value.
#pragma once

#include <kvmeld/apply/print_plan.hpp>
#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/cache_ref.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/check_policy.hpp>
#include <kvmeld/cache/check_sequences.hpp>
#include <kvmeld/cache/compress.hpp>
#include <kvmeld/cache/fork.hpp>
#include <kvmeld/cache/ledger_readings.hpp>
#include <kvmeld/cache/length_bounds.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/cache/save.hpp>
#include <kvmeld/cache/sequences.hpp>
#include <kvmeld/cache/shared_ref.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/queries.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/score/observe.hpp>
#include <kvmeld/score/observe_shared.hpp>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A thin bundle of executor, policy, ledger and workspace over K and V, which the engine owns and this never frees.
/// Construction allocates ledger and workspace; later calls nothing besides the host executor's scratch, which grows to
/// the largest phase once. `apply` validates the plan on the host, with a few bytes per entry of one track. Copies are
/// deep in the ledger and share K and V: `rebind` the copy to a copy of the tensors.
/// Calls refuse bad arguments by throwing kvmeld::invalid_argument, or where exceptions are off by returning a status
/// with the same text; a refused call leaves the cache as it was.
template <class Executor, class Policy, class Keys, class Values>
class merged_cache : public ledger_readings {
public:
  using policy_type = Policy;
  static constexpr bool shares = shares_entries<typename Policy::merge_type>::value;
  /// shared_ref for policies that share entries (EMS), else cache_ref.
  using ref_type = std::conditional_t<shares, shared_ref<Keys, Values>, cache_ref<Keys, Values>>;

  merged_cache(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : executor_(std::move(executor)), policy_(policy), tensors_(tensors), sizes_(sizes) {
    require_layout<Keys>();
    require_layout<Values>();
    require_policy<typename Policy::score_type, typename Policy::select_type, typename Policy::identify_type,
                   typename Policy::merge_type>();
    construction_ = report(construction_problem(policy_, tensors_, sizes_));
    if (!construction_.ok()) return;
    if (sizes_.wave_tracks == 0) sizes_.wave_tracks = 2 * executor_.workers();
    std::uint32_t const scope = tracks_per_plan(sizes_.scope, sizes_.extent);
    sizes_.wave_tracks = min_of(sizes_.wave_tracks, sizes_.extent.tracks());
    sizes_.wave_tracks = max_of(scope, sizes_.wave_tracks / scope * scope);
    arena sizing;
    carve_cache(sizing, sizes_, policy_.score.channels());
    memory_ = executor_.allocate(sizing.bytes());
    if (memory_.data() == nullptr) {
      construction_ = report(message("merged_cache: the executor has no ", sizing.bytes(), " bytes"));
      return;
    }
    executor_.clear(memory_.data(), memory_.size());
    known_ = known_state(sizes_.extent);
    planned_.reserve(sizes_.extent.sequences);
    bind_memory();
    policy_name_ = name_of_policy(policy_);
  }
  merged_cache(merged_cache const& other)
      : ledger_readings(other),
        executor_(other.executor_),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(other.memory_),
        policy_name_(other.policy_name_),
        planned_(other.planned_) {
    if (construction_.ok()) bind_memory();
  }
  merged_cache(merged_cache&& other)
      : ledger_readings(std::move(other)),
        executor_(std::move(other.executor_)),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(std::move(other.memory_)),
        policy_name_(std::move(other.policy_name_)),
        planned_(std::move(other.planned_)) {
    if (construction_.ok()) bind_memory();
    other.ledger_ = other.facts_ = {};
    other.construction_ = status("the cache was moved from; use the one it was moved to");
  }
  merged_cache& operator=(merged_cache other) noexcept {
    executor_ = std::move(other.executor_);
    policy_ = other.policy_;
    tensors_ = other.tensors_;
    sizes_ = other.sizes_;
    memory_ = std::move(other.memory_);
    policy_name_ = std::move(other.policy_name_);
    planned_ = std::move(other.planned_);
    ledger_readings::operator=(std::move(other));
    if (construction_.ok()) bind_memory();
    return *this;
  }

  /// Starts a sequence whose first `tokens_cached` tokens lie in K and V already (0: none), with degree 1 and their
  /// index as position. `frozen` of them are shared with others: never written, never moved. `id` keys random draws.
  status open(std::uint32_t slot, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              std::uint32_t id = 0) {
    if (status s = refuse([&] { return check_calls::open(facts_, slot, tokens_cached, frozen); }); !s.ok())
      return s;
    forget_plan_of(slot);
    launch(open_phase{{ledger_, stage({&slot, 1}), executor_.stage({&tokens_cached, 1})}, frozen, id});
    known_.open(slot, tokens_cached, frozen, id);
    return {};
  }

  /// Opens `into` as a copy of `from`, which has nothing pending: entries, scores, counters, tokens seen. The first
  /// `frozen` entries of every track are shared between the two by the engine (0: none) and frozen in both from now on;
  /// of the rows behind them, those of `how`. `id` keys the copy's random draws.
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t id = 0, std::uint32_t frozen = 0,
              fork_rows how = fork_rows::copy) {
    if (status s = refuse([&] { return check_calls::fork(facts_, from, into, frozen, how, tensors_); });
        !s.ok())
      return s;
    forget_plan_of(from);
    forget_plan_of(into);
    track_source const source{sizes_.extent, stage({&from, 1})};
    if (how == fork_rows::copy) {
      launch(fork_rows_phase<Keys>{tensors_.keys, ledger_, into, frozen}, source);
      launch(fork_rows_phase<Values>{tensors_.values, ledger_, into, frozen}, source);
    }
    launch(fork_phase{ledger_, into, frozen, id}, source);
    known_.fork(from, into, frozen, id);
    return {};
  }

  /// Goes back to the first `tokens` tokens seen: forgets the entries of later ones. Exact, and therefore refused below
  /// compressed_at(slot), frozen entries and pending ones. Scores of what stays keep what they have observed, forgotten
  /// queries included, and findings stay.
  status truncate(std::uint32_t slot, std::uint32_t tokens) {
    if (status s = refuse([&] { return check_calls::truncate(facts_, slot, tokens); }); !s.ok()) return s;
    forget_plan_of(slot);
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&tokens, 1})};
    launch(truncate_phase{all});
    launch(truncate_settle_phase{all});
    known_.truncate(slot, tokens);
    return {};
  }

  /// Freezes the first `length` entries of every track, no more and no less: when their pages become shared, or are so no
  /// longer. Ragged sharing is for layouts with `writable`.
  status freeze(std::uint32_t slot, std::uint32_t length) {
    if (status s = refuse([&] { return check_calls::freeze(facts_, slot, length); }); !s.ok()) return s;
    forget_plan_of(slot);
    launch(freeze_phase{{ledger_, stage({&slot, 1}), executor_.stage({&length, 1})}});
    known_.freeze(slot, length);
    return {};
  }

  /// Ends a sequence; its slot can be opened again.
  status close(std::uint32_t slot) {
    if (status s = refuse([&] { return check_calls::is_open("close", facts_, {slot}); }); !s.ok()) return s;
    forget_plan_of(slot);
    launch(close_phase{{ledger_, stage({&slot, 1}), nullptr}});
    known_.close(slot);
    return {};
  }

  /// Adds `counts[i]` pending entries to every track of sequence `slots[i]`. The engine writes their K and V to the
  /// slots below ref().length(track), before or after this call, before attention reads them.
  status append(index_list slots, index_list counts) {
    if (status s = refuse([&] { return check_calls::append(facts_, slots, counts); }); !s.ok()) return s;
    sequence_phase const all{ledger_, stage(slots), executor_.stage(counts)};
    launch(append_phase{all});
    launch(append_settle_phase{all});
    for (std::size_t i = 0; i < slots.size(); ++i) known_.append(slots[i], counts[i]);
    // Where lengths cannot be looked at, apply could not tell that the plan is of the past.
    if constexpr (!is_immediate<Executor>::value) {
      for (std::uint32_t slot : slots) forget_plan_of(slot);
    }
    return {};
  }

  /// Keeps the first `accepted[i]` pending entries of sequence `slots[i]` and drops the rest (rejected drafts).
  status commit(index_list slots, index_list accepted) {
    if (status s = refuse([&] { return check_calls::commit(facts_, slots, accepted); }); !s.ok()) return s;
    sequence_phase const all{ledger_, stage(slots), executor_.stage(accepted)};
    launch(commit_phase{all});
    launch(commit_settle_phase{all});
    for (std::size_t i = 0; i < slots.size(); ++i) known_.commit(slots[i], accepted[i]);
    return {};
  }

  /// Feeds the score with the attention of the last `batch.queries[i]` committed tokens of each sequence, recomputed
  /// from their queries [.., query_heads, key_dim] and the log-sum-exps (natural log, as `attention::extend` gives
  /// them). Without a score that needs attention it does nothing. Call once per layer and block of queries.
  template <class Q>
  status observe(query_batch const& batch, head_rows<Q> query, head_rows<float const> lse,
                 attention_params const& params = {}) {
    using score_type = typename Policy::score_type;
    bool const null = query.data == nullptr || lse.data == nullptr;
    if (status s = refuse([&] { return check_calls::observe(facts_, batch, params, null); }); !s.ok())
      return s;
    if constexpr (score_type::needs_attention) {
      if (!traits_of_score(policy_.score).needs_attention) return {};
      batch_source const source{sizes_.extent, batch.staged(executor_)};
      using phase_type = std::conditional_t<shares, observe_shared_phase<score_type, Keys, Q>,
                                            observe_queries_phase<score_type, Keys, Q>>;
      observe_with(phase_type{{policy_.score, ledger_, source}, tensors_.keys, params, query, lse}, source,
                   batch);
    }
    return {};
  }

  /// The same from probabilities the engine has: rows [.., query_heads] of at least as many slots as entries are held;
  /// where entries are shared, members follow the slots.
  template <class T>
  status observe_rows(query_batch const& batch, head_rows<T> rows, attention_params const& params = {}) {
    using score_type = typename Policy::score_type;
    bool const null = rows.data == nullptr;
    if (status s = refuse([&] { return check_calls::observe(facts_, batch, params, null); }); !s.ok())
      return s;
    if constexpr (score_type::needs_attention) {
      if (!traits_of_score(policy_.score).needs_attention) return {};
      batch_source const source{sizes_.extent, batch.staged(executor_)};
      observe_with(observe_rows_phase<score_type, T, shares>{{policy_.score, ledger_, source}, params, rows},
                   source, batch);
    }
    return {};
  }

  /// Plans one round for all layers and heads of `slots` without touching the cache; needs limits.whole_plan.
  /// A policy of several rounds (Chelsea) plans its next one: repeat plan + apply, or call compress.
  status plan(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    if (status s = refuse([&] { return plan_problem_for(slots, allowed, true); }); !s.ok()) return s;
    planned_.assign(slots.begin(), slots.end());
    executor_.upload(arrays_.planned, planned_.data(), planned_.size() * sizeof(std::uint32_t));
    kvmeld::plan(executor_, policy_, tensors_, ledger_, plan_work(arrays_.planned, planned_.size()),
                 allowed.staged(executor_, sizes_.extent), fallback, arrays_.workspace);
    return {};
  }

  /// Applies the plan made last. Refuses a plan that the cache has outgrown, and where the host may look at it an edited
  /// one that is not sound.
  status apply() {
    if (status s = refuse([&] { return apply_problem(); }); !s.ok()) return s;
    kvmeld::apply(executor_, tensors_, ledger_, plan_work(arrays_.planned, planned_.size()),
                  arrays_.workspace);
    for (std::uint32_t slot : planned_) {
      known_.lose(slot);  // the plan may have been edited
      known_.compressed(slot);
      if constexpr (is_immediate<Executor>::value) known_.read(ledger_, slot);
    }
    planned_.clear();
    return {};
  }

  /// Shrinks all layers and heads of `slots` to their budgets, in place, with as many rounds as it takes.
  status compress(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    if (status s = refuse([&] { return plan_problem_for(slots, allowed, false); }); !s.ok()) return s;
    planned_.clear();
    std::uint32_t rounds = is_immediate<Executor>::value ? 0xffffffffu : 0;  // or as many as it takes
    for (std::uint32_t slot : slots) {
      bool changes = false;
      for_tracks(slot, [&](track t) {
        std::uint32_t const before = known_.at(t);
        std::uint32_t const limit = allowed.resolve(t, facts_.seen[slot]);
        if (before > limit) {
          changes = true;
          rounds = max_of(rounds, most_rounds(policy_.identify, before, limit));
        }
        known_.lower(t, track_bound_after(t, allowed, fallback));
      });
      if (changes) known_.compressed(slot);
      if (!exact(fallback)) known_.lose(slot);
    }
    work_list const work = stage(slots);
    kvmeld::compress(executor_, policy_, tensors_, ledger_, plan_work(work.sequences, work.sequence_count),
                     allowed.staged(executor_, sizes_.extent), fallback, arrays_.workspace, rounds);
    if constexpr (is_immediate<Executor>::value) {
      for (std::uint32_t slot : slots) known_.read(ledger_, slot);
    }
    return {};
  }

  /// Lowers the bounds to the real lengths, and brings findings and rounds up to date. Waits where launches are not
  /// immediate; where they are, every compress does it.
  void report_lengths(std::uint32_t slot) {
    if (within("report_lengths", slot)) known_.read(readable().ledger, slot);
  }
  /// Starts Chelsea's schedule again.
  void reset_rounds(std::uint32_t slot) {
    if (!within("reset_rounds", slot)) return;
    launch(reset_rounds_phase{{ledger_, stage({&slot, 1}), nullptr}});
    known_.reset_rounds(slot);
  }

  /// Bytes that `save` writes for a sequence: everything the ledger knows about it, pending entries included, in a
  /// format with a version and a checksum. K and V rows and block tables are the engine's to save. Waits, as `save` and
  /// `resume` do, where launches are not immediate.
  std::size_t saved_bytes(std::uint32_t slot) const {
    if (!refuse([&] { return check_calls::is_open("save", facts_, {slot}); }).ok()) return 0;
    return saved::bytes_of(readable().ledger, slot, policy_name_);
  }
  /// Fills the first saved_bytes(slot) bytes of `out`.
  status save(std::uint32_t slot, span<std::byte> out) const {
    if (status s = refuse([&] { return check_calls::is_open("save", facts_, {slot}); }); !s.ok()) return s;
    return report(saved::save(readable().ledger, slot, policy_name_, out));
  }
  std::vector<std::byte> save(std::uint32_t slot) const {
    if (!refuse([&] { return check_calls::is_open("save", facts_, {slot}); }).ok()) return {};
    return saved::save(readable().ledger, slot, policy_name_);
  }
  /// Opens `slot` as the sequence that was saved, in this or another cache of the same policy, channels and shape; its
  /// capacity and number of sequences may differ. The engine restores K and V rows. Allocates a ledger of one sequence
  /// to look at the bytes before it believes them.
  status resume(std::uint32_t slot, span<std::byte const> from) {
    if (status s = refuse([&] { return saved::problem(facts_, slot, from, policy_name_); }); !s.ok())
      return s;
    readable_ledger const to = readable();
    saved::resume(to.ledger, slot, from, policy_name_);
    if (!to.memory.empty()) executor_.upload(memory_.data(), to.memory.data(), to.memory.size());
    known_.read(to.ledger, slot);
    return {};
  }

  /// True where the host knows the lengths that `compress` leaves: evicting policies, and merging ones that meet their
  /// budget where the fallback evicts what rows of NaN or infinity leave over. Else report_lengths tells.
  bool exact(shortfall fallback = shortfall::report) const { return is_exact(policy_, fallback); }
  /// What length_bound would be after `compress` with this budget.
  std::uint32_t length_after(std::uint32_t slot, budget allowed,
                             shortfall fallback = shortfall::report) const {
    std::uint32_t most = 0;
    if (!within("length_after", slot)) return most;
    for_tracks(slot, [&](track t) { most = max_of(most, track_bound_after(t, allowed, fallback)); });
    return most;
  }

  /// The plan made last, track by track as planned_work() numbers them: in the order (layer, listed sequence, head), or
  /// (listed sequence, layer, head) with plan_scope::group. May be edited before `apply`.
  plan_ref const& current_plan() const { return arrays_.workspace.plan; }
  work_list planned_work() const { return plan_work(planned_.data(), planned_.size()); }
  void print_plan(std::ostream& out) const {
    for (std::uint32_t item = 0; item < planned_work().tracks(sizes_.extent); ++item) {
      kvmeld::print_plan(out, planned_work().at(sizes_.extent, item), arrays_.workspace.plan, item);
    }
  }

  /// What attention and the engine's writes need; see cache_ref.
  ref_type ref() const { return {tensors_.keys, tensors_.values, ledger_}; }
  /// Points the cache at other tensors of the same contents: engines reallocate them and rewrite block tables.
  status rebind(kv<Keys, Values> tensors) {
    if (status s = refuse([&] { return tensors_problem(tensors, sizes_.extent); }); !s.ok()) return s;
    tensors_ = tensors;
    return {};
  }

  Executor& executor() { return executor_; }
  Policy const& policy() const { return policy_; }
  limits const& sizes() const { return sizes_; }
  /// Bytes of ledger and of workspace that construction allocated.
  std::size_t ledger_bytes() const { return arrays_.ledger_bytes; }
  std::size_t workspace_bytes() const { return memory_.size() - arrays_.ledger_bytes; }

private:
  readable_ledger readable() const { return read_ledger(executor_, arrays_, memory_.data(), sizes_); }

  std::string plan_problem_for(index_list slots, budget allowed, bool keeps_plan) const {
    if (keeps_plan && !sizes_.whole_plan) {
      return "plan: limits.whole_plan is false, so there is no memory for a plan that outlives its wave; set "
             "it to "
             "true, or call compress";
    }
    char const* const call = keeps_plan ? "plan" : "compress";
    std::string text = check_calls::compress(call, facts_, slots, allowed, policy_, tensors_);
    if (text.empty()) text = check_calls::scopes(call, facts_, slots, allowed, sizes_.scope, tensors_);
    return text;
  }
  std::uint32_t track_bound_after(track t, budget allowed, shortfall fallback) const {
    return bound_after(policy_, known_.at(t), known_.known(t.sequence),
                       allowed.resolve(t, facts_.seen[t.sequence]), facts_.frozen[t.sequence],
                       is_always_writable<Keys>::value && is_always_writable<Values>::value, fallback);
  }

  std::string apply_problem() const {
    if (planned_.empty()) return "apply: there is no plan; call plan first";
    if constexpr (is_immediate<Executor>::value)
      return check_calls::apply(ledger_, arrays_.workspace.plan, planned_work(), tensors_);
    return {};
  }

  void bind_memory() {
    arena a(memory_.data(), memory_.size());
    arrays_ = carve_cache(a, sizes_, policy_.score.channels());
    ledger_ = arrays_.ledger;
    facts_ = is_immediate<Executor>::value ? ledger_ : known_.view(ledger_);
  }

  /// A plan is for the sequences that were open when it was made.
  void forget_plan_of(std::uint32_t slot) {
    for (std::uint32_t other : planned_) {
      if (other == slot) return planned_.clear();
    }
  }
  work_list plan_work(std::uint32_t const* list, std::size_t sequences) const {
    return {list, static_cast<std::uint32_t>(sequences), sizes_.scope == plan_scope::group};
  }
  // Phases may run when the caller's lists are gone. Lists of one number are those of a call's arguments.
  work_list stage(index_list slots) {
    return {executor_.stage(slots), static_cast<std::uint32_t>(slots.size())};
  }
  template <class Phase> void launch(Phase const& phase) { launch(phase, {sizes_.extent, phase.work}); }
  template <class Phase> void launch(Phase const& phase, track_source const& source) {
    executor_.run(phase, sizes_.extent, source.work.tracks(sizes_.extent), source);
  }
  template <class Phase>
  void observe_with(Phase const& phase, batch_source const& source, query_batch const& batch) {
    executor_.run(phase, sizes_.extent, source.items(), source);
    observed_phase<typename Policy::score_type> const done{policy_.score, ledger_, source};
    executor_.run(done, sizes_.extent, source.items(), source);
    for (std::uint32_t i = 0; i < batch.size(); ++i)
      known_.observe(batch.sequence(i), batch.layer(), batch.queries(i));
  }

  Executor executor_;
  Policy policy_;
  kv<Keys, Values> tensors_;
  limits sizes_;
  typename Executor::memory memory_;
  std::string policy_name_;
  cache_arrays arrays_;
  std::vector<std::uint32_t> planned_;  ///< sequences of the plan made last
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
