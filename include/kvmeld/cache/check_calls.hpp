// SPDX-License-Identifier: Apache-2.0
// The argument checks of merged_cache's calls. Each returns why the call is refused; empty if it is not.
#pragma once

#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/check_shared_budget.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/select/selector.hpp>
#include <kvmeld/sequences/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace check_calls {

/// Why an observation is refused; empty if it is not. `null` names the argument that is a null pointer. It is
/// nullptr if no argument is one. `readable`: the host can read the arrays of `params`.
inline std::string observe(ledger_ref const& l, query_batch const& batch, attention_params const& params,
                           char const* null, bool readable) {
  if (std::string text = detail::batch_problem("observe", l.extent, batch); !text.empty()) return text;
  if (std::string text = detail::params_problem("observe", params, l.extent.key_dim, readable); !text.empty())
    return text;
  auto const sequence_at = [&](std::size_t i) { return batch.sequence(static_cast<std::uint32_t>(i)); };
  if (std::string text = each_is_open("observe", l, batch.told(), sequence_at); !text.empty()) return text;
  bool any = batch.on_device() && batch.max_queries() != 0;
  for (std::uint32_t i = 0; i < batch.told(); ++i) {
    std::uint32_t const sequence = batch.sequence(i);
    std::uint32_t const since = l.seen[sequence] - l.sequence_state(sequence, sequence_word::compressed_at);
    if (l.padded && batch.queries(i) > max_of(since, 1u)) {
      return refusal(
          "observe", message("queries[", i, "]"), batch.queries(i), "at most ", max_of(since, 1u),
          ", because sequence ", sequence, " got ", since,
          " tokens since it was last compressed (options.padded: older tokens lie before empty slots)");
    }
    if (std::string problem = nothing_pending("observe", l, sequence); !problem.empty()) return problem;
    std::string text = first_track_problem(l, sequence, [&](track t) -> std::string {
      if (t.layer != batch.layer() || batch.queries(i) <= l.length[t.index]) return {};
      return refusal("observe", message("queries[", i, "]"), batch.queries(i), "at most ", l.length[t.index],
                     ", the entries of ", track_name(t), " (the queries are those of its last tokens)");
    });
    if (!text.empty()) return text;
    any = any || batch.queries(i) != 0;
  }
  if (null == nullptr || !any) return {};
  return refusal("observe", null, "null", "the rows of the attention that is observed");
}

/// Why set_scores is refused; empty if it is not. `null`: the rows are a null pointer. `score` names the
/// score of the policy.
inline std::string set_scores(ledger_ref const& l, std::uint32_t layer, index_list sequences, bool null,
                              std::string const& score) {
  if (l.channels.find(channel_tag::given_score) == l.channels.count) {
    return refusal("set_scores", "score of the policy", score, "score::given");
  }
  if (layer >= l.extent.layers) return refusal("set_scores", "layer", layer, "0 to ", l.extent.layers - 1);
  if (std::string text = is_open("set_scores", l, sequences); !text.empty()) return text;
  return null && !sequences.empty() ? refusal("set_scores", "rows.data", "null", "the rows of the scores")
                                    : std::string();
}

/// Stands for a layout that the host cannot read. It calls every row writable; phases ask the real layout.
struct unseen_rows {
  static constexpr bool always_writable = true;
  static constexpr bool writable(track, slot_t) { return true; }
};

/// Number of entries up to the last one that is frozen or that a layout refuses to write.
template <class Keys, class Values>
std::uint32_t shielded_length(ledger_ref const& l, track t, kv<Keys, Values> const& tensors) {
  std::uint32_t shielded = min_of(l.length[t.index], l.frozen[t.sequence]);
  if constexpr (!is_always_writable<Keys>::value || !is_always_writable<Values>::value) {
    for (slot_t s = shielded; s < l.length[t.index]; ++s) {
      if (!tensors.keys.writable(t, s) || !tensors.values.writable(t, s)) shielded = s + 1;
    }
  }
  return shielded;
}

/// Why empty slots cannot be taken out; empty if they can. Rows behind the first empty slot have to be
/// writable, because a compression takes empty slots out first.
template <class Keys, class Values>
std::string padding_problem(char const* call, ledger_ref const& l, track t, kv<Keys, Values> const& tensors) {
  std::uint32_t const from = l.word(t, track_word::padded_from);
  if (l.word(t, track_word::empty) == 0) return {};
  std::uint32_t const shielded = shielded_length(l, t, tensors);
  if (shielded < from) return {};
  return refusal(call, message("slot ", shielded - 1, " of ", track_name(t)), "not writable",
                 "writable, because it lies behind the empty slot ", from - 1, " (options.padded)");
}

/// Why a budget is none; empty if it is one.
inline std::string budget_value(char const* call, budget const& allowed) {
  if (allowed.is_ratio() && !(is_within(allowed.ratio_value(), 0.0, 1.0) && allowed.ratio_value() > 0.0)) {
    return refusal(call, "budget ratio", allowed.ratio_value(), "above 0 and at most 1");
  }
  if (allowed.is_per_track() && allowed.table() == nullptr) {
    return refusal(call, "per-track budget table", "null", "an array with one number per track");
  }
  if (allowed.is_per_layer() && allowed.table() == nullptr) {
    return refusal(call, "per-layer budget table", "null", "an array with one number per layer");
  }
  return {};
}

