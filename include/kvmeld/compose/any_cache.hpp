// SPDX-License-Identifier: Apache-2.0
// A cache whose policy, layouts and executor are chosen at run time: one virtual interface in front of any
// merged_cache.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/log_degree_bias.hpp>
#include <kvmeld/cache/attend_and_observe.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/sequences/adopt.hpp>
#include <kvmeld/sequences/fork.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Rows to read, of any element type that an engine's queries may have.
struct any_rows {
  /// The rows: float, float16 or bfloat16.
  std::variant<head_rows<float const>, head_rows<float16 const>, head_rows<bfloat16 const>> rows;

  /// Rows of T, which the object points to and does not own.
  template <class T>
  any_rows(head_rows<T> r)
      : rows(head_rows<T const>{r.data, r.sequence_stride, r.head_stride, r.row_stride}) {}
};

/// Rows to write, of any of the same element types.
using any_output = std::variant<head_rows<float>, head_rows<float16>, head_rows<bfloat16>>;

/// A cache whose type is chosen at run time: the interface of a merged_cache, which make_any_cache fills. A
/// call does what the call of that name of merged_cache does, and refuses, waits and costs the same: its
/// comment says more. Each call costs one virtual call more. *Enqueues* and *waits* are about the executor's
/// stream, as there.
class any_cache {
public:
  virtual ~any_cache() = default;

  /// The policy by its parts, as in saved ledgers and reports. Does not wait.
  virtual std::string name() const = 0;
  /// When the policy has to be shown attention. Does not wait.
  virtual observation_need needs_observation() const = 0;
  /// Whether the host knows the lengths that compress leaves. Does not wait.
  virtual bool exact(shortfall fallback = shortfall::evict_lowest) const = 0;
  /// The options of construction, with wave_tracks filled in. Does not wait.
  virtual cache_options const& options() const = 0;
  /// Whether construction succeeded. Does not wait.
  status const& valid() const { return readings().valid(); }

