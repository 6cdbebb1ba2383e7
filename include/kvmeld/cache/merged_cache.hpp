// The cache: an engine's K and V, the ledger beside them, and a policy, as one value.
#pragma once

#include <kvmeld/apply/print_plan.hpp>
#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/attention/shared_ref.hpp>
#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/check_split.hpp>
#include <kvmeld/cache/forecast.hpp>
#include <kvmeld/cache/host_mirror.hpp>
#include <kvmeld/cache/ledger_readings.hpp>
#include <kvmeld/cache/plan_reader.hpp>
#include <kvmeld/cache/report.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/policy/part_traits.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/probes.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/rounds/compress.hpp>
#include <kvmeld/rounds/count_stats.hpp>
#include <kvmeld/rounds/padding.hpp>
#include <kvmeld/save/save.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/observe.hpp>
#include <kvmeld/score/observe_logits.hpp>
#include <kvmeld/score/observe_shared.hpp>
#include <kvmeld/sequences/adopt.hpp>
#include <kvmeld/sequences/append.hpp>
#include <kvmeld/sequences/close.hpp>
#include <kvmeld/sequences/commit.hpp>
#include <kvmeld/sequences/fork.hpp>
#include <kvmeld/sequences/freeze.hpp>
#include <kvmeld/sequences/open.hpp>
#include <kvmeld/sequences/operation.hpp>
#include <kvmeld/sequences/set_rounds.hpp>
#include <kvmeld/sequences/shift.hpp>
#include <kvmeld/sequences/truncate.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A thin bundle of executor, policy, ledger and workspace over K and V. The engine owns K and V; the cache
/// never frees them.
///
/// *Memory.* Construction allocates ledger and workspace. Later calls allocate nothing, with three
/// exceptions: an executor's scratch grows to the largest phase once; the first report, the first request of
/// figures and the first recorded compression take host memory; and `apply` validates the plan on the host
/// with a few bytes per entry of one track.
///
/// *Refusals.* A call refuses bad arguments by throwing kvmeld::invalid_argument, or, if exceptions are off,
/// by returning a status with the same text. A refused call leaves the cache as it was. So does a call that
/// finds no memory: each call makes room for all its launches before the first one, and the host's view
/// (lengths, bounds) changes after the last one is enqueued. Missing memory of the executor is a refusal;
/// missing memory of the host's heap is std::bad_alloc.
///
/// *Order.* On the host a call has done its work when it returns. On devices calls enqueue launches in order
/// on the executor's stream, and do not wait unless they say so. Lists of numbers may change when a call
/// returns; arrays of the executor that a call is given (queries, rows, budgets) have to stay until its
/// launches have run.
///
/// *Threads.* One call at a time: a cache does not lock. Caches that share no executor are independent of
/// each other.
///
/// Move-only: `clone` copies. Moving allocates nothing; the cache that was moved from refuses its calls.
template <class Executor, class Policy, class Keys, class Values>
class merged_cache : public ledger_readings {
  using keys_used = layout_or_stand_in<Keys>;
  using values_used = layout_or_stand_in<Values>;
  using tensors_used = kv<keys_used, values_used>;

public:
  /// Of the policy.
  using policy_type = policy_or_stand_in<Policy, Keys, Values>;
  /// Whether entries have members with norms of their own (EMS).
  static constexpr bool shares = shares_entries<typename policy_type::merge_type>::value;
  /// shared_ref for policies that share entries (EMS), else cache_ref.
  using ref_type =
      std::conditional_t<shares, shared_ref<keys_used, values_used>, cache_ref<keys_used, values_used>>;

  /// Allocates ledger and workspace, and refuses by name what does not go together: tensors, policy and
  /// sizes.
  merged_cache(Executor executor, Policy policy, kv<Keys, Values> tensors, cache_options sizes);
  /// Takes everything over; calls of `other` are refused from then on.
  merged_cache(merged_cache&& other) noexcept;
  /// The same; what this cache held before is gone.
  merged_cache& operator=(merged_cache&& other) noexcept;
  /// A copy over `tensors`, which hold a copy of this cache's K and V, or are those of this cache if only one
  /// of the two is used from now on. The ledger, the plan made last and the executor are copied; reports on
  /// their way are not. Allocates as construction does. Waits if launches are not immediate.
  merged_cache clone(kv<Keys, Values> tensors) const;

  // ---- what engines read ------------------------------------------------------------------------

