// A cache whose policy, layouts and executor are chosen at run time: one virtual interface in front of any
// merged_cache.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/attend_shared.hpp>
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
#include <kvmeld/queries/probes.hpp>
#include <kvmeld/queries/queries.hpp>
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
  /// The rows: float, half or bfloat16.
  std::variant<head_rows<float const>, head_rows<half const>, head_rows<bfloat16 const>> rows;

  template <class T>
  any_rows(head_rows<T> r)
      : rows(head_rows<T const>{r.data, r.sequence_stride, r.head_stride, r.row_stride}) {}
};

/// Rows to write, of any of the same element types.
using any_output = std::variant<head_rows<float>, head_rows<half>, head_rows<bfloat16>>;

/// Owns a cache of any type and forwards calls to it; see merged_cache for what the calls do and refuse.
/// Move-only. Each call costs one virtual call more. An empty or moved-from any_cache refuses its calls. The
/// element type of `out` is that of the queries, or float.
class any_cache {
public:
  any_cache() = default;
  template <class Executor, class Policy, class Keys, class Values>
  explicit any_cache(merged_cache<Executor, Policy, Keys, Values> cache)
      : held_(std::make_unique<model<merged_cache<Executor, Policy, Keys, Values>>>(std::move(cache))) {}

  bool empty() const { return held_ == nullptr; }
  std::string name() const {
    return ask([&](interface& held) { return held.name(); });
  }
  bool needs_attention() const {
    return ask([&](interface& held) { return held.needs_attention(); });
  }
  observation_need needs_observation() const {
    return ask([&](interface& held) { return held.needs_observation(); });
  }
  bool exact(shortfall fallback = shortfall::keep) const {
    return ask([&](interface& held) { return held.exact(fallback); });
  }
  status const& valid() const {
    static status const nothing(no_cache());
    return empty() ? nothing : held_->readings().valid();
  }
  cache_options const& sizes() const {
    static cache_options const nothing{};
    return empty() ? nothing : held_->sizes();
  }