  /// Starts a sequence of `tokens_cached` tokens. Enqueues; does not wait.
  virtual status open(std::uint32_t sequence, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
                      sequence_id id = {}) = 0;
  /// Ends a sequence. Enqueues; does not wait.
  virtual status close(std::uint32_t sequence) = 0;
  /// Writes degrees and positions beside pages. Enqueues; does not wait.
  virtual status export_page_metadata(index_list sequences, page_metadata<> const& notes) = 0;
  /// Starts a sequence on pages that hold entries, from numbers beside the pages. Enqueues; does not wait.
  virtual status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                       page_metadata<> const& notes, sequence_id id = {}) = 0;
  /// Starts such a sequence with degrees and positions from plain arrays: a row of entries per layer and KV
  /// head, or one row. Enqueues; does not wait.
  virtual status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                       entry_metadata const& notes, sequence_id id = {}) = 0;
  /// Opens `into` as a copy of `from`. Enqueues; with `frozen` above 0 it waits for lengths that the host
  /// does not know.
  virtual status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen = 0, sequence_id id = {},
                      fork_rows how = fork_rows::copy) = 0;
  /// Goes back to the first `tokens` tokens seen. Enqueues; waits only if it goes back to before a gap, or
  /// for unknown tokens.
  virtual status truncate(std::uint32_t sequence, std::uint32_t tokens) = 0;
  /// Drops the entries at positions `first` to `last` - 1. Enqueues; waits only for frozen entries, or for
  /// unknown tokens.
  virtual status drop_positions(std::uint32_t sequence, position_t first, position_t last) = 0;
  /// Freezes exactly the first `length` entries of every track. Enqueues; waits for lengths that the host
  /// does not know.
  virtual status freeze(std::uint32_t sequence, std::uint32_t length) = 0;
  /// Does what merged_cache::copy_page does. Enqueues 1 launch; does not wait.
  virtual status copy_page(std::uint32_t from, std::uint32_t into) = 0;
  /// Moves positions from `first` on by `offset`, and turns keys. Waits on devices, then enqueues.
  virtual status shift(std::uint32_t sequence, position_t offset, rope_params const& rope = {},
                       position_t first = 0) = 0;
  /// Gives entries positions without gaps, and turns keys. Waits on devices, then enqueues.
  virtual status renumber(std::uint32_t sequence, rope_params const& rope = {}) = 0;
  /// Adds `counts[i]` pending entries to `sequences[i]`. Enqueues; does not wait.
  virtual status append(index_list sequences, index_list counts) = 0;
  /// Adds `counts[i]` pending entries, but first compresses sequences that are full. Enqueues; does not wait.
  virtual status append(index_list sequences, index_list counts, when_full const& full) = 0;
  /// Keeps the first `accepted[i]` pending entries of `sequences[i]`. Enqueues; does not wait.
  virtual status commit(index_list sequences, index_list accepted) = 0;
  /// Keeps the first `accepted[i]` pending entries, with counts that lie on the device. Enqueues; does not
  /// wait.
  virtual status commit(index_list sequences, device_list accepted) = 0;
  /// Notes what a kernel of the engine appends. Enqueues nothing; does not wait.
  virtual status append(index_list sequences, index_list counts, in_kernel_t) = 0;
  /// Notes what a kernel of the engine commits. Enqueues nothing; does not wait.
  virtual status commit(index_list sequences, in_kernel_t) = 0;

  /// Shows queries to the score: `query` [sequence][query head][query][key_dim] with their log-sum-exps `lse`
  /// [sequence][query head][query]. Enqueues; does not wait.
  virtual status observe(query_batch const& batch, any_rows const& query, log_sums<float const> lse,
                         attention_params const& params = {}, query_sample sample = {}) = 0;
  /// Shows probabilities to the score: `rows` [sequence][query head][query][slot]. Enqueues; does not wait.
  virtual status observe_rows(query_batch const& batch, head_rows<float const> rows,
                              attention_params const& params = {}, query_sample sample = {}) = 0;
  /// Sets the scores `rows` [sequence][KV head][slot] of a layer. Enqueues; does not wait.
  virtual status set_scores(std::uint32_t layer, index_list sequences, head_rows<float const> rows) = 0;
  /// Plans one round. Enqueues; does not wait for lists of up to 16,000 sequences.
  virtual status plan(index_list sequences, budget allowed, shortfall fallback = shortfall::evict_lowest) = 0;
  /// Applies the plan made last. Enqueues; does not wait.
  virtual status apply() = 0;
  /// Shrinks sequences to their budgets, in place. Enqueues; does not wait.
  virtual status compress(index_list sequences, budget allowed,
                          shortfall fallback = shortfall::evict_lowest) = 0;
  /// The length_bound that compress would leave. Does not wait.
  virtual std::uint32_t length_after(std::uint32_t sequence, budget allowed,
                                     shortfall fallback = shortfall::evict_lowest) const = 0;

  /// Calls attention::attend over this cache: `query` [sequence][query head][query][key_dim], `out` with
  /// value_dim channels. The element type of `out` is that of the queries, or float. Enqueues; does not wait.
  virtual status attend(query_batch const& batch, any_rows const& query, any_output const& out,
                        log_sums<float> lse = {}, attention_params const& params = {}) = 0;
  /// Calls attention::attend_and_observe over this cache. Enqueues; does not wait.
  virtual status attend_and_observe(query_batch const& batch, any_rows const& query, any_output const& out,
                                    span<float> memory, log_sums<float> lse = {},
                                    attention_params const& params = {}, query_sample sample = {}) = 0;
  /// Calls attention::write_log_degree over this cache. Enqueues; does not wait. Refuses policies that share
  /// entries.
  virtual status write_log_degree(std::uint32_t layer, index_list sequences, any_output const& out,
                                  std::uint32_t heads_per_track = 1,
                                  attention::behind_end behind = attention::behind_end::masked,
                                  std::uint32_t columns = 0) = 0;

  /// Slots in use of one track. Does not wait.
  std::uint32_t length(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return readings().length(layer, sequence, kv_head);
  }
  /// Length of the longest track. Does not wait.
  std::uint32_t longest(std::uint32_t sequence) const { return readings().longest(sequence); }
  /// Upper bound on the length of the longest track. Does not wait.
  std::uint32_t length_bound(std::uint32_t sequence) const { return readings().length_bound(sequence); }
  /// Tokens seen and pending: the position of the next token. Does not wait.
  std::uint32_t tokens(std::uint32_t sequence) const { return readings().tokens(sequence); }
  /// Entries in all tracks. Does not wait.
  std::size_t entries(std::uint32_t sequence) const { return readings().entries(sequence); }
  /// Bits of `warning` that the last compression left. Does not wait.
  std::uint32_t warnings(std::uint32_t sequence) const { return readings().warnings(sequence); }
  /// Fewest tokens that truncate can go back to. Does not wait.
  std::uint32_t compressed_at(std::uint32_t sequence) const { return readings().compressed_at(sequence); }
  /// Whether length_bound has reached the trigger. Does not wait.
  bool due(std::uint32_t sequence, trigger t) const { return readings().due(sequence, t); }
  /// Rounds of all compressions. Does not wait.
  std::uint32_t rounds(std::uint32_t sequence) const { return readings().rounds(sequence); }
  /// The ledger in executor memory. Does not wait.
  ledger_ref const& ledger() const { return readings().ledger(); }
  /// Whether a sequence is open. Does not wait.
  bool is_open(std::uint32_t sequence) const { return readings().is_open(sequence); }
  /// Whether the host knows the lengths of a sequence. Does not wait.
  virtual bool lengths_known(std::uint32_t sequence) const = 0;
  /// Lowers the bounds to the real lengths. Waits on devices.
  virtual void sync_lengths(std::uint32_t sequence) = 0;
  /// Requests a report of lengths. Enqueues a copy; does not wait.
  virtual status request_lengths() = 0;
  /// True once per report that has arrived. Does not wait.
  virtual bool poll_lengths() = 0;
  /// Requests stats. Enqueues a launch and a copy; does not wait.
  virtual status request_stats(index_list sequences) = 0;
  /// True once when the stats have arrived. Does not wait.
  virtual bool stats_ready() = 0;
  /// The stats of a track as of the last arrived request. Does not wait.
  virtual cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const = 0;
  /// The stats of all tracks of a sequence, summed. Does not wait.
  virtual stats_sum stats(std::uint32_t sequence) const = 0;
  /// Sets the step of Chelsea's schedule. Enqueues; does not wait.
  virtual status set_rounds(std::uint32_t sequence, std::uint32_t n) = 0;

  /// Number of bytes that save writes. Waits on devices.
  virtual std::size_t saved_bytes(std::uint32_t sequence) const = 0;
  /// Writes what the ledger knows of a sequence to host memory. Waits on devices.
  virtual status save(std::uint32_t sequence, span<std::byte> out) const = 0;
  /// Returns in a vector what `save` writes. Waits on devices.
  virtual std::vector<std::byte> save(std::uint32_t sequence) const = 0;
  /// Opens a sequence as it was saved. Enqueues, and may wait on devices.
  virtual status resume(std::uint32_t sequence, span<std::byte const> from) = 0;

  /// The held cache if its type is Cache; null otherwise. Does not wait.
  template <class Cache> Cache* get() { return static_cast<Cache*>(held_as(type_mark<Cache>())); }