/// Why a track of `length` entries, of which the first `frozen` must not be written, cannot be left `limit`
/// of them; empty if it can.
template <class Policy>
std::string pins_within(char const* call, std::string const& whose, Policy const& policy,
                        std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) {
  pins const p = policy.select.pinned(length, limit, min_of(length, frozen));
  // A set needs an entry besides the pinned ones, in whose slot its result lies.
  std::uint32_t const least =
      p.total() + (facts_of<identify_facts>(policy.identify).makes_sets && p.total() < length ? 1 : 0);
  if (limit >= least) return {};
  return refusal(call, whose, limit, "at least ", least, ", because ", p.total(), " of the ", length,
                 " entries are pinned (", p.sinks, " sinks or frozen, ", p.recents, " recents, ", p.heavy,
                 " by score)");
}

/// Why no sequence of `tokens` tokens can be brought to this budget while it has never been compressed and
/// nothing of it is frozen; empty if it can, once a policy that ranks by attention was shown some.
template <class Policy>
std::string new_sequence(char const* call, budget const& allowed, Policy const& policy,
                         cache_options const& options, std::uint32_t tokens) {
  std::string text = shared_budget(call, allowed, policy, options);
  if (text.empty()) text = budget_value(call, allowed);
  if (!text.empty()) return text;
  std::uint32_t const limit = allowed.resolve(track{0, 0, 0, 0}, tokens);
  if (limit == 0) return refusal(call, message("budget of ", tokens, " tokens"), 0, "at least 1");
  return tokens <= limit
             ? std::string()
             : pins_within(call, message("budget of ", tokens, " tokens"), policy, tokens, limit, 0);
}

/// Why a compression is refused; empty if it is not. Budgets have to be valid, scores observed where they are
/// needed, nothing pending, and pinned entries within the budget.
template <class Policy, class Keys, class Values>
std::string compress(char const* call, ledger_ref const& l, index_list sequences, budget allowed,
                     Policy const& policy, kv<Keys, Values> const& tensors) {
  if (std::string text = is_open(call, l, sequences); !text.empty()) return text;
  if (std::string text = budget_value(call, allowed); !text.empty()) return text;
  for (std::uint32_t sequence : sequences) {
    if (std::string text = nothing_pending(call, l, sequence); !text.empty()) return text;
    bool shrinks = false;  // whether the track's budget scope is above its budget
    std::string text = first_track_problem(l, sequence, [&](track t) -> std::string {
      std::uint32_t const length = l.held(t);
      std::uint32_t const limit = allowed.resolve(t, l.seen[sequence]);
      if (allowed.among() != budget_scope::head && detail::leads_budget(allowed.among(), t)) {
        auto const held = [&](track other) { return l.held(other); };
        shrinks = detail::sum_of_budget(l.extent, t, allowed, l.seen[sequence], held).excess() != 0;
      }
      if (limit == 0) return refusal(call, message("budget of ", track_name(t)), 0, "at least 1");
      if (std::string problem = padding_problem(call, l, t, tensors); !problem.empty()) return problem;
      if (length <= limit && !shrinks && !facts_of<select_facts>(policy.select).thins_any_track) return {};
      if (need_of(policy) && l.word(t, track_word::observed_rows) == 0) {
        return refusal(call, message("number of observed rows of ", track_name(t)), 0,
                       "at least 1, because the policy ranks entries by attention (call observe for every "
                       "layer first)");
      }
      if (length <= limit) return {};
      return pins_within(call, message("budget of ", track_name(t)), policy, length, limit,
                         shielded_length(l, t, tensors));
    });
    if (!text.empty()) return text;
  }
  return {};
}

/// Why tracks cannot share one plan; empty if they can. They need equal lengths, budgets and numbers of
/// members, and beginnings of equal length that may not be written.
template <class Keys, class Values>
std::string scopes(char const* call, ledger_ref const& l, index_list sequences, budget allowed,
                   plan_scope scope, kv<Keys, Values> const& tensors) {
  if (scope == plan_scope::head) return {};
  for (std::uint32_t sequence : sequences) {
    std::string text = first_track_problem(l, sequence, [&](track t) -> std::string {
      track const leader = make_track(l.extent, scope == plan_scope::layer ? t.layer : 0, sequence, 0);
      auto const differ = [&](char const* what, std::uint32_t own, std::uint32_t other) {
        return own == other ? std::string()
                            : refusal(call, message(what, " of ", track_name(t)), own, other, ", as that of ",
                                      track_name(leader), ", whose plan it shares (options.scope)");
      };
      std::string problem = differ("length", l.length[t.index], l.length[leader.index]);
      if (problem.empty()) {
        problem =
            differ("budget", allowed.resolve(t, l.seen[sequence]), allowed.resolve(leader, l.seen[sequence]));
      }
      if (problem.empty()) problem = differ("number of members", l.members.held(t), l.members.held(leader));
      if (problem.empty()) {
        problem = differ("length of the beginning that may not be written", shielded_length(l, t, tensors),
                         shielded_length(l, leader, tensors));
      }
      return problem;
    });
    if (!text.empty()) return text;
  }
  return {};
}

inline std::string no_plan() { return refusal("apply", "plan", "missing", "made first (call plan)"); }

template <class Keys, class Values>
std::string apply(ledger_ref const& l, plan_ref const& plan, work_list work,
                  kv<Keys, Values> const& tensors) {
  if (work.sequence_count == 0) return no_plan();
  for (std::uint32_t item = 0; item < work.tracks(l.extent); ++item) {
    track const t = work.at(l.extent, item);
    if (std::string text = nothing_pending("apply", l, t.sequence); !text.empty()) return text;
    std::string const text = plan_problem(l, t, plan, item, shielded_length(l, t, tensors));
    if (!text.empty()) return refusal_within("apply", text);
  }
  return {};
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