  status open(std::uint32_t sequence, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              sequence_id id = {}) {
    return ask([&](interface& held) { return held.open(sequence, tokens_cached, frozen, id); });
  }
  status close(std::uint32_t sequence) {
    return ask([&](interface& held) { return held.close(sequence); });
  }
  status export_page_metadata(index_list sequences, page_metadata<> const& notes) {
    return ask([&](interface& held) { return held.export_page_metadata(sequences, notes); });
  }
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
               page_metadata<> const& notes, sequence_id id = {}) {
    return ask([&](interface& held) { return held.adopt(sequence, entries, tokens, notes, id); });
  }
  status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
               entry_metadata const& notes, sequence_id id = {}) {
    return ask([&](interface& held) { return held.adopt(sequence, entries, tokens, notes, id); });
  }
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen = 0, sequence_id id = {},
              fork_rows how = fork_rows::copy) {
    return ask([&](interface& held) { return held.fork(from, into, frozen, id, how); });
  }
  status truncate(std::uint32_t sequence, std::uint32_t tokens) {
    return ask([&](interface& held) { return held.truncate(sequence, tokens); });
  }
  status freeze(std::uint32_t sequence, std::uint32_t length) {
    return ask([&](interface& held) { return held.freeze(sequence, length); });
  }
  status shift(std::uint32_t sequence, position_t offset, rope_params const& rope = {},
               position_t first = 0) {
    return ask([&](interface& held) { return held.shift(sequence, offset, rope, first); });
  }
  status append(index_list sequences, index_list counts) {
    return ask([&](interface& held) { return held.append(sequences, counts); });
  }
  status commit(index_list sequences, index_list accepted) {
    return ask([&](interface& held) { return held.commit(sequences, accepted); });
  }
  status append(index_list sequences, index_list counts, when_full const& full) {
    return ask([&](interface& held) { return held.append(sequences, counts, full); });
  }

  status observe(query_batch const& batch, any_rows query, log_sums<float const> lse,
                 attention_params const& params = {}, query_sample probes = {}) {
    return ask([&](interface& held) { return held.observe(batch, query, lse, params, probes); });
  }
  status observe_rows(query_batch const& batch, head_rows<float const> rows,
                      attention_params const& params = {}, query_sample probes = {}) {
    return ask([&](interface& held) { return held.observe_rows(batch, rows, params, probes); });
  }
  status plan(index_list sequences, budget allowed, shortfall fallback = shortfall::keep) {
    return ask([&](interface& held) { return held.plan(sequences, allowed, fallback); });
  }
  status apply() {
    return ask([&](interface& held) { return held.apply(); });
  }
  status compress(index_list sequences, budget allowed, shortfall fallback = shortfall::keep) {
    return ask([&](interface& held) { return held.compress(sequences, allowed, fallback); });
  }

  /// Calls attention::attend over this cache.
  status attend(query_batch const& batch, any_rows query, any_output out, log_sums<float> lse = {},
                attention_params const& params = {}) {
    return ask([&](interface& held) { return held.attend(batch, query, out, lse, params); });
  }
  /// Calls attention::attend_and_observe over this cache.
  status attend_and_observe(query_batch const& batch, any_rows query, any_output out, span<float> memory,
                            log_sums<float> lse = {}, attention_params const& params = {},
                            query_sample probes = {}) {
    return ask([&](interface& held) {
      return held.attend_and_observe(batch, query, out, memory, lse, params, probes);
    });
  }
  /// Calls attention::write_log_degree over this cache. Refuses policies that share entries.
  status write_log_degree(std::uint32_t layer, index_list sequences, any_output out,
                          std::uint32_t heads_per_track = 1,
                          attention::behind_end behind = attention::behind_end::masked) {
    return ask([&](interface& held) {
      return held.write_log_degree(layer, sequences, out, heads_per_track, behind);
    });
  }

  std::uint32_t length(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return ask([&](interface& held) { return held.readings().length(layer, sequence, kv_head); });
  }
  std::uint32_t longest(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().longest(sequence); });
  }
  std::uint32_t length_bound(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().length_bound(sequence); });
  }
  std::uint32_t length_after(std::uint32_t sequence, budget allowed,
                             shortfall fallback = shortfall::keep) const {
    return ask([&](interface& held) { return held.length_after(sequence, allowed, fallback); });
  }
  void sync_lengths(std::uint32_t sequence) {
    ask([&](interface& held) { held.sync_lengths(sequence); });
  }
  status request_lengths() {
    return ask([&](interface& held) { return held.request_lengths(); });
  }
  bool poll_lengths() {
    return ask([&](interface& held) { return held.poll_lengths(); });
  }
  status request_stats(index_list sequences) {
    return ask([&](interface& held) { return held.request_stats(sequences); });
  }
  bool stats_ready() {
    return ask([&](interface& held) { return held.stats_ready(); });
  }
  std::uint32_t rounds(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().rounds(sequence); });
  }
  status set_rounds(std::uint32_t sequence, std::uint32_t n) {
    return ask([&](interface& held) { return held.set_rounds(sequence, n); });
  }
  cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return ask([&](interface& held) { return held.stats(layer, sequence, kv_head); });
  }
  stats_sum stats(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.stats(sequence); });
  }
  std::uint32_t tokens(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().tokens(sequence); });
  }
  std::size_t entries(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().entries(sequence); });
  }
  std::uint32_t warnings(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().warnings(sequence); });
  }
  std::uint32_t compressed_at(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.readings().compressed_at(sequence); });
  }
  bool due(std::uint32_t sequence, trigger t) const {
    return ask([&](interface& held) { return held.readings().due(sequence, t); });
  }
  ledger_ref const& ledger() const {
    static ledger_ref const nothing{};
    return empty() ? nothing : held_->readings().ledger();
  }

  std::size_t saved_bytes(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.saved_bytes(sequence); });
  }
  status save(std::uint32_t sequence, span<std::byte> out) const {
    return ask([&](interface& held) { return held.save(sequence, out); });
  }
  std::vector<std::byte> save(std::uint32_t sequence) const {
    return ask([&](interface& held) { return held.save(sequence); });
  }
  status resume(std::uint32_t sequence, span<std::byte const> from) {
    return ask([&](interface& held) { return held.resume(sequence, from); });
  }

  /// The held cache if its type is Cache; null otherwise.
  template <class Cache> Cache* get() {
    auto* const m = held_ == nullptr ? nullptr : held_->as(&type_mark<Cache>);
    return static_cast<Cache*>(m);
  }

