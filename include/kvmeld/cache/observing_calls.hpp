// The calls that show a cache attention.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/cache/sequence_calls.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/log_sums.hpp>
#include <kvmeld/core/probes.hpp>
#include <kvmeld/core/queries.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/observe.hpp>
#include <kvmeld/score/observe_logits.hpp>
#include <kvmeld/score/observe_shared.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache through which scores learn of attention; see there for what refused calls do. Call one of the
/// three once per layer and block of queries. They do nothing where the policy needs no attention.
template <class Executor, class Policy, class Keys, class Values>
class observing_calls : public sequence_calls<Executor, Policy, Keys, Values> {
  using base = sequence_calls<Executor, Policy, Keys, Values>;
  using score_type = typename Policy::score_type;

public:
  using base::shares;

  /// As merged_cache.
  observing_calls(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : base(std::move(executor), policy, tensors, sizes) {}

  /// What the policy has to be shown: observation_of<Policy> tells part of it at compile time.
  observation_need needs_observation() const { return need_of(this->policy_); }

  /// Feeds the score with the attention of the last `batch.queries[i]` committed tokens of each sequence, or of the
  /// `probes` among them, recomputed from their queries [.., query_heads, key_dim] and the log-sum-exps (natural log, as
  /// `attention::extend` gives them, or in_base_two(rows); degrees and sink included). Rows of queries that are no probes are
  /// not read.
  template <class Q>
  status observe(query_batch const& batch, head_rows<Q> query, log_sums<float const> lse,
                 attention_params const& params = {}, probe_rows probes = {}) {
    char const* const null = query.data == nullptr ? "query.data" : lse.given() ? nullptr : "lse.data";
    if (status s = check(batch, params, probes, null); !s.ok()) return s;
    if constexpr (score_type::needs_attention) {
      if (!wants()) return {};
      batch_source const source{this->sizes_.extent, batch.staged(this->executor_)};
      using phase_type = std::conditional_t<shares, observe_shared_phase<score_type, Keys, Q>,
                                            observe_queries_phase<score_type, Keys, Q>>;
      return run("observe", phase_type{of(source, probes), this->tensors_.keys, params, query, lse}, batch);
    }
    return {};
  }

  /// The same from probabilities the engine has: rows [.., query_heads] of at least as many slots as entries are held;
  /// where entries are shared, members follow the slots. Any other scores, too (docs/observing.md): the numbers are added as they
  /// are, and neither negative ones nor NaN are refused.
  template <class T>
  status observe_rows(query_batch const& batch, head_rows<T> rows, attention_params const& params = {},
                      probe_rows probes = {}) {
    if (status s = check(batch, params, probes, rows.data == nullptr ? "rows.data" : nullptr); !s.ok())
      return s;
    if constexpr (score_type::needs_attention) {
      if (!wants()) return {};
      batch_source const source{this->sizes_.extent, batch.staged(this->executor_)};
      return run("observe_rows", observe_rows_phase<score_type, T, shares>{of(source, probes), params, rows},
                 batch);
    }
    return {};
  }

  /// The same from logits that attention has left, as attention::extend_and_observe does: scaled, capped, with the log
  /// degree added, one row per probe (not per query) [.., query_heads, probes] of at least as many slots as entries are held.
  /// Log-sum-exps are one per query. Refuses policies that share entries.
  status observe_logits(query_batch const& batch, head_rows<float const> logits, log_sums<float const> lse,
                        attention_params const& params = {}, probe_rows probes = {}) {
    if constexpr (shares) {
      return report(refusal("observe_logits", "policy", "one that shares entries",
                            "one that does not, because members have logits of their own (or call observe)"));
    } else {
      char const* const null = logits.data == nullptr ? "logits.data" : lse.given() ? nullptr : "lse.data";
      if (status s = check(batch, params, probes, null); !s.ok()) return s;
      if constexpr (score_type::needs_attention) {
        if (!wants()) return {};
        batch_source const source{this->sizes_.extent, batch.staged(this->executor_)};
        return run("observe_logits",
                   observe_logits_phase<score_type>{of(source, probes), params, logits, lse}, batch);
      }
      return {};
    }
  }

  /// What the calls above would refuse, but for null rows.
  status check_observation(query_batch const& batch, attention_params const& params = {},
                           probe_rows probes = {}) const {
    return check(batch, params, probes, nullptr);
  }

private:
  status check(query_batch const& batch, attention_params const& params, probe_rows probes,
               char const* null) const {
    return this->refuse([&] {
      std::string text = probes_problem("observe", probes);
      constexpr bool readable = is_immediate<Executor>::value;
      return text.empty() ? check_calls::observe(this->facts_, batch, params, null, readable) : text;
    });
  }
  bool wants() const { return traits_of_score(this->policy_.score).needs_attention; }
  observe_base<score_type> of(batch_source const& source, probe_rows probes) const {
    return {this->policy_.score, this->ledger_, source, probes};
  }
  template <class Phase> status run(char const* call, Phase const& phase, query_batch const& batch) {
    batch_source const& source = phase.source;
    observed_phase<score_type> const done{this->policy_.score, this->ledger_, source, phase.probes};
    this->keep_known();
    status s = kvmeld::launch_all(this->executor_, call, [&] {
      this->executor_.run(phase, this->sizes_.extent, source.items(), source);
      this->executor_.run(done, this->sizes_.extent, source.items(), source);
    });
    if (!s.ok()) return s;
    for (std::uint32_t i = 0; i < batch.size(); ++i)
      this->known_.observe(batch.sequence(i), batch.layer(), phase.probes.count(batch.queries(i)));
    return s;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
