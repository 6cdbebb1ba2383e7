// SPDX-License-Identifier: Apache-2.0
// The cache: one value that holds views of an engine's K and V, the ledger beside them, and a policy.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/check_shared_budget.hpp>
#include <kvmeld/cache/forecast.hpp>
#include <kvmeld/cache/host_mirror.hpp>
#include <kvmeld/cache/ledger_readings.hpp>
#include <kvmeld/cache/report.hpp>
#include <kvmeld/cache/sequence_ledger.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/page_table.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/observe/absorb.hpp>
#include <kvmeld/observe/observe.hpp>
#include <kvmeld/observe/observe_chunks.hpp>
#include <kvmeld/observe/observe_logits.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/rounds/apply_fates.hpp>
#include <kvmeld/rounds/compress.hpp>
#include <kvmeld/rounds/count_stats.hpp>
#include <kvmeld/rounds/padding.hpp>
#include <kvmeld/save/save.hpp>
#include <kvmeld/save/terms.hpp>
#include <kvmeld/score/given.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/sequences/adopt.hpp>
#include <kvmeld/sequences/append.hpp>
#include <kvmeld/sequences/close.hpp>
#include <kvmeld/sequences/commit.hpp>
#include <kvmeld/sequences/copy_page.hpp>
#include <kvmeld/sequences/drop_positions.hpp>
#include <kvmeld/sequences/exchange_scores.hpp>
#include <kvmeld/sequences/fork.hpp>
#include <kvmeld/sequences/freeze.hpp>
#include <kvmeld/sequences/open.hpp>
#include <kvmeld/sequences/operation.hpp>
#include <kvmeld/sequences/renumber.hpp>
#include <kvmeld/sequences/set_rounds.hpp>
#include <kvmeld/sequences/shift.hpp>
#include <kvmeld/sequences/truncate.hpp>
#include <kvmeld/shared/sharing.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A thin bundle of executor, policy, ledger and workspace over K and V. The engine owns K and V; the cache
/// never frees them.
///
/// *Memory.* Construction allocates the ledger and the workspace. Later calls allocate only what follows. The
/// executor's scratch grows once, to the largest phase. The first request of lengths, the first request of
/// stats and the first recorded calls take host memory. Every call may take host memory for one or two
/// numbers per listed sequence. `apply` validates the plan on the host with a few bytes per entry of one
/// track. `clone`, `save` and `resume` allocate. If launches are not immediate, `sync_lengths` copies the
/// numbers of tracks and sequences to host memory while it runs, `shift` and `renumber` copy the ledger (and
/// so do `drop_positions` of a sequence with frozen entries and `truncate` to before a gap), and `save` and
/// `resume` copy a sequence, for which they also allocate memory of the executor.
///
/// *Refusals.* A call refuses bad arguments by throwing kvmeld::invalid_argument, or, if exceptions are off,
/// by returning a status with the same text. A call that is refused or runs out of memory leaves the cache as
/// it was: it makes room for all its launches before the first one, and changes what the host knows (lengths,
/// bounds) after it has enqueued the last one. A lack of executor memory is a refusal. A lack of host heap
/// memory is std::bad_alloc.
///
/// *Order.* On the host a call has done its work when it returns. On devices a call that *enqueues* puts its
/// launches on the executor's stream, in the order of the calls, and a call that *waits* waits for that
/// stream. Each call says which it does. Counts of launches leave out those that bring lists of numbers to a
/// device, and one that options.stats adds where a sequence begins. Lists and budget tables lie in host
/// memory, and the caller may change them when a call returns. Queries, rows and notes lie in memory of the
/// executor. They must not overlap what a call writes, and have to stay unchanged until its launches have
/// run.
///
/// *Sequences.* Calls that change, observe or save a sequence refuse one that is out of range, not open, or
/// listed twice. `open`, `adopt`, `resume` and the copy of `fork` need a closed one. A list of counts has a
/// number for each sequence of its call. The examples below have one track.
///
/// *Threads.* A cache does not lock: make one call at a time. Caches that share no executor are independent
/// of each other.
///
/// A cache is move-only; `clone` copies it. Moving allocates nothing. A moved-from cache refuses its calls.
template <class Executor, class Policy, class Keys, class Values>
class merged_cache : public ledger_readings {
  using keys_used = detail::layout_or_stand_in<Keys>;
  using values_used = detail::layout_or_stand_in<Values>;
  using tensors_used = kv<keys_used, values_used>;

public:
  /// Type of the policy.
  using policy_type = detail::policy_or_stand_in<Policy>;
  /// What differs if entries have members with norms of their own (EMS).
  using sharing = detail::sharing_of<typename policy_type::merge_type>;
  static constexpr bool shares = sharing::shares;  ///< whether entries have such members
  /// The type of ref(): shared_ref if the policy shares entries (EMS), else cache_ref.
  using ref_type = typename sharing::template ref_type<keys_used, values_used>;