  /// What attention and the engine's writes need; see cache_ref.
  ref_type ref() const { return {tensors_.keys, tensors_.values, ledger_}; }
  /// Points the cache at other tensors of the same contents: engines reallocate them and rewrite block
  /// tables.
  status rebind(tensors_used tensors) {
    auto const problem = [&] { return refusal_within("rebind", tensors_problem(tensors, sizes_.extent)); };
    if (status s = refuse(problem); !s.ok()) return s;
    tensors_ = tensors;
    return {};
  }
  /// The cache's own copy of the executor: calls and attention go to it.
  Executor& executor() { return executor_; }
  /// As it was given; set_guard changes its guard.
  policy_type const& policy() const { return policy_; }
  /// As they were given, wave_tracks filled in.
  cache_options const& sizes() const { return sizes_; }
  /// Bytes of ledger that construction allocated.
  std::size_t ledger_bytes() const { return arrays_.ledger_bytes; }
  /// Bytes of the workspace: all that construction allocated besides the ledger.
  std::size_t workspace_bytes() const { return memory_.size() - arrays_.ledger_bytes; }

  // ---- sequences --------------------------------------------------------------------------------

  /// Starts a sequence whose first `tokens_cached` tokens lie in K and V already (0: none), with degree 1 and
  /// their index as position. `frozen` of them are shared with others: never written, never moved. `id` keys
  /// random draws.
  status open(std::uint32_t sequence, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              sequence_id id = {}) {
    return operate(sequences::open{frozen, static_cast<std::uint32_t>(id)}, {sequence}, {tokens_cached});
  }
  /// Ends a sequence; its number can be opened again.
  status close(std::uint32_t sequence) { return operate(sequences::close{}, {sequence}, {}); }

