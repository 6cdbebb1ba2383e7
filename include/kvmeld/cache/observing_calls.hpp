// SPDX-License-Identifier: Apache-2.0
// The calls of merged_cache by which an engine shows attention, queries or scores. Included by
// merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

template <class E, class P, class K, class V>
template <class Q>
status merged_cache<E, P, K, V>::observe(query_batch const& batch, head_rows<Q> query,
                                         log_sums<float const> lse, attention_params const& params,
                                         query_sample sample) {
  bool const absorbs = ledger_.table_floats != 0;
  bool const sums = !absorbs || ledger_.channels.count != 0;
  bool const chunks = detail::fold_of(policy_.score).chunk != 0;
  bool const without = !sums || chunks;  // what is observed takes no log-sum-exps
  char const* const null = query.data == nullptr    ? "query.data"
                           : lse.given() || without ? nullptr
                                                    : "lse.data";
  auto const problem = [&] {
    std::string text = chunks ? sharing::chunks_problem() : std::string();
    return text.empty() ? observation_problem(batch, params, sample, null) : text;
  };
  if (status s = refuse(problem); !s.ok()) return s;
  if constexpr (detail::observation_of_score<score_type>() != observation::none) {
    if (!needs_observation()) return {};
    batch_source const source{options_.extent, batch.staged(executor_)};
    return run_observation("observe", batch, source, sample, [&] {
      if constexpr (detail::has_table<score_type>) {
        detail::absorb_phase<score_type, Q> const phase{policy_.score, ledger_, source,
                                                        sample,        params,  query};
        if (absorbs) executor_.run(phase, options_.extent, source.items(), source);
      }
      if constexpr (detail::channel_bound<score_type>() != 0) {
        using phase_type = typename sharing::template observe_queries<score_type, keys_used, Q>;
        phase_type const phase{{policy_.score, ledger_, source, sample}, tensors_.keys, params, query, lse};
        if (sums && !chunks) executor_.run(phase, options_.extent, source.items(), source);
        if constexpr (contract::allows<score_uses::fold, score_type>) {
          detail::observe_chunks_phase<score_type, keys_used, Q> const inside{
              {policy_.score, ledger_, source, sample}, tensors_.keys, params, query};
          if (chunks) executor_.run(inside, options_.extent, source.items(), source);
        }
      }
    });
  }
  return {};
}

template <class E, class P, class K, class V>
template <class T>
status merged_cache<E, P, K, V>::observe_rows(query_batch const& batch, head_rows<T> rows,
                                              attention_params const& params, query_sample sample) {
  char const* const null = rows.data == nullptr ? "rows.data" : nullptr;
  auto const problem = [&] {
    std::string text = queries_problem("observe_rows");
    return text.empty() ? observation_problem(batch, params, sample, null) : text;
  };
  if (status s = refuse(problem); !s.ok()) return s;
  if constexpr (detail::channel_bound<score_type>() != 0) {
    if (!needs_observation()) return {};
    batch_source const source{options_.extent, batch.staged(executor_)};
    using phase_type = typename sharing::template observe_rows<score_type, T>;
    phase_type const phase{
        detail::observe_rows_phase<score_type, T>{{policy_.score, ledger_, source, sample}, params, rows}};
    return run_observation("observe_rows", batch, source, sample,
                           [&] { executor_.run(phase, options_.extent, source.items(), source); });
  }
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::observe_logits(query_batch const& batch, head_rows<float const> logits,
                                                log_sums<float const> lse, attention_params const& params,
                                                query_sample sample) {
  char const* const null = logits.data == nullptr ? "logits.data" : lse.given() ? nullptr : "lse.data";
  auto const problem = [&] {
    std::string text = queries_problem("observe_logits");
    return text.empty() ? observation_problem(batch, params, sample, null) : text;
  };
  auto const observe_all = [&](auto& executor) -> status {
    if (status s = refuse(problem); !s.ok()) return s;
    if constexpr (detail::channel_bound<score_type>() != 0) {
      if (!needs_observation()) return {};
      batch_source const source{options_.extent, batch.staged(executor)};
      detail::observe_logits_phase<score_type> const phase{
          {policy_.score, ledger_, source, sample}, params, logits, lse};
      return run_observation("observe_logits", batch, source, sample,
                             [&] { executor.run(phase, options_.extent, source.items(), source); });
    }
    return {};
  };
  return sharing::by_slot("observe_logits", "members have logits of their own (or call observe)", observe_all,
                          executor_);
}

template <class E, class P, class K, class V>
template <class T>
status merged_cache<E, P, K, V>::set_scores(std::uint32_t layer, index_list sequences, head_rows<T> rows) {
  auto const problem = [&] {
    return check_calls::set_scores(facts_, layer, sequences, rows.data == nullptr,
                                   full_name_of(policy_.score));
  };
  if (status s = refuse(problem); !s.ok()) return s;
  std::uint32_t const channel = ledger_.channels.find(channel_tag::given_score);
  detail::set_scores_phase<T> const phase{ledger_, stage(sequences), layer, channel, rows};
  return kvmeld::launch_all(executor_, "set_scores", [&] {
    executor_.run(phase, options_.extent, phase.work.sequence_count * options_.extent.kv_heads, phase);
  });
}

/// `null` names the argument that is a null pointer. It is nullptr if no argument is one.
template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::observation_problem(query_batch const& batch,
                                                          attention_params const& params, query_sample sample,
                                                          char const* null) const {
  std::string text = detail::query_sample_problem("observe", sample);
  if (text.empty() && sample.weights != nullptr && ledger_.table_floats != 0) {
    text = refusal("observe", "sample.weights", "given",
                   "null, because the policy's score absorbs queries, which have no weights");
  }
  return text.empty() ? check_calls::observe(facts_, batch, params, null, immediate) : text;
}

/// Why a score that needs queries cannot be fed attention; empty if it needs no queries.
template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::queries_problem(char const* call) const {
  if (!needs_observation().queries) return {};
  if (ledger_.table_floats == 0) {
    return refusal(call, "policy", "one whose score is of attention inside chunks",
                   "one of the engine's own attention, because its softmax is over all entries and not over "
                   "chunks (call observe)");
  }
  return refusal(
      call, "policy", "one whose score absorbs queries",
      "one that needs attention only, because attention does not contain the queries (call observe)");
}

/// Runs `launches`, and then counts the rows.
template <class E, class P, class K, class V>
template <class Launches>
status merged_cache<E, P, K, V>::run_observation(char const* call, query_batch const& batch,
                                                 batch_source const& source, query_sample sample,
                                                 Launches const& launches) {
  detail::observed_phase<score_type> const done{policy_.score, ledger_, source, sample};
  keep_mirror();
  status s = kvmeld::launch_all(executor_, call, [&] {
    launches();
    executor_.run(done, options_.extent, source.items(), source);
  });
  if (!s.ok()) return s;
  if constexpr (!immediate) {
    if (batch.on_device()) mirror_.observe_unlisted(batch.layer());
    for (std::uint32_t i = 0; i < batch.told(); ++i)
      mirror_.observe(batch.sequence(i), batch.layer(), sample.count(batch.queries(i)));
  }
  return s;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