  /// Allocates the ledger and the workspace (docs/architecture.md has the bytes), and enqueues zeros for
  /// both. Does not wait. Refuses tensors, a policy and options that do not fit together, and names what does
  /// not fit.
  merged_cache(Executor executor, Policy policy, kv<Keys, Values> tensors, cache_options options);
  /// Takes over all that `other` holds; `other` refuses its calls from then on. Enqueues nothing.
  merged_cache(merged_cache&& other) noexcept;
  /// Takes over all that `other` holds, and releases what this cache held before. Enqueues nothing. Waits for
  /// a report of this cache that is on its way, as the end of a cache does.
  merged_cache& operator=(merged_cache&& other) noexcept;
  /// Returns a copy of this cache over `tensors`. `tensors` hold a copy of this cache's K and V. They may be
  /// this cache's own if only one of the two caches is used from now on. The ledger, the plan made last and
  /// the executor are copied; reports on their way are not. Allocates as construction does. May wait if
  /// launches are not immediate.
  merged_cache clone(kv<Keys, Values> tensors) const;

  // ---- what engines read ------------------------------------------------------------------------

  /// The view that attention and the engine's writes need; see cache_ref. Enqueues nothing.
  ref_type ref() const { return {tensors_.keys, tensors_.values, ledger_}; }
  /// Points the cache at other tensors with the same contents, for engines that reallocate tensors or rewrite
  /// block tables. Enqueues nothing. Launches that were enqueued before still use the old tensors. Refuses
  /// tensors that do not fit the cache's extent.
  status rebind(tensors_used tensors) {
    auto const problem = [&] {
      return refusal_within("rebind", detail::tensors_problem(tensors, options_.extent));
    };
    if (status s = refuse(problem); !s.ok()) return s;
    tensors_ = tensors;
    return {};
  }
  /// Points the ledger at another block table, if its entries lie in pages (options.ledger_pages): for
  /// engines that reallocate the table. The table names the same pages. Enqueues nothing. Launches that were
  /// enqueued before still read the old table. Refuses a null table, and a cache whose ledger has no pages.
  status rebind_pages(page_table<> table) {
    auto const problem = [&] {
      if (!ledger_.paged()) return refusal("rebind_pages", "options.ledger_pages.count", 0, "at least 1");
      return table_problem("rebind_pages", table.entries);
    };
    if (status s = refuse(problem); !s.ok()) return s;
    options_.ledger_pages.places.table = table;
    bind_memory();
    return {};
  }
  /// What the ledger holds of one page, if its entries lie in pages: pieces of memory of the executor, whose
  /// bytes go where the page goes. An engine that copies a page, swaps it out or sends it elsewhere copies
  /// them in order with the cache's launches. Two caches with the same policy and page strides have the same
  /// pieces. Enqueues nothing. Refuses a page that is none of the pool (the vector is then empty), and a
  /// cache whose ledger has no pages.
  std::vector<span<std::byte>> page_pieces(std::uint32_t page) const;
  /// Copies what the ledger holds of page `from` to page `into`: for copy on write, beside the engine's copy
  /// of the rows. Enqueues 1 launch; does not wait. Takes O(entries of a page) work. Refuses what page_pieces
  /// refuses. Cannot be recorded.
  status copy_page(std::uint32_t from, std::uint32_t into);
  /// The cache's own copy of the executor. Calls of the cache run on it, and so should attention. Enqueues
  /// nothing.
  Executor& executor() { return executor_; }
  /// The policy given at construction.
  policy_type const& policy() const { return policy_; }
  /// The options given at construction, with wave_tracks filled in.
  cache_options const& options() const { return options_; }
  /// Bytes of the ledger, which construction allocated.
  std::size_t ledger_bytes() const { return arrays_.ledger_bytes; }
  /// Bytes of the workspace: all executor memory that construction allocated besides the ledger.
  std::size_t workspace_bytes() const { return memory_.size() - arrays_.ledger_bytes; }

  // ---- sequences --------------------------------------------------------------------------------

  /// Starts a sequence. Its first `tokens_cached` tokens (0 to the capacity) lie in K and V already. Their
  /// entries get degree 1, and their index as position. The first `frozen` of them (0 to tokens_cached) are
  /// shared with other sequences: they are never written and never moved. `id` is the key of random draws.
  /// Enqueues 1 launch; does not wait. Takes O(tokens_cached) work per track. Cannot be recorded.
  status open(std::uint32_t sequence, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              sequence_id id = {}) {
    return operate(sequences::open{frozen, static_cast<std::uint32_t>(id)}, {sequence}, {tokens_cached});
  }
  /// Ends a sequence; its number can be opened again. Enqueues 1 launch; does not wait.
  status close(std::uint32_t sequence) { return operate(sequences::close{}, {sequence}, {}); }