protected:
  // The address tells types apart without RTTI, which some engines turn off.
  template <class Cache> static char const* type_mark() {
    static char const mark = 0;
    return &mark;
  }
  virtual ledger_readings const& readings() const = 0;
  virtual void* held_as(char const* mark) = 0;
};

namespace detail {

/// The any_cache that make_any_cache returns.
template <class Cache> class held_cache final : public any_cache {
public:
  explicit held_cache(Cache c) : cache_(std::move(c)) {}

  std::string name() const override { return name_of_policy(cache_.policy()); }
  observation_need needs_observation() const override { return cache_.needs_observation(); }
  bool exact(shortfall fallback) const override { return cache_.exact(fallback); }
  cache_options const& options() const override { return cache_.options(); }
  status set_rounds(std::uint32_t sequence, std::uint32_t n) override {
    return cache_.set_rounds(sequence, n);
  }
  bool lengths_known(std::uint32_t sequence) const override { return cache_.lengths_known(sequence); }
  void sync_lengths(std::uint32_t sequence) override { cache_.sync_lengths(sequence); }
  status request_lengths() override { return cache_.request_lengths(); }
  bool poll_lengths() override { return cache_.poll_lengths(); }
  status request_stats(index_list sequences) override { return cache_.request_stats(sequences); }
  bool stats_ready() override { return cache_.stats_ready(); }
  cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head) const override {
    return cache_.stats(layer, sequence, head);
  }
  stats_sum stats(std::uint32_t sequence) const override { return cache_.stats(sequence); }
  std::size_t saved_bytes(std::uint32_t sequence) const override { return cache_.saved_bytes(sequence); }
  status save(std::uint32_t sequence, span<std::byte> out) const override {
    return cache_.save(sequence, out);
  }
  std::vector<std::byte> save(std::uint32_t sequence) const override { return cache_.save(sequence); }
  status resume(std::uint32_t sequence, span<std::byte const> from) override {
    return cache_.resume(sequence, from);
  }
  status open(std::uint32_t sequence, std::uint32_t tokens, std::uint32_t frozen, sequence_id id) override {
    return cache_.open(sequence, tokens, frozen, id);
  }
  status close(std::uint32_t sequence) override { return cache_.close(sequence); }
  status export_page_metadata(index_list sequences, page_metadata<> const& notes) override {
    return cache_.export_page_metadata(sequences, notes);
  }
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
               page_metadata<> const& notes, sequence_id id) override {
    return cache_.adopt(sequence, entries, tokens, notes, id);
  }
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
               entry_metadata const& notes, sequence_id id) override {
    return cache_.adopt(sequence, entries, tokens, notes, id);
  }
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen, sequence_id id,
              fork_rows how) override {
    return cache_.fork(from, into, frozen, id, how);
  }
  status truncate(std::uint32_t sequence, std::uint32_t tokens) override {
    return cache_.truncate(sequence, tokens);
  }
  status drop_positions(std::uint32_t sequence, position_t first, position_t last) override {
    return cache_.drop_positions(sequence, first, last);
  }
  status freeze(std::uint32_t sequence, std::uint32_t length) override {
    return cache_.freeze(sequence, length);
  }
  status copy_page(std::uint32_t from, std::uint32_t into) override { return cache_.copy_page(from, into); }
  status shift(std::uint32_t sequence, position_t offset, rope_params const& rope,
               position_t first) override {
    return cache_.shift(sequence, offset, rope, first);
  }
  status renumber(std::uint32_t sequence, rope_params const& rope) override {
    return cache_.renumber(sequence, rope);
  }
  status append(index_list sequences, index_list counts) override { return cache_.append(sequences, counts); }
  status append(index_list sequences, index_list counts, when_full const& full) override {
    return cache_.append(sequences, counts, full);
  }
  status commit(index_list sequences, index_list accepted) override {
    return cache_.commit(sequences, accepted);
  }
  status commit(index_list sequences, device_list accepted) override {
    return cache_.commit(sequences, accepted);
  }
  status append(index_list sequences, index_list counts, in_kernel_t by) override {
    return cache_.append(sequences, counts, by);
  }
  status commit(index_list sequences, in_kernel_t by) override { return cache_.commit(sequences, by); }
  status observe(query_batch const& batch, any_rows const& query, log_sums<float const> lse,
                 attention_params const& params, query_sample sample) override {
    return std::visit([&](auto const& q) { return cache_.observe(batch, q, lse, params, sample); },
                      query.rows);
  }
  status observe_rows(query_batch const& batch, head_rows<float const> rows, attention_params const& params,
                      query_sample sample) override {
    return cache_.observe_rows(batch, rows, params, sample);
  }
  status set_scores(std::uint32_t layer, index_list sequences, head_rows<float const> rows) override {
    return cache_.set_scores(layer, sequences, rows);
  }
  status plan(index_list sequences, budget allowed, shortfall fallback) override {
    return cache_.plan(sequences, allowed, fallback);
  }
  status apply() override { return cache_.apply(); }
  status compress(index_list sequences, budget allowed, shortfall fallback) override {
    return cache_.compress(sequences, allowed, fallback);
  }
  std::uint32_t length_after(std::uint32_t sequence, budget allowed, shortfall fallback) const override {
    return cache_.length_after(sequence, allowed, fallback);
  }
  status attend(query_batch const& batch, any_rows const& query, any_output const& out, log_sums<float> lse,
                attention_params const& params) override {
    return with_rows("attend", query, out, [&](auto const& q, auto const& o) {
      return attention::attend(cache_.executor(), batch, q, cache_.ref(), o, lse, params);
    });
  }
  status attend_and_observe(query_batch const& batch, any_rows const& query, any_output const& out,
                            span<float> memory, log_sums<float> lse, attention_params const& params,
                            query_sample sample) override {
    return with_rows("attend_and_observe", query, out, [&](auto const& q, auto const& o) {
      return attention::attend_and_observe(cache_, batch, q, o, memory, lse, params, sample);
    });
  }
  status write_log_degree(std::uint32_t layer, index_list sequences, any_output const& out,
                          std::uint32_t heads_per_track, attention::behind_end behind,
                          std::uint32_t columns) override {
    auto const write = [&](auto const& ref) {
      return std::visit(
          [&](auto const& o) {
            return attention::write_log_degree(cache_.executor(), ref, layer, sequences, o, heads_per_track,
                                               behind, columns);
          },
          out);
    };
    return Cache::sharing::by_slot("any_cache::write_log_degree",
                                   "no bias per slot can express members (or call attend)", write,
                                   cache_.ref());
  }

private:
  ledger_readings const& readings() const override { return cache_; }
  void* held_as(char const* mark) override { return mark == type_mark<Cache>() ? &cache_ : nullptr; }

  template <class Call>
  static status with_rows(char const* name, any_rows const& query, any_output const& out, Call call) {
    return std::visit(
        [&](auto const& q, auto const& o) -> status {
          using from = std::remove_const_t<std::remove_pointer_t<decltype(q.data)>>;
          using to = std::remove_pointer_t<decltype(o.data)>;
          if constexpr (std::is_same_v<from, to> || std::is_same_v<to, float>) {
            return call(q, o);
          } else {
            return raise(refusal(message("any_cache::", name), "element type of the outputs",
                                 "another than that of the queries", "the same, or float"));
          }
        },
        query.rows, out);
  }

  Cache cache_;
};

}  // namespace detail

/// Returns `cache` behind an interface that does not name its type. Allocates one object on the heap;
/// enqueues nothing.
template <class Executor, class Policy, class Keys, class Values>
std::unique_ptr<any_cache> make_any_cache(merged_cache<Executor, Policy, Keys, Values> cache) {
  return std::make_unique<detail::held_cache<merged_cache<Executor, Policy, Keys, Values>>>(std::move(cache));
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