private:
  // The address tells types apart without RTTI, which some engines turn off.
  template <class> static inline char type_mark = 0;

  struct interface {
    virtual ~interface() = default;
    virtual std::string name() const = 0;
    virtual bool needs_attention() const = 0;
    virtual observation_need needs_observation() const = 0;
    virtual bool exact(shortfall) const = 0;
    virtual cache_options const& sizes() const = 0;
    virtual ledger_readings& readings() = 0;
    virtual status set_rounds(std::uint32_t, std::uint32_t) = 0;
    virtual void sync_lengths(std::uint32_t) = 0;
    virtual status request_lengths() = 0;
    virtual bool poll_lengths() = 0;
    virtual status request_stats(index_list) = 0;
    virtual bool stats_ready() = 0;
    virtual cache_stats stats(std::uint32_t, std::uint32_t, std::uint32_t) const = 0;
    virtual stats_sum stats(std::uint32_t) const = 0;
    virtual std::size_t saved_bytes(std::uint32_t) const = 0;
    virtual status save(std::uint32_t, span<std::byte>) const = 0;
    virtual std::vector<std::byte> save(std::uint32_t) const = 0;
    virtual status resume(std::uint32_t, span<std::byte const>) = 0;
    virtual void* as(char const* mark) = 0;
    virtual status open(std::uint32_t, std::uint32_t, std::uint32_t, sequence_id) = 0;
    virtual status close(std::uint32_t) = 0;
    virtual status export_page_metadata(index_list, page_metadata<> const&) = 0;
    virtual status adopt(std::uint32_t, std::uint32_t, std::uint32_t, page_metadata<> const&,
                         sequence_id) = 0;
    virtual status adopt(std::uint32_t, std::uint32_t, std::uint32_t, entry_metadata const&, sequence_id) = 0;
    virtual status fork(std::uint32_t, std::uint32_t, std::uint32_t, sequence_id, fork_rows) = 0;
    virtual status truncate(std::uint32_t, std::uint32_t) = 0;
    virtual status freeze(std::uint32_t, std::uint32_t) = 0;
    virtual status shift(std::uint32_t, position_t, rope_params const&, position_t) = 0;
    virtual status append(index_list, index_list) = 0;
    virtual status append(index_list, index_list, when_full const&) = 0;
    virtual status commit(index_list, index_list) = 0;
    virtual status observe(query_batch const&, any_rows const&, log_sums<float const>,
                           attention_params const&, query_sample) = 0;
    virtual status observe_rows(query_batch const&, head_rows<float const>, attention_params const&,
                                query_sample) = 0;
    virtual status plan(index_list, budget, shortfall) = 0;
    virtual status apply() = 0;
    virtual status compress(index_list, budget, shortfall) = 0;
    virtual std::uint32_t length_after(std::uint32_t, budget, shortfall) const = 0;
    virtual status attend(query_batch const&, any_rows const&, any_output const&, log_sums<float>,
                          attention_params const&) = 0;
    virtual status attend_and_observe(query_batch const&, any_rows const&, any_output const&, span<float>,
                                      log_sums<float>, attention_params const&, query_sample) = 0;
    virtual status write_log_degree(std::uint32_t, index_list, any_output const&, std::uint32_t,
                                    attention::behind_end) = 0;
  };

  template <class Cache> struct model final : interface {
    Cache cache;
    explicit model(Cache c) : cache(std::move(c)) {}

    std::string name() const override { return name_of_policy(cache.policy()); }
    bool needs_attention() const override { return traits_of_score(cache.policy().score).needs_attention; }
    observation_need needs_observation() const override { return cache.needs_observation(); }
    bool exact(shortfall fallback) const override { return cache.exact(fallback); }
    cache_options const& sizes() const override { return cache.sizes(); }
    ledger_readings& readings() override { return cache; }
    status set_rounds(std::uint32_t sequence, std::uint32_t n) override {
      return cache.set_rounds(sequence, n);
    }
    void sync_lengths(std::uint32_t sequence) override { cache.sync_lengths(sequence); }
    status request_lengths() override { return cache.request_lengths(); }
    bool poll_lengths() override { return cache.poll_lengths(); }
    status request_stats(index_list sequences) override { return cache.request_stats(sequences); }
    bool stats_ready() override { return cache.stats_ready(); }
    cache_stats stats(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head) const override {
      return cache.stats(layer, sequence, head);
    }
    stats_sum stats(std::uint32_t sequence) const override { return cache.stats(sequence); }
    std::size_t saved_bytes(std::uint32_t sequence) const override { return cache.saved_bytes(sequence); }
    status save(std::uint32_t sequence, span<std::byte> out) const override {
      return cache.save(sequence, out);
    }
    std::vector<std::byte> save(std::uint32_t sequence) const override { return cache.save(sequence); }
    status resume(std::uint32_t sequence, span<std::byte const> from) override {
      return cache.resume(sequence, from);
    }
    void* as(char const* mark) override { return mark == &type_mark<Cache> ? &cache : nullptr; }
    status open(std::uint32_t sequence, std::uint32_t tokens, std::uint32_t frozen, sequence_id id) override {
      return cache.open(sequence, tokens, frozen, id);
    }
    status close(std::uint32_t sequence) override { return cache.close(sequence); }
    status export_page_metadata(index_list sequences, page_metadata<> const& notes) override {
      return cache.export_page_metadata(sequences, notes);
    }
    status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                 page_metadata<> const& notes, sequence_id id) override {
      return cache.adopt(sequence, entries, tokens, notes, id);
    }
    status adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                 entry_metadata const& notes, sequence_id id) override {
      return cache.adopt(sequence, entries, tokens, notes, id);
    }
    status fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen, sequence_id id,
                fork_rows how) override {
      return cache.fork(from, into, frozen, id, how);
    }
    status truncate(std::uint32_t sequence, std::uint32_t tokens) override {
      return cache.truncate(sequence, tokens);
    }
    status freeze(std::uint32_t sequence, std::uint32_t length) override {
      return cache.freeze(sequence, length);
    }
    status shift(std::uint32_t sequence, position_t offset, rope_params const& rope,
                 position_t first) override {
      return cache.shift(sequence, offset, rope, first);
    }
    status append(index_list sequences, index_list counts) override {
      return cache.append(sequences, counts);
    }
    status append(index_list sequences, index_list counts, when_full const& full) override {
      return cache.append(sequences, counts, full);
    }
    status commit(index_list sequences, index_list accepted) override {
      return cache.commit(sequences, accepted);
    }
    status observe(query_batch const& batch, any_rows const& query, log_sums<float const> lse,
                   attention_params const& params, query_sample probes) override {
      return std::visit([&](auto const& q) { return cache.observe(batch, q, lse, params, probes); },
                        query.rows);
    }
    status observe_rows(query_batch const& batch, head_rows<float const> rows, attention_params const& params,
                        query_sample probes) override {
      return cache.observe_rows(batch, rows, params, probes);
    }
    status plan(index_list sequences, budget allowed, shortfall fallback) override {
      return cache.plan(sequences, allowed, fallback);
    }
    status apply() override { return cache.apply(); }
    status compress(index_list sequences, budget allowed, shortfall fallback) override {
      return cache.compress(sequences, allowed, fallback);
    }
    std::uint32_t length_after(std::uint32_t sequence, budget allowed, shortfall fallback) const override {
      return cache.length_after(sequence, allowed, fallback);
    }
    status attend(query_batch const& batch, any_rows const& query, any_output const& out, log_sums<float> lse,
                  attention_params const& params) override {
      return with_rows("attend", query, out, [&](auto const& q, auto const& o) {
        return attention::attend(cache.executor(), batch, q, cache.ref(), o, lse, params);
      });
    }
    status attend_and_observe(query_batch const& batch, any_rows const& query, any_output const& out,
                              span<float> memory, log_sums<float> lse, attention_params const& params,
                              query_sample probes) override {
      return with_rows("attend_and_observe", query, out, [&](auto const& q, auto const& o) {
        return attention::attend_and_observe(cache, batch, q, o, memory, lse, params, probes);
      });
    }
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
    status write_log_degree(std::uint32_t layer, index_list sequences, any_output const& out,
                            std::uint32_t heads_per_track, attention::behind_end behind) override {
      if constexpr (Cache::shares) {
        return raise(
            refusal("any_cache::write_log_degree", "policy", "one that shares entries",
                    "one that does not, because no bias per slot can express members (or call attend)"));
      } else {
        return std::visit(
            [&](auto const& o) {
              return attention::write_log_degree(cache.executor(), cache.ref(), layer, sequences, o,
                                                 heads_per_track, behind);
            },
            out);
      }
    }
  };

  static std::string no_cache() { return refusal("any_cache", "cache", "none", "one that was made"); }

  /// Returns call(held cache). If there is no cache, refuses: returns the refusal if `call` returns a status,
  /// else a default value.
  template <class Call> auto ask(Call call) const -> decltype(call(std::declval<interface&>())) {
    using answer = decltype(call(std::declval<interface&>()));
    if (held_ != nullptr) return call(*held_);
    status refused = raise(no_cache());
    if constexpr (std::is_same_v<answer, status>) {
      return refused;
    } else {
      return answer();
    }
  }

  std::unique_ptr<interface> held_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