  /// Adds `counts[i]` pending entries to every track of `sequences[i]`. They take the last `counts[i]` slots
  /// below the new ref().length(track). The engine writes their K and V before or after this call, but before
  /// attention reads them. Enqueues 1 or 2 launches; does not wait. Takes O(counts[i]) work per track.
  /// Refuses counts above the free slots of a track.
  ///
  /// Example: a track has 4 entries, and 6 tokens were seen. `append({0}, {3})` makes it 7 long: slots 4 to 6
  /// have positions 6 to 8. `commit({0}, {2})` then keeps slots 4 and 5. The track has 6 entries, and 8
  /// tokens were seen.
  status append(index_list sequences, index_list counts) {
    status s = operate(sequences::append{}, sequences, counts);
    // Where the host cannot read lengths, apply could not tell that the plan is outdated.
    if (!is_immediate<Executor>::value && s.ok()) forget_plan_of(sequences);
    return s;
  }
  /// As append(sequences, counts), but first compresses the sequences that have no room for their entries:
  /// those whose length_bound plus count exceeds the capacity. `compress` shrinks them to `full.shrink_to`.
  /// The call is refused, and nothing is compressed, unless length_after tells that this makes enough room.
  /// Sequences that have no room must have no pending entries. If launches are not immediate, bounds may
  /// exceed the lengths, so a sequence may be compressed before it is full. If length_bound becomes less, an
  /// attention bias that was written before is stale. Enqueues the launches of append, and those of compress
  /// where it compresses; does not wait. Cannot be recorded.
  status append(index_list sequences, index_list counts, when_full const& full);
  /// Commits the first `accepted[i]` pending entries of `sequences[i]` and drops the others (rejected
  /// drafts). Enqueues 1 launch; does not wait. Takes O(1) work per track. Refuses
  /// `accepted[i]` above the pending entries. `append` has an example.
  status commit(index_list sequences, index_list accepted) {
    return operate(sequences::commit{}, sequences, accepted);
  }
  /// As commit(sequences, accepted), with counts that the host need not know: a sampler's kernel left them
  /// where phases can read them. Enqueues 1 launch; does not wait. The launch reads the counts in
  /// order with other launches. A replay reads them again at the same address. A count above the pending
  /// entries commits all of them (refused if launches are immediate). Until sync_lengths or a report, the
  /// host takes all pending entries for accepted: lengths and `tokens` are upper bounds. `shift`, `renumber`,
  /// `drop_positions` and `truncate` need the number of tokens itself: they wait for it.
  status commit(index_list sequences, device_list accepted);
  /// As append(sequences, counts), without a launch: a kernel of the engine calls append_in_kernel for each
  /// of these sequences. The cache checks the call and notes what the host has to know. Make no other call of
  /// the cache before that kernel is enqueued, except attention. (If launches are immediate, the engine calls
  /// append_in_kernel after this call.) Enqueues nothing; does not wait. Refuses counts for which the bound
  /// of a length leaves no room.
  status append(index_list sequences, index_list counts, in_kernel_t);
  /// As commit(sequences, device_list), without a launch: a kernel of the engine calls commit_in_kernel for
  /// each of these sequences. Enqueues nothing; does not wait.
  status commit(index_list sequences, in_kernel_t);
  /// Goes back to the first `tokens` tokens seen: forgets the entries at positions from `tokens` on. The
  /// result is exact. Therefore the call refuses `tokens` below compressed_at(sequence), frozen entries among
  /// those to forget, and pending entries. The scores of entries that stay still contain the attention of
  /// forgotten queries. Warnings stay. Enqueues 1 launch. If launches are not immediate, the call waits in
  /// two cases: it goes back to before a gap that drop_positions or shift left, or the host has only a bound
  /// of the tokens. A call that has to wait cannot be recorded.
  ///
  /// Example: 8 tokens were seen, and 6 of them when the sequence was compressed. `truncate(0, 7)` forgets
  /// one entry of every track. `truncate(0, 5)` is refused.
  status truncate(std::uint32_t sequence, std::uint32_t tokens);
  /// Drops the entries whose position lies in [first, last) from every track, in place: a document or a
  /// tool's output leaves the middle of a context. The other entries keep their order, positions, degrees and
  /// scores, and move to the front of their track. An entry goes or stays by its own position, with all the
  /// tokens it stands for. An entry outside the range stays as it is, even if it merged tokens of the range;
  /// attention still sees these tokens in it. An entry that others share (EMS) goes with its members. Pins of
  /// a policy (sinks, recents) hold no entry back.
  ///
  /// `tokens`, and so the next position and budgets by ratio, stay. Positions do not close up: a gap is left,
  /// which shift(sequence, first - last, rope, last) or renumber closes. compressed_at stays, so truncate can
  /// still go back to any token that came after the last compression, dropped ones too. With options.padded,
  /// compressed_at becomes the tokens seen if empty slots fill up a track. Rounds, warnings and stats stay.
  /// Queries that are observed or attend together afterwards must be of tokens from `last` on.
  ///
  /// Refuses pending entries, a range that is not within [0, tokens seen], frozen entries in the range, and
  /// rows there or behind that may not be written. If the host cannot ask the layout, entries up to the last
  /// such row stay and leave warning::undropped. Enqueues the launches of a compression without rounds. Takes
  /// O(entries) work, and no memory besides the workspace. If launches are not immediate, the call waits in
  /// two cases: entries are frozen, or the host has only a bound of the tokens. Where it may drop compressed
  /// entries, the host has bounds of the lengths afterwards, until sync_lengths or a report. Cannot be
  /// recorded. Forgets the plan made last.
  ///
  /// Example: a track has the positions 0, 2, 4, 5, 6, 7, and position 2 has degree 3. `drop_positions(1, 1,
  /// 5)` drops positions 2 and 4, and with them 4 tokens. `tokens(1)` stays 8.
  status drop_positions(std::uint32_t sequence, position_t first, position_t last);
  /// Freezes exactly the first `length` entries of every track; entries behind them are not frozen any more.
  /// Call it when pages become shared, or are no longer shared. If tracks share different lengths, let the
  /// layout's `writable` say so instead. Enqueues 1 launch. Waits only if the host has only bounds of the
  /// lengths (see `exact`), `length` is not 0, and the call is not recorded. Refuses a length above the
  /// committed entries of the shortest track.
  status freeze(std::uint32_t sequence, std::uint32_t length) {
    if (length != 0) know_lengths(sequence);
    return operate(sequences::freeze{}, {sequence}, {length});
  }
  /// Opens `into` as a copy of `from`: entries, scores, counters, tokens seen. `from` must have nothing
  /// pending. The engine lets both sequences share the first `frozen` entries of every track (0: none); these
  /// are frozen in both from now on. `id` is the key of the copy's random draws. `how` says who provides the
  /// rows behind the frozen ones. fork_rows::copy: the call copies these rows. If the host can ask the
  /// layout, the call refuses slots that may not be written. Otherwise it leaves these slots to the engine.
  /// Enqueues 1 launch, and with fork_rows::copy 2 more that copy O(entries) rows per track. With `frozen`
  /// above 0 it waits as `freeze` does; else it does not wait. Cannot be recorded.
  ///
  /// Example: sequence 0 has 6 entries in a track, and 8 tokens were seen. After `fork(0, 1)` sequence 1 has
  /// the same, with rows of its own. After `fork(0, 1, 4)` slots 0 to 3 are frozen in both, and rows 4 and 5
  /// are copied.
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen = 0, sequence_id id = {},
              fork_rows how = fork_rows::copy);
  /// Shifts a context: entries at positions from `first` on, and the next token, move by `offset` positions.
  /// Keys that lie rotated as `rope` says are rotated by the same offset, in place. Leave `rope` inactive if
  /// keys lie unrotated or the engine rotates them itself. Rotations are linear, so logits stay the same for
  /// queries that are rotated likewise, merged keys included, up to the rounding of storage. Tokens seen
  /// change with the next position; budgets by ratio and `truncate` use the new number. Positions below
  /// `first` (sinks) stay. compressed_at moves by `offset` too; only if tokens that came after the last
  /// compression stay below `first`, it stays. An offset of 0 changes nothing. Refuses a shift that would
  /// move an entry to or below the position of such a sink, or below 0; pending entries; and, if keys are
  /// rotated, frozen or unwritable rows among those that move. If the host cannot ask the layout, unwritable
  /// rows leave warning::unrotated. Waits if launches are not immediate, then enqueues 1 launch, or 2 if keys
  /// turn. Takes O(entries) work, and reads and writes the keys that turn. Cannot be recorded.
  ///
  /// Example: a track has the positions 0, 5, 6, 7 and the next token has 8. `shift(1, -4, rope, 5)` turns
  /// the last three keys by -4 positions. The positions are 0, 1, 2, 3, and the next token has 4.
  status shift(std::uint32_t sequence, position_t offset, rope_params const& rope = {}, position_t first = 0);
  /// Gives the entries positions without gaps: the newest entry of every track comes to longest - 1, the one
  /// before it to longest - 2, and so on, where `longest` is the length of the longest track. The next token
  /// has position `longest`. So an engine can go on as if the entries were all that was read. If all degrees
  /// are 1 and all heads equally long, the entries are an ordinary short cache. Keys that lie rotated as
  /// `rope` says turn in place, each by as much as its position changes. Leave `rope` inactive if keys lie
  /// unrotated or the engine rotates them itself. For example, the positions 0, 2, 4, 5, 6, 7 become 0 to 5.
  ///
  /// Unlike `shift` this changes logits, because entries come closer to each other and to later queries. An
  /// entry keeps its distance to the next token if no later token of its track was evicted or merged. Tokens
  /// seen become `longest`: later budgets by ratio count from it. `truncate` can still forget the tokens that
  /// came after the last compression. Queries that a score keeps (R-KV, DropKV, `leverage_dropkv`, fits) do
  /// not turn: show the last queries again before the next compression. Expected Attention takes the entries
  /// at the new positions 0 to sinks - 1 as sinks.
  ///
  /// Refuses policies that share entries (EMS); pending entries; empty slots of padded tracks; and, if keys
  /// are rotated, frozen or unwritable rows that would turn. If the host cannot ask the layout, unwritable
  /// rows leave warning::unrotated. Waits, enqueues and costs what `shift` does. Cannot be recorded.
  status renumber(std::uint32_t sequence, rope_params const& rope = {});
  /// Sets the step of Chelsea's schedule: the next round of the sequence is round `n` (i in r_i, counted from
  /// 0), and later rounds count on from there. `rounds(sequence)` returns the step. Every policy counts
  /// rounds, but only Chelsea's schedule reads them. Enqueues 1 launch; does not wait. Refuses n above 2^31 -
  /// 1.
  status set_rounds(std::uint32_t sequence, std::uint32_t n) {
    return operate(sequences::set_rounds{}, {sequence}, {n});
  }

  /// Writes degrees and positions of the sequences beside their pages, up to the end of the last page that
  /// holds any of length_bound(sequence) slots. `notes` have an element for every token of every page. The
  /// page table has to be valid up to there. Sequences that share a page each write it, with equal numbers.
  /// Enqueues 1 launch; does not wait. Refuses pending entries, and policies that share entries.
  template <class Entry, class Index>
  status export_page_metadata(index_list sequences, page_metadata<Entry, Index> const& notes);
  /// Starts a sequence on pages that hold entries already, merged or not: pages that were swapped in,
  /// received, or are shared with other sequences (`freeze` these). `entries` is the length_bound that the
  /// sequence had when its notes were written. A smaller number adopts only the first entries. `tokens` is
  /// the number of tokens seen, which is the next position. `notes` describe the first `entries` entries of
  /// every track. They are page_metadata, as export_page_metadata wrote it, or entry_metadata if degrees and
  /// positions lie in plain arrays. Lengths, degrees and positions come from the notes. On devices the host
  /// knows bounds until the next report. Scores begin anew. `truncate` cannot go below `tokens`. Enqueues 2
  /// launches; does not wait. Takes O(entries) work per track. Refuses `entries` above the capacity or
  /// (unless options.padded) above `tokens`, and policies that share entries. Cannot be recorded.
  template <class Notes>
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens, Notes const& notes,
               sequence_id id = {});

  // ---- attention shown to the score -------------------------------------------------------------
  // Call one of observe, observe_rows and observe_logits once per layer and block of queries. They enqueue
  // nothing if the policy needs no attention.

  /// Which queries the policy needs to observe; observation_of<Policy> tells part of it at compile time.
  /// Enqueues nothing.
  observation_need needs_observation() const { return need_of(policy_); }
  /// Adds to the score the attention of the last `batch.queries(i)` committed tokens of each sequence, or of
  /// those that the query sample `sample` selects. The call recomputes the attention from `query` [sequence
  /// of the batch][query head][query][key_dim] and `lse` [sequence][query head][query], the log-sum-exps as
  /// attention::attend gives them (natural logarithms, or in_base_two(rows); degrees and sink included). It
  /// does not read rows of queries outside the sample. A score that absorbs queries
  /// (score::expected_attention) reads only the queries, their positions and `params.scale`. If such a score
  /// keeps no attention, `lse` may be empty, and the call does not read keys. A score of attention inside
  /// chunks (score::chunk_attention) reads queries and keys; `lse` may be empty. `params.causal`,
  /// `params.window` and `params.sink` have no effect then. Enqueues 2 or 3 launches; does not wait. Takes
  /// O(sampled queries x entries x key_dim) work per query head, or no `entries` for a score that only
  /// absorbs queries. Refuses pending entries, more queries than a track has entries (with options.padded:
  /// than tokens came since the last compression), and null rows that it would read.
  ///
  /// Example: the last query has the logits 0, 0 and ln 2 on the three entries of a track, so its log-sum-exp
  /// is ln 4. H2O's score of the entries grows by 1/4, 1/4 and 1/2.
  template <class Q>
  status observe(query_batch const& batch, head_rows<Q> query, log_sums<float const> lse,
                 attention_params const& params = {}, query_sample sample = {});
  /// Does what observe does, from attention probabilities that the engine has: `rows` [sequence of the
  /// batch][query head][query] with a number for at least every slot in use. If the policy shares entries,
  /// the members' numbers follow those of the slots. The rows may hold any other scores (docs/observing.md):
  /// the call adds the numbers as they are, and refuses neither negative numbers nor NaN. Enqueues 2
  /// launches; does not wait. Takes O(sampled queries x entries) work per query head. Refuses what observe
  /// refuses, and scores that need queries.
  template <class T>
  status observe_rows(query_batch const& batch, head_rows<T> rows, attention_params const& params = {},
                      query_sample sample = {});
  /// Does what observe does, from logits that attention has stored; attention::attend_and_observe calls it.
  /// The logits are scaled, capped and contain the log degree (natural). `logits` [sequence][query
  /// head][sampled query] has a row per query of the sample, not of the batch, with a number for at least
  /// every slot in use. `lse` has one log-sum-exp per query of the batch. Enqueues 2 launches; does not wait.
  /// Costs what observe_rows does. Refuses what observe refuses, policies that share entries, and scores that
  /// need queries.
  status observe_logits(query_batch const& batch, head_rows<float const> logits, log_sums<float const> lse,
                        attention_params const& params = {}, query_sample sample = {});
  /// Sets the scores of all entries of one layer of `sequences`, for policies with score::given: `rows`
  /// [sequence of the list][KV head] with a number for at least every slot in use, pending entries included,
  /// as float, float16 or bfloat16. A NaN ranks lowest. Enqueues 1 launch; does not wait. Takes O(entries)
  /// work. Refuses other scores.
  template <class T> status set_scores(std::uint32_t layer, index_list sequences, head_rows<T> rows);
  /// Writes the scores of `sequences` to `rows` [layer][sequence of the list][KV head][channel][column], in
  /// memory of the executor: a number for each entry, and 0 behind a track's entries. The policy's score has
  /// ledger().channels.count channels. Ranks that hold the same heads average these numbers, and write_scores
  /// takes them back. Enqueues 1 launch; does not wait. Takes O(numbers written) work. Refuses null rows, and
  /// fewer columns than length_bound(sequence). Members (EMS) and tables of scores are not among the scores.
  status read_scores(index_list sequences, float* rows, std::uint32_t columns) {
    return exchange_scores("read_scores", sequences, rows, columns);
  }
  /// Sets the scores of `sequences` to what `rows` holds, in the order of read_scores. With
  /// options.ledger_pages, frozen entries keep theirs. Enqueues 1 launch; does not wait. Takes O(entries)
  /// work. Refuses what read_scores refuses.
  status write_scores(index_list sequences, float const* rows, std::uint32_t columns) {
    return exchange_scores("write_scores", sequences, rows, columns);
  }
  /// Whether observe, observe_rows and observe_logits would refuse these arguments. Null rows are not
  /// checked. Enqueues nothing; does not wait.
  status check_observation(query_batch const& batch, attention_params const& params = {},
                           query_sample sample = {}) const {
    return refuse([&] { return observation_problem(batch, params, sample, nullptr); });
  }

  // ---- compression ------------------------------------------------------------------------------

  /// Shrinks all layers and heads of `sequences` to their budgets, in place, with as many rounds as it takes.
  /// Preconditions: nothing is pending, and a policy that ranks by attention has observed every layer since
  /// the sequence was opened. No track is above its budget afterwards. If merging alone cannot bring a track
  /// there (rows with NaN or infinity, too few similar entries), the entries with the lowest scores are
  /// evicted, and warning::evicted_fallback says so. With shortfall::keep these entries stay: the track
  /// remains longer and gets warning::budget_unreached. Rows that a layout refuses to write stay, too; on
  /// devices they may keep a track above its budget (see `exact`). Entries keep their order. V rows behind
  /// the new length become zeros where options ask for it. Enqueues a fixed number of launches per wave and
  /// round; does not wait. Takes O(entries) work for each round, and what the identifier compares. Needs no
  /// executor memory besides `workspace_bytes` and scratch. Deterministic: the result depends neither on the
  /// other sequences of the call nor on threads. Refuses pending entries, and a budget below what the policy
  /// pins.
  ///
  /// Example: chelsea::with_schedule({0.45, 0.05, 3, 0.05}) with 1 sink and 1 recent. The 6 entries of a
  /// track have the keys (9, 0), (1, 0), (1, 0.1), (1, 0.2), (0, 1) and (0, 9). With the budget 4, slots 1, 2
  /// and 3 become one entry in two rounds: degree 3, position 2, key (1, 0.1), which is the mean of the
  /// three. Slots 0 to 3 then have the positions 0, 2, 4 and 5.
  status compress(index_list sequences, budget allowed, shortfall fallback = shortfall::evict_lowest);
  /// Plans one round for all layers and heads of `sequences`; needs options.whole_plan. Writes warnings, and
  /// leaves K, V, lengths, degrees and scores as they are. A policy of several rounds (Chelsea) plans its
  /// next one: repeat plan and apply, or call compress. Enqueues a fixed number of launches per wave. Does
  /// not wait, unless launches are not immediate and the list has more than 16,000 sequences. Costs what a
  /// round of compress costs, and looks at the rows of all entries. Refuses what compress refuses. Cannot be
  /// recorded.
  ///
  /// Example: the first plan of compress's example merges slots 2 and 3 alone (0.45 of 4 entries, rounded
  /// down to 1). After `apply` the track has 5 entries, and slot 2 has degree 2 and key (1, 0.15). The next
  /// plan and apply reach 4 entries.
  status plan(index_list sequences, budget allowed, shortfall fallback = shortfall::evict_lowest);
  /// Applies the plan made last. Refuses a plan that later calls have outdated. If the host can read the
  /// plan, also refuses an edited plan that is not valid. Enqueues a fixed number of launches per wave; does
  /// not wait. Takes O(entries) work, and reads and writes the rows that merge or move. Cannot be recorded.
  status apply();
  /// True if the host knows the lengths that `compress` leaves with budgets per head. This holds for policies
  /// that only evict. It also holds for merging policies that meet their budget, with
  /// shortfall::evict_lowest: then the fallback evicts what rows with NaN or infinity leave above the budget.
  /// In all other cases, and whenever tracks share their budgets, call sync_lengths to know the lengths. On
  /// devices `exact` is false if a layout may refuse to write rows (`shared` of pool_pages): until
  /// sync_lengths or a report, the host then takes every length for what it was before the compression. Does
  /// not wait.
  bool exact(shortfall fallback = shortfall::evict_lowest) const {
    return (immediate || writes_all) && detail::is_exact(policy_, fallback);
  }
  /// The length_bound that `compress` with this budget would leave: 4 in its example. Refuses what compress
  /// refuses. Enqueues nothing; does not wait. Takes O(tracks of the sequence) work.
  std::uint32_t length_after(std::uint32_t sequence, budget allowed,
                             shortfall fallback = shortfall::evict_lowest) const;

  /// The plan made last. Its tracks are in the order of planned_work(): (layer, listed sequence, head), or
  /// (listed sequence, layer, head) with plan_scope::all_layers or options.budgets_over all_layers. The plan
  /// may be edited before `apply`. It lies in memory of the executor, and on devices launches of `plan` may
  /// still write it. Does not wait.
  plan_ref const& current_plan() const { return arrays_.workspace.plan; }
  /// The tracks of the plan made last, in its order. The list lies in host memory. Does not wait.
  work_list planned_work() const { return plan_work(planned_.data(), planned_.size()); }
  /// The wave that the plan made last was computed in: its roles, scores and candidates. They are valid until
  /// the next call of plan, apply or compress. Read them through kvmeld/cache/plan_readings.hpp, which prints
  /// plans, too.
  wave_ref const& planned_wave() const { return arrays_.workspace.wave; }

  // ---- reports and stats ------------------------------------------------------------------------

  /// Whether the host knows the lengths of a sequence. If not, it has bounds until sync_lengths or a report.
  /// Does not wait.
  bool lengths_known(std::uint32_t sequence) const {
    return within("lengths_known", sequence) && (immediate || mirror_.known(sequence));
  }
  /// Lowers the bounds to the real lengths, and brings warnings and rounds up to date. Waits if launches are
  /// not immediate, and copies the numbers of all tracks, not of their entries. If launches are immediate,
  /// there is nothing to do. Cannot be recorded.
  void sync_lengths(std::uint32_t sequence);
  /// Requests a report of what `sync_lengths` tells, for all sequences: enqueues a copy behind the calls made
  /// so far. Does not wait. Only one report is on its way at a time: a request before it has arrived does
  /// nothing. The first request allocates host memory. Cannot be recorded.
  status request_lengths();
  /// Returns true once per report that has arrived; does not wait. Afterwards length_bound is at most the
  /// reported length plus the entries appended since. If a sequence was not compressed since the request, its
  /// lengths, warnings and rounds are exact. Always true if launches are immediate.
  bool poll_lengths();

  /// Requests the stats of all tracks of `sequences`, as they are behind the calls made so far: enqueues 1
  /// launch and a copy. Does not wait. Only one request is on its way at a time: a request before it has
  /// arrived does nothing. The first request allocates host memory if launches are not immediate. Refuses
  /// caches without options.stats. Cannot be recorded.
  status request_stats(index_list sequences);
  /// Returns true once when the requested stats have arrived; then stats() returns them. Does not wait.
  /// Always true if launches are immediate.
  bool stats_ready();
  /// The stats of a track as of the last arrived request that listed its sequence. Stats of earlier requests
  /// stay visible, also after the sequence was closed or opened again. For a sequence that no request listed,
  /// counts are 0 and mass_retained is 1. Does not wait. Refuses caches without options.stats.
  cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const;
  /// The stats of all layers and heads of a sequence, summed. Does not wait.
  stats_sum stats(std::uint32_t sequence) const;

  // ---- saving -----------------------------------------------------------------------------------

  /// Number of bytes that `save` writes for a sequence: everything the ledger knows about it, pending entries
  /// included, in a format with a version and a checksum. The engine saves K and V rows and block tables. If
  /// launches are not immediate, it enqueues a copy of the sequence's ledger and waits for it, so it takes
  /// about as long as `save`. Cannot be recorded.
  std::size_t saved_bytes(std::uint32_t sequence) const;
  /// Fills the first saved_bytes(sequence) bytes of `out`, in host memory. Waits as saved_bytes does. Takes
  /// O(entries) work. Refuses an `out` that is too small. Cannot be recorded.
  status save(std::uint32_t sequence, span<std::byte> out) const;
  /// Returns the bytes in a vector. If exceptions are off, a refused call returns an empty vector. Waits as
  /// saved_bytes does.
  std::vector<std::byte> save(std::uint32_t sequence) const;
  /// Opens `sequence` in the state that was saved, in this cache or another one. The sequence then continues
  /// as it would have without the save. `from` are the bytes of `save`, in host memory. Layers, heads,
  /// channels, element types, policy, what the score's numbers depend on (kept_facts), options.scope,
  /// ignore_degree, padded, members, first_layer and first_kv_head have to agree; capacity, number of
  /// sequences, layouts and the other options may differ. options.bias has to suit the degrees. The engine
  /// restores K and V rows. Allocates a ledger of one sequence to check the bytes before it uses them. If
  /// launches are not immediate, it enqueues a copy, and may wait. Refuses bytes that are not whole, were
  /// changed, or do not fit. Cannot be recorded.
  ///
  /// Example: a track has 6 entries, and 8 tokens were seen. `resume(2, c.save(1))` gives sequence 2 the 6
  /// entries with their degrees, positions and scores. The engine copies rows 0 to 5 of the track.
  status resume(std::uint32_t sequence, span<std::byte const> from);