  /// Adds `counts[i]` pending entries to every track of `sequences[i]`. The engine writes their K and V
  /// to the slots below ref().length(track), before or after this call, before attention reads them.
  status append(index_list sequences, index_list counts) {
    status s = operate(sequences::append{}, sequences, counts);
    // If lengths cannot be looked at, apply could not tell that the plan is of the past.
    if (!is_immediate<Executor>::value && s.ok()) forget_plan_of(sequences);
    return s;
  }
  /// As append(sequences, counts), but first compresses the sequences that have no room for their entries:
  /// those whose length_bound and count exceed the capacity. They shrink to `full.shrink_to`, as `compress`
  /// would do it. Nothing is compressed unless the compression is sure to make room, which the host tells by
  /// length_after; the call is refused otherwise and the cache stays as it was. Sequences that have no room
  /// must have no pending entries. If launches are not immediate, bounds may be above the lengths: a sequence
  /// is then compressed before it is really full. An attention bias that was written out is stale if
  /// length_bound has become less. Cannot be recorded.
  status append(index_list sequences, index_list counts, when_full const& full);
  /// Keeps the first `accepted[i]` pending entries of `sequences[i]` and drops the rest (rejected
  /// drafts).
  status commit(index_list sequences, index_list accepted) {
    return operate(sequences::commit{}, sequences, accepted);
  }
  /// Goes back to the first `tokens` tokens seen: forgets the entries of later ones. Exact, and therefore
  /// refused below compressed_at(sequence), frozen entries and pending ones. Scores of what stays keep what
  /// they have observed, forgotten queries included, and warnings stay.
  status truncate(std::uint32_t sequence, std::uint32_t tokens) {
    return operate(sequences::truncate{}, {sequence}, {tokens});
  }
  /// Freezes the first `length` entries of every track, no more and no less: when their pages become shared,
  /// or are so no longer. Ragged sharing is for layouts with `writable`.
  status freeze(std::uint32_t sequence, std::uint32_t length) {
    return operate(sequences::freeze{}, {sequence}, {length});
  }
  /// Opens `into` as a copy of `from`, which has nothing pending: entries, scores, counters, tokens seen. The
  /// first `frozen` entries of every track are shared between the two by the engine (0: none) and frozen in
  /// both from now on; rows behind them are those of `how` (copies only if they may be written: refused
  /// before, if the host can tell). `id` keys the copy's random draws.
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen = 0, sequence_id id = {},
              fork_rows how = fork_rows::copy);
  /// Shifts a context: entries stored from position `first` on, and the next token, move by `offset`
  /// positions, and `rope` says how their keys lie rotated, so that they turn with them, in place. Inactive
  /// `rope`: keys lie unrotated, or the engine turns them itself. Rotations are linear: the logits of queries
  /// that turn likewise stay as they were, merged keys included, but for the rounding of storage. Tokens seen
  /// are counted anew from there (budgets by ratio and `truncate` go by them); positions below `first`
  /// (sinks) stay, and nothing may move to or below them, or below 0. Refuses pending entries, and frozen
  /// ones or rows that may not be written if they would turn; if the host cannot ask the layout, such rows
  /// leave warning::unrotated. Waits if launches are not immediate.
  status shift(std::uint32_t sequence, position_t offset, rope_params const& rope = {}, position_t first = 0);
  /// Sets the step of Chelsea's schedule: the next round of the sequence is round `n` (i in r_i, counted from
  /// 0), and those after it go on from there. `rounds(sequence)` tells it. Refuses sequences that are not
  /// open, and n above 2^31 - 1.
  status set_rounds(std::uint32_t sequence, std::uint32_t n) {
    return operate(sequences::set_rounds{}, {sequence}, {n});
  }
  /// Starts Chelsea's schedule again: set_rounds(sequence, 0).
  status reset_rounds(std::uint32_t sequence) { return set_rounds(sequence, 0); }

  /// Writes degrees and positions of the sequences beside their pages, up to the ends of the pages that hold
  /// length_bound(sequence) slots; pages that sequences share are written by each, with equal numbers.
  /// Entries of the table have to be valid so far. Refuses pending entries, and policies that share entries.
  template <class Entry, class Index>
  status export_page_metadata(index_list sequences, page_metadata<Entry, Index> const& notes);
  /// Starts a sequence on pages that hold entries already, merged ones perhaps, of which export_page_metadata
  /// has left notes: where they were swapped in, received, or are shared with others (`freeze` those).
  /// `entries` is the length_bound that they were written with, or fewer for a beginning, and `tokens` the
  /// tokens seen: the next position. Lengths, degrees and positions are those of the notes; on devices the
  /// host has bounds until the next report. Scores begin anew, and `truncate` cannot go back behind `tokens`.
  /// Refuses policies that share entries. `notes` are page_metadata, or entry_metadata if degrees and
  /// positions lie in plain arrays: of the first `entries` entries of every track.
  template <class Notes>
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens, Notes const& notes,
               sequence_id id = {});

  // ---- attention shown to the score -------------------------------------------------------------
  // Call one of the three once per layer and block of queries. They do nothing if the policy needs no
  // attention.

  /// What the policy has to be shown: observation_of<Policy> tells part of it at compile time.
  observation_need needs_observation() const { return need_of(policy_); }
  /// Feeds the score with the attention of the last `batch.queries[i]` committed tokens of each sequence, or
  /// of the `probes` among them, recomputed from their queries [.., query_heads, key_dim] and the
  /// log-sum-exps (natural log, as `attention::attend` gives them, or in_base_two(rows); degrees and sink
  /// included). Rows of queries that are no probes are not read.
  template <class Q>
  status observe(query_batch const& batch, head_rows<Q> query, log_sums<float const> lse,
                 attention_params const& params = {}, query_sample probes = {});
  /// The same from probabilities the engine has: rows [.., query_heads] of at least as many slots as entries
  /// are held; where entries are shared, members follow the slots. Any other scores, too (docs/observing.md):
  /// the numbers are added as they are, and neither negative ones nor NaN are refused.
  template <class T>
  status observe_rows(query_batch const& batch, head_rows<T> rows, attention_params const& params = {},
                      query_sample probes = {});
  /// The same from logits that attention has left, as attention::attend_and_observe does: scaled, capped,
  /// with the log degree added, one row per probe (not per query) [.., query_heads, probes] of at least as
  /// many slots as entries are held. Log-sum-exps are one per query. Refuses policies that share entries.
  status observe_logits(query_batch const& batch, head_rows<float const> logits, log_sums<float const> lse,
                        attention_params const& params = {}, query_sample probes = {});
  /// What the calls above would refuse, but for null rows.
  status check_observation(query_batch const& batch, attention_params const& params = {},
                           query_sample probes = {}) const {
    return refuse([&] { return observation_problem(batch, params, probes, nullptr); });
  }

  // ---- compression ------------------------------------------------------------------------------

  /// Shrinks all layers and heads of `sequences` to their budgets, in place, with as many rounds as it takes.
  /// Preconditions: nothing is pending, and a policy that ranks by attention has observed every layer since
  /// the sequence was opened. A track that merging cannot bring to its budget stays longer and gets
  /// warning::budget_unreached, or is evicted from down to the budget: `fallback` says which. Entries keep
  /// their order; rows behind the new length become zeros (options.zero_emptied). Costs O(entries) work and a
  /// fixed number of launches per wave and round; `workspace_bytes` is all the memory it takes.
  /// Deterministic: the result depends neither on the other sequences of the call nor on threads.
  status compress(index_list sequences, budget allowed, shortfall fallback = shortfall::keep);
  /// Plans one round for all layers and heads of `sequences` without touching the cache; needs
  /// options.whole_plan. A policy of several rounds (Chelsea) plans its next one: repeat plan + apply, or
  /// call compress.
  status plan(index_list sequences, budget allowed, shortfall fallback = shortfall::keep);
  /// Applies the plan made last. Refuses a plan that the cache has outgrown, and, if the host may look at it,
  /// an edited one that is not sound.
  status apply();
  /// True if the host knows the lengths that `compress` leaves with budgets per head: evicting policies, and
  /// merging ones that meet their budget if the fallback evicts what rows of NaN or infinity leave over.
  /// Else, and whenever tracks share their budgets, sync_lengths tells.
  bool exact(shortfall fallback = shortfall::keep) const { return is_exact(policy_, fallback); }
  /// What length_bound would be after `compress` with this budget. Refuses what compress refuses.
  std::uint32_t length_after(std::uint32_t sequence, budget allowed,
                             shortfall fallback = shortfall::keep) const;
  /// Guarded policies: goes by this guard from now on, its numbers and its probes.
  template <class Guard> status set_guard(Guard const& guard);

  /// The plan made last, track by track as planned_work() numbers them: in the order (layer, listed sequence,
  /// head), or (listed sequence, layer, head) with plan_scope::all_layers or options.budgets_over all_layers.
  /// May be edited before `apply`.
  plan_ref const& current_plan() const { return arrays_.workspace.plan; }
  /// The tracks of the plan made last, in its order.
  work_list planned_work() const { return plan_work(planned_.data(), planned_.size()); }
  /// The plan made last in words, track by track; for executors whose memory the host can read.
  void print_plan(std::ostream& out) const;
  /// What the plan made last was made from, until the next call of plan, apply or compress: the role of entry
  /// `s` of the `item`-th planned track, as current_plan() numbers both. These three are readable if the host
  /// can read the executor's memory, and if the plan fits one wave: roles and candidates are those of a wave
  /// and take no memory of their own, so that options.wave_tracks has to be at least
  /// planned_work().tracks(sizes().extent). Entries of a track within its budget have no role: refused.
  role planned_role(std::uint32_t item, slot_t s) const;
  /// What the identifier proposed for entry `s`: order_value(key) is its similarity to `target`, whether it
  /// was admitted or not; key 0 if it proposed nothing. Of identifiers that give similarities; see
  /// planned_role.
  candidate planned_candidate(std::uint32_t item, slot_t s) const;
  /// KVMerger's sigma of the set that `pivot` takes in, from K as it lies (so before `apply`); 0 if nothing
  /// merges into it. Of merge::gaussian; needs no more than the plan.
  float planned_sigma(std::uint32_t item, slot_t pivot) const;

  // ---- reports and stats ------------------------------------------------------------------------

  /// Lowers the bounds to the real lengths, and brings warnings and rounds up to date. Waits if launches are
  /// not immediate; if they are, there is nothing to do.
  void sync_lengths(std::uint32_t sequence);
  /// Asks for what `sync_lengths` tells, of all sequences, without waiting: enqueues a copy behind the calls
  /// made so far. One report is on its way at a time: asking again before it has arrived does nothing. The
  /// first time allocates host memory.
  status request_lengths();
  /// Returns true once per request that has arrived; never waits. Afterwards length_bound is at most the
  /// reported length plus the entries appended since. If a sequence was not compressed since the request, its
  /// lengths, warnings and rounds are exact. If launches are immediate there is nothing to wait for: true.
  bool poll_lengths();

  /// Has the stats of all tracks of `sequences` written down and sent, behind the calls made so far,
  /// without waiting. One request is on its way at a time: asking again before it has arrived does nothing.
  /// The first time allocates host memory if launches are not immediate. Refuses caches without
  /// options.stats, sequences that are not open, and recording.
  status request_stats(index_list sequences);
  /// True, once, when the stats that were asked for have arrived, and stats() tells them; never waits. If
  /// launches are immediate there is nothing to wait for: true.
  bool stats_ready();
  /// What the last request that arrived says about a track; zeros, with all mass retained, for sequences
  /// never asked about.
  cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const;
  /// The same of all layers and heads of a sequence.
  stats_sum stats(std::uint32_t sequence) const;

  // ---- saving -----------------------------------------------------------------------------------

  /// Bytes that `save` writes for a sequence: everything the ledger knows about it, pending entries included,
  /// in a format with a version and a checksum. K and V rows and block tables are the engine's to save.
  /// Waits, as `save` and `resume` do, if launches are not immediate.
  std::size_t saved_bytes(std::uint32_t sequence) const;
  /// Fills the first saved_bytes(sequence) bytes of `out`.
  status save(std::uint32_t sequence, span<std::byte> out) const;
  /// The same as a vector; empty if nothing is open and exceptions are off.
  std::vector<std::byte> save(std::uint32_t sequence) const;
  /// Opens `sequence` as the sequence that was saved, in this or another cache of the same policy, channels
  /// and shape; its capacity and number of sequences may differ. The engine restores K and V rows. Allocates
  /// a ledger of one sequence to look at the bytes before it believes them.
  status resume(std::uint32_t sequence, span<std::byte const> from);

