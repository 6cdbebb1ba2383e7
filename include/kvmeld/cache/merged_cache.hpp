// The cache: an engine's K and V, the ledger beside them, and a policy, as one value.
#pragma once

#include <kvmeld/apply/print_plan.hpp>
#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/cache_ref.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/check_policy.hpp>
#include <kvmeld/cache/check_sequences.hpp>
#include <kvmeld/cache/compress.hpp>
#include <kvmeld/cache/fork.hpp>
#include <kvmeld/cache/length_bounds.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/cache/saved_sequences.hpp>
#include <kvmeld/cache/sequences.hpp>
#include <kvmeld/cache/shared_ref.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/queries.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/score/observe.hpp>
#include <kvmeld/score/observe_shared.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A thin bundle of executor, policy, ledger and workspace over K and V, which the engine owns and this never frees.
/// Construction allocates the ledger and the workspace; compress, append, commit and observe allocate nothing besides
/// the host executor's scratch, which grows to the largest phase once. `apply` validates the plan on the host, with a
/// few bytes per entry of one track. Copies are deep in the ledger and share K and V: `rebind` the copy to a copy of
/// the tensors.
/// Calls refuse bad arguments by throwing kvmeld::invalid_argument, or where exceptions are off by returning a status
/// with the same text; a refused call leaves the cache as it was.
template <class Executor, class Policy, class Keys, class Values>
class merged_cache : public saved_sequences {
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
    carve(sizing);
    memory_ = executor_.allocate(sizing.bytes());
    std::memset(memory_.data(), 0, memory_.size());
    bind_memory();
    bounds_ = length_bounds(sizes_.extent);
    policy_name_ = name_of_policy(policy_);
  }
  merged_cache(merged_cache const& other)
      : saved_sequences(other),
        executor_(other.executor_),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(other.memory_),
        planned_(other.planned_) {
    if (construction_.ok()) bind_memory();
  }
  merged_cache(merged_cache&& other)
      : saved_sequences(std::move(other)),
        executor_(std::move(other.executor_)),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(std::move(other.memory_)),
        planned_(other.planned_) {
    if (construction_.ok()) bind_memory();
    other.ledger_ = {};
    other.construction_ = status("the cache was moved from; use the one it was moved to");
  }
  merged_cache& operator=(merged_cache other) noexcept {
    executor_ = std::move(other.executor_);
    policy_ = other.policy_;
    tensors_ = other.tensors_;
    sizes_ = other.sizes_;
    memory_ = std::move(other.memory_);
    planned_ = other.planned_;
    saved_sequences::operator=(std::move(other));
    if (construction_.ok()) bind_memory();
    return *this;
  }

  /// Starts a sequence whose first `tokens_cached` tokens lie in K and V already (0: none), with degree 1 and their
  /// index as position. `frozen` of them are shared with others: never written, never moved. `id` keys random draws.
  status open(std::uint32_t slot, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              std::uint32_t id = 0) {
    if (status s = refuse([&] { return check_calls::open(ledger_, slot, tokens_cached, frozen); }); !s.ok())
      return s;
    forget_plan_of(slot);
    lists_.sequences[0] = slot;
    lists_.counts[0] = tokens_cached;
    launch(open_phase{{ledger_, work(1), lists_.counts}, frozen, id}, 1);
    bounds_.open(slot, tokens_cached);
    return {};
  }

  /// Opens `into` as a copy of `from`, which has nothing pending: entries, scores, counters, tokens seen. The first
  /// `frozen` entries of every track are shared between the two by the engine (0: none) and frozen in both from now on;
  /// of the rows behind them, those of `how`. `id` keys the copy's random draws.
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t id = 0, std::uint32_t frozen = 0,
              fork_rows how = fork_rows::copy) {
    if (status s = refuse([&] { return check_calls::fork(ledger_, from, into, frozen, how, tensors_); });
        !s.ok())
      return s;
    forget_plan_of(from);
    forget_plan_of(into);
    lists_.sequences[0] = from;
    if (how == fork_rows::copy) {
      launch(fork_rows_phase<Keys>{tensors_.keys, ledger_, into, frozen}, 1);
      launch(fork_rows_phase<Values>{tensors_.values, ledger_, into, frozen}, 1);
    }
    launch(fork_phase{ledger_, into, frozen, id}, 1);
    bounds_.fork(from, into);
    return {};
  }

  /// Goes back to the first `tokens` tokens seen: forgets the entries of later ones. Exact, and therefore refused below
  /// compressed_at(slot), frozen entries and pending ones. Scores of what stays keep what they have observed, forgotten
  /// queries included, and findings stay.
  status truncate(std::uint32_t slot, std::uint32_t tokens) {
    if (status s = refuse([&] { return check_calls::truncate(ledger_, slot, tokens); }); !s.ok()) return s;
    forget_plan_of(slot);
    bounds_.shorten(slot, ledger_.seen[slot] - tokens);
    lists_.sequences[0] = slot;
    lists_.counts[0] = tokens;
    launch(truncate_phase{{ledger_, work(1), lists_.counts}}, 1);
    launch(truncate_settle_phase{{ledger_, work(1), lists_.counts}}, 1);
    return {};
  }

  /// Freezes the first `length` entries of every track, no more and no less: when their pages become shared, or are so no
  /// longer. Ragged sharing is for layouts with `writable`.
  status freeze(std::uint32_t slot, std::uint32_t length) {
    if (status s = refuse([&] { return check_calls::freeze(ledger_, slot, length); }); !s.ok()) return s;
    forget_plan_of(slot);
    ledger_.frozen[slot] = length;
    return {};
  }

  /// Ends a sequence; its slot can be opened again.
  status close(std::uint32_t slot) {
    if (status s = refuse([&] { return check_calls::is_open("close", ledger_, {slot}); }); !s.ok()) return s;
    forget_plan_of(slot);
    ledger_.is_open[slot] = 0;
    return {};
  }

  /// Adds `counts[i]` pending entries to every track of sequence `slots[i]`. The engine writes their K and V to the
  /// slots below ref().length(track), before or after this call, before attention reads them.
  status append(index_list slots, index_list counts) {
    if (status s = refuse([&] { return check_calls::append(ledger_, slots, counts); }); !s.ok()) return s;
    take(slots, counts);
    launch(append_phase{{ledger_, work(slots.size()), lists_.counts}}, slots.size());
    launch(append_settle_phase{{ledger_, work(slots.size()), lists_.counts}}, slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) bounds_.append(slots[i], counts[i]);
    return {};
  }

  /// Keeps the first `accepted[i]` pending entries of sequence `slots[i]` and drops the rest (rejected drafts).
  status commit(index_list slots, index_list accepted) {
    if (status s = refuse([&] { return check_calls::commit(ledger_, slots, accepted); }); !s.ok()) return s;
    take(slots, accepted);
    launch(commit_phase{{ledger_, work(slots.size()), lists_.counts}}, slots.size());
    launch(commit_settle_phase{{ledger_, work(slots.size()), lists_.counts}}, slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) bounds_.commit(slots[i], accepted[i]);
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
    if (status s = refuse([&] { return check_calls::observe(ledger_, batch, params, null); }); !s.ok())
      return s;
    if constexpr (score_type::needs_attention) {
      if (!traits_of_score(policy_.score).needs_attention) return {};
      batch_source const source{sizes_.extent, batch};
      using phase_type = std::conditional_t<shares, observe_shared_phase<score_type, Keys, Q>,
                                            observe_queries_phase<score_type, Keys, Q>>;
      observe_with(phase_type{{policy_.score, ledger_, source}, tensors_.keys, params, query, lse}, source);
    }
    return {};
  }

  /// The same from probabilities the engine has: rows [.., query_heads] of at least as many slots as entries are held;
  /// where entries are shared, members follow the slots.
  template <class T>
  status observe_rows(query_batch const& batch, head_rows<T> rows, attention_params const& params = {}) {
    using score_type = typename Policy::score_type;
    bool const null = rows.data == nullptr;
    if (status s = refuse([&] { return check_calls::observe(ledger_, batch, params, null); }); !s.ok())
      return s;
    if constexpr (score_type::needs_attention) {
      if (!traits_of_score(policy_.score).needs_attention) return {};
      batch_source const source{sizes_.extent, batch};
      observe_with(observe_rows_phase<score_type, T, shares>{{policy_.score, ledger_, source}, params, rows},
                   source);
    }
    return {};
  }

  /// Plans one round for all layers and heads of `slots` without touching the cache; needs limits.whole_plan.
  /// A policy of several rounds (Chelsea) plans its next one: repeat plan + apply, or call compress.
  status plan(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    if (status s = refuse([&] { return plan_problem_for(slots, allowed, true); }); !s.ok()) return s;
    take_slots(slots);
    kvmeld::plan(executor_, policy_, tensors_, ledger_, plan_work(lists_.sequences, slots.size()), allowed,
                 fallback, workspace_);
    planned_ = static_cast<std::uint32_t>(slots.size());
    return {};
  }

  /// Applies the plan made last. Refuses a plan that the cache has outgrown, and an edited one that is not sound.
  status apply() {
    if (status s =
            refuse([&] { return check_calls::apply(ledger_, workspace_.plan, planned_work(), tensors_); });
        !s.ok())
      return s;
    kvmeld::apply(executor_, tensors_, ledger_, planned_work(), workspace_);
    for (std::uint32_t i = 0; i < planned_; ++i) {
      bounds_.lose(lists_.planned[i]);  // the plan may have been edited
      if constexpr (is_immediate<Executor>::value) report_lengths(lists_.planned[i]);
    }
    planned_ = 0;
    return {};
  }

  /// Shrinks all layers and heads of `slots` to their budgets, in place, with as many rounds as it takes.
  status compress(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    if (status s = refuse([&] { return plan_problem_for(slots, allowed, false); }); !s.ok()) return s;
    take_slots(slots);
    planned_ = 0;
    for (std::uint32_t slot : slots) {
      for_tracks(slot, [&](track t) { bounds_.lower(t, track_bound_after(t, allowed, fallback)); });
      if (!exact(fallback)) bounds_.lose(slot);
    }
    kvmeld::compress(executor_, policy_, tensors_, ledger_, plan_work(lists_.sequences, slots.size()),
                     allowed, fallback, workspace_);
    if constexpr (is_immediate<Executor>::value) {
      for (std::uint32_t slot : slots) report_lengths(slot);
    }
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
  plan_ref const& current_plan() const { return workspace_.plan; }
  work_list planned_work() const { return plan_work(lists_.planned, planned_); }
  void print_plan(std::ostream& out) const {
    for (std::uint32_t item = 0; item < planned_work().tracks(sizes_.extent); ++item) {
      kvmeld::print_plan(out, planned_work().at(sizes_.extent, item), workspace_.plan, item);
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
  std::size_t ledger_bytes() const { return ledger_bytes_; }
  std::size_t workspace_bytes() const { return memory_.size() - ledger_bytes_; }

private:
  struct argument_lists {
    std::uint32_t*
        sequences;  ///< copies of the caller's lists: phases read them after the call's arguments are gone
    std::uint32_t* counts;
    std::uint32_t* planned;
  };

  std::string plan_problem_for(index_list slots, budget allowed, bool keeps_plan) const {
    if (keeps_plan && !sizes_.whole_plan) {
      return "plan: limits.whole_plan is false, so there is no memory for a plan that outlives its wave; set "
             "it to "
             "true, or call compress";
    }
    char const* const call = keeps_plan ? "plan" : "compress";
    std::string text = check_calls::compress(call, ledger_, slots, allowed, policy_, tensors_);
    if (text.empty()) text = check_calls::scopes(call, ledger_, slots, allowed, sizes_.scope, tensors_);
    return text;
  }
  std::uint32_t track_bound_after(track t, budget allowed, shortfall fallback) const {
    return bound_after(policy_, bounds_.at(t), bounds_.known(t.sequence),
                       allowed.resolve(t, ledger_.seen[t.sequence]), ledger_.frozen[t.sequence],
                       is_always_writable<Keys>::value && is_always_writable<Values>::value, fallback);
  }

  void carve(arena& a) {
    ledger_ = carve_ledger(a, sizes_.extent, policy_.score.channels(), sizes_.members);
    ledger_.first_layer = sizes_.first_layer;
    ledger_.first_kv_head = sizes_.first_kv_head;
    ledger_.ignore_degree = sizes_.ignore_degree;
    ledger_bytes_ = a.bytes();
    for (auto* list : {&lists_.sequences, &lists_.counts, &lists_.planned}) {
      *list = a.take<std::uint32_t>(sizes_.extent.sequences);
    }
    std::uint32_t const plans = sizes_.whole_plan ? sizes_.extent.tracks() : sizes_.wave_tracks;
    workspace_ = carve_workspace(a, sizes_.extent, sizes_.wave_tracks, plans, sizes_.members);
    workspace_.wave.scope = tracks_per_plan(sizes_.scope, sizes_.extent);
  }
  void bind_memory() {
    arena a(memory_.data(), memory_.size());
    carve(a);
  }

  /// A plan is for the sequences that were open when it was made.
  void forget_plan_of(std::uint32_t slot) {
    for (std::uint32_t i = 0; i < planned_; ++i) {
      if (lists_.planned[i] == slot) planned_ = 0;
    }
  }
  work_list plan_work(std::uint32_t const* list, std::size_t sequences) const {
    return {list, static_cast<std::uint32_t>(sequences), sizes_.scope == plan_scope::group};
  }
  work_list work(std::size_t sequences) const {
    return {lists_.sequences, static_cast<std::uint32_t>(sequences)};
  }
  void take(index_list slots, index_list counts) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      lists_.sequences[i] = slots[i];
      lists_.counts[i] = counts[i];
    }
  }
  void take_slots(index_list slots) {
    for (std::size_t i = 0; i < slots.size(); ++i) lists_.sequences[i] = lists_.planned[i] = slots[i];
  }
  template <class Phase> void launch(Phase const& phase, std::size_t sequences) {
    track_source const source{sizes_.extent, work(sequences)};
    executor_.run(phase, sizes_.extent, source.work.tracks(sizes_.extent), source);
  }
  template <class Phase> void observe_with(Phase const& phase, batch_source const& source) {
    executor_.run(phase, sizes_.extent, source.items(), source);
    observed_phase<typename Policy::score_type> const done{policy_.score, ledger_, source};
    executor_.run(done, sizes_.extent, source.items(), source);
  }

  Executor executor_;
  Policy policy_;
  kv<Keys, Values> tensors_;
  limits sizes_;
  typename Executor::memory memory_;
  argument_lists lists_{};
  workspace_ref workspace_{};
  std::size_t ledger_bytes_ = 0;
  std::uint32_t planned_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