private:
  static constexpr bool immediate = is_immediate<Executor>::value;
  static constexpr bool writes_all =
      is_always_writable<keys_used>::value && is_always_writable<values_used>::value;
  using score_type = typename policy_type::score_type;

  merged_cache(merged_cache const&) = default;  // the arrays still point to the other's memory
  void require_memory(std::size_t bytes);
  void bind_memory();

  // cache/*calls.hpp define these, and the calls above that are longer than a line
  template <class Problem> status refuse_once(char const* call, Problem problem) const;
  template <class Operation>
  status operate(Operation const& operation, index_list sequences, index_list counts);
  template <class Operation, class Before>
  status carry_out(Operation const& operation, index_list sequences, index_list counts, Before before,
                   std::uint32_t const* in_place = nullptr);
  template <class Operation>
  void note_done(Operation const& operation, index_list sequences, index_list counts, bool guessed);
  index_list all_pending(index_list sequences);
  status truncate_gaps(std::uint32_t sequence, std::uint32_t tokens);
  template <class Removal> status remove_entries(Removal const& removal, std::uint32_t sequence);
  template <class Operation> status change_positions(Operation const& operation, std::uint32_t sequence);
  template <class T>
  status exchange_scores(char const* call, index_list sequences, T* rows, std::uint32_t columns);
  void keep_mirror();
  void forget_plan_of(index_list sequences);
  auto seen_tensors() const;
  template <class Use> status read_sequence(std::uint32_t sequence, Use use) const;
  detail::readable_ledger readable(std::uint32_t sequence) const;
  void read_numbers(std::uint32_t sequence);
  void know_lengths(std::uint32_t sequence);
  void know_tokens(std::uint32_t sequence);
  bool tokens_known(std::uint32_t sequence) const;
  bool guesses_budget(std::uint32_t sequence, budget allowed) const;
  index_list bounds() const { return {bounds_.data(), bounds_.size()}; }
  work_list stage(index_list sequences);
  detail::sequence_phase stage_call(index_list sequences, index_list const* numbers);
  template <class Operation> static constexpr bool may_write_few = !immediate && Operation::writes_few;
  template <class Operation>
  bool writes_few(Operation const& operation, index_list sequences, index_list counts) const;
  detail::open_stats_phase first_stats(detail::sequence_phase const& all) const {
    return {all, arrays_.workspace.stats};
  }
  template <class Phase> void launch(Phase const& phase);
  template <class Phase> void launch(Phase const& phase, track_source const& source);

  work_list plan_work(std::uint32_t const* list, std::size_t sequences) const {
    return {list, static_cast<std::uint32_t>(sequences),
            options_.scope == plan_scope::all_layers || options_.budgets_over == budget_scope::all_layers};
  }
  detail::forecast<policy_type> foresee(budget allowed, shortfall fallback) const {
    return {policy_, facts_, writes_all, immediate || writes_all, allowed, fallback};
  }
  std::string observation_problem(query_batch const& batch, attention_params const& params,
                                  query_sample sample, char const* null) const;
  std::string queries_problem(char const* call) const;
  template <class Launches>
  status run_observation(char const* call, query_batch const& batch, batch_source const& source,
                         query_sample sample, Launches const& launches);
  std::string compress_problem(char const* call, index_list sequences, budget allowed) const;
  std::string full_problem(index_list sequences, index_list counts, when_full const& full,
                           std::vector<std::uint32_t>& no_room) const;
  struct launch_counts;
  launch_counts counts_for(index_list sequences, budget allowed, shortfall fallback);
  std::uint32_t longest_of(index_list sequences) const;
  void mirror_compression(std::uint32_t sequence, budget allowed, shortfall fallback);
  void pad(detail::sequence_phase const& all, index_list sequences);
  budget stage_budget(budget allowed);
  std::string no_stats(char const* call) const;
  cache_stats stats_of(track t) const;
  saved::terms saved_terms() const;
  status save_problem(std::uint32_t sequence) const;

  mutable Executor executor_;  ///< a save gathers the sequence by a kernel
  policy_type policy_;
  tensors_used tensors_;
  cache_options options_;
  typename Executor::memory memory_;
  detail::cache_arrays arrays_;
  detail::host_mirror mirror_;          ///< used if launches are not immediate
  std::vector<std::uint32_t> planned_;  ///< sequences of the plan made last
  std::vector<std::uint32_t> bounds_;   ///< one length bound per sequence of the current call
  std::vector<std::uint32_t> lists_;    ///< the lists of the current call, one behind the other
  std::vector<std::uint32_t> counts_;   ///< what the host takes for the counts that lie on the device
  std::vector<std::uint32_t> budgets_;  ///< [tracks] of the last recorded call
  std::vector<cache_stats> stats_;      ///< [tracks] those that arrived last
  detail::report_on_its_way<Executor> report_, stats_report_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld

#include <kvmeld/cache/calls.hpp>
#include <kvmeld/cache/compression_calls.hpp>
#include <kvmeld/cache/observing_calls.hpp>
#include <kvmeld/cache/report_calls.hpp>
#include <kvmeld/cache/sequence_calls.hpp>