private:
  static constexpr bool immediate = is_immediate<Executor>::value;
  static constexpr bool writes_all =
      is_always_writable<keys_used>::value && is_always_writable<values_used>::value;
  using score_type = typename policy_type::score_type;

  merged_cache(merged_cache const&) = default;  // the arrays are still those of the other
  void require_memory(std::size_t bytes);
  void bind_memory();

  // cache/calls.hpp has these, and the calls above that are longer than a line
  template <class Problem> status refuse_once(char const* call, Problem problem) const;
  template <class Operation>
  status operate(Operation const& operation, index_list sequences, index_list counts);
  template <class Operation, class Before>
  status carry_out(Operation const& operation, index_list sequences, index_list counts, Before before);
  void keep_mirror();
  void forget_plan_of(index_list sequences);
  auto seen_tensors() const;
  readable_ledger readable() const { return read_ledger(executor_, arrays_, memory_.data(), sizes_); }
  bool is_known(std::uint32_t sequence) const;
  index_list bounds() const { return {bounds_.data(), bounds_.size()}; }
  work_list stage(index_list sequences);
  open_stats_phase first_stats(sequence_phase const& all) const { return {all, arrays_.workspace.stats}; }
  template <class Phase> void launch(Phase const& phase);
  template <class Phase> void launch(Phase const& phase, track_source const& source);

  work_list plan_work(std::uint32_t const* list, std::size_t sequences) const {
    return {list, static_cast<std::uint32_t>(sequences),
            sizes_.scope == plan_scope::all_layers || sizes_.budgets_over == budget_scope::all_layers};
  }
  plan_reader<policy_type> reader() const {
    return {policy_, arrays_.workspace, sizes_, planned_work(), immediate};
  }
  forecast<policy_type> foresee(budget allowed, shortfall fallback) const {
    return {policy_, facts_, writes_all, allowed, fallback};
  }
  std::string observation_problem(query_batch const& batch, attention_params const& params,
                                  query_sample probes, char const* null) const;
  template <class Phase>
  status run_observation(char const* call, Phase const& phase, query_batch const& batch);
  std::string compress_problem(char const* call, index_list sequences, budget allowed,
                               shortfall fallback) const;
  std::string full_problem(index_list sequences, index_list counts, when_full const& full,
                           std::vector<std::uint32_t>& no_room) const;
  struct launch_counts;
  launch_counts counts_for(index_list sequences, budget allowed, shortfall fallback);
  void mirror_compression(std::uint32_t sequence, budget allowed, shortfall fallback);
  void pad(sequence_phase const& all, index_list sequences);
  budget stage_budget(budget allowed);
  std::string no_stats(char const* call) const;
  status save_problem(std::uint32_t sequence) const;

  Executor executor_;
  policy_type policy_;
  tensors_used tensors_;
  cache_options sizes_;
  typename Executor::memory memory_;
  std::string policy_name_;
  cache_arrays arrays_;
  host_mirror mirror_;                  ///< if launches are not immediate
  host_mirror mirror_before_;           ///< recorded calls, see keep_mirror
  std::vector<std::uint32_t> planned_;  ///< sequences of the plan made last
  std::vector<std::uint32_t> bounds_;   ///< one number per sequence of the call that is made
  std::vector<std::uint32_t> budgets_;  ///< per track, of the last call that was recorded
  std::vector<cache_stats> stats_;      ///< per track, those that arrived last
  report_on_its_way<Executor> report_, stats_report_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld

#include <kvmeld/cache/calls.hpp>
