// SPDX-License-Identifier: Apache-2.0
// Predicts from numbers alone the lengths that a compression leaves (upper bounds, often exact), and how many
// rounds it takes.
#pragma once

#include <kvmeld/cache/check_shared_budget.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// True for policies that keep exactly what their selector pins, and the centres. Their lengths follow from
/// numbers alone.
template <class Policy> bool keeps_pins_only(Policy const& p) {
  return facts_of<identify_facts>(p.identify).drops_unmerged && facts_of<select_facts>(p.select).pins_exactly;
}

/// Whether the length after `compress` follows from the length before it and the budget. A policy that merges
/// similar entries meets its budget only if enough rows are finite, which depends on data; it is exact if the
/// fallback evicts the entries above the budget.
template <class Policy> bool is_exact(Policy const& p, shortfall fallback) {
  select_facts const s = facts_of<select_facts>(p.select);
  return keeps_pins_only(p) || (facts_of<identify_facts>(p.identify).meets_budget && s.pins_exactly &&
                                !s.makes_centers && fallback == shortfall::evict_lowest);
}

/// Upper bound on the entries that a track of at most `bound` entries keeps under a budget of `limit`. It is
/// exact if is_exact and `known` (the bound is the length). `frozen` entries at the beginning stay.
/// `only`: all other rows may be written.
template <class Policy>
std::uint32_t bound_after(Policy const& p, std::uint32_t bound, bool known, std::uint32_t limit,
                          std::uint32_t frozen, bool only, shortfall fallback) {
  if (bound <= limit) return bound;
  if (!is_exact(p, fallback) && fallback == shortfall::keep) return bound;
  if (!known || !only || !keeps_pins_only(p)) return limit;
  pins const stay = p.select.pinned(bound, limit, frozen);
  return min_of(limit, max_of(1u, stay.total() + stay.centers));  // see pins_of
}

/// Predicts what a compression of sequences leaves, as far as the host can tell before it.
template <class Policy> class forecast {
public:
  /// `facts` are the ledger's words as the host knows them. `writes_all`: no layout refuses to write rows.
  /// `fits`: nor do rows that stay keep a track above its budget, because the host has asked the layouts.
  forecast(Policy const& p, ledger_ref const& facts, bool writes_all, bool fits, budget allowed,
           shortfall fallback)
      : policy_(p),
        facts_(facts),
        writes_all_(writes_all),
        fits_(fits),
        allowed_(allowed),
        fallback_(fallback) {}

  /// Calls f(track, bound, sum) for every track of a sequence. `bound`: the most entries that it holds after
  /// the compression. `sum`: what the tracks of its budget scope hold now and may keep. `known`: the lengths
  /// in `facts` are exact. If tracks share their budgets, each of them may keep what the others lose.
  template <class F> void each_track(std::uint32_t sequence, bool known, F f) const {
    shape const& extent = facts_.extent;
    auto const held = [&](track t) { return facts_.held(t); };
    budget_sum sum;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        track const t = make_track(extent, layer, sequence, head);
        std::uint32_t const before = held(t), limit = allowed_.resolve(t, facts_.seen[sequence]);
        if (tracks_per_budget(allowed_.among(), extent) == 1) {
          std::uint32_t const after =
              bound_after(policy_, before, known, limit, facts_.frozen[sequence], writes_all_, fallback_);
          f(t, fits_ ? after : before, budget_sum{1, before, limit});
          continue;
        }
        if (leads_budget(allowed_.among(), t))
          sum = sum_of_budget(extent, t, allowed_, facts_.seen[sequence], held);
        bool const met = fits_ && sum.excess() != 0 &&
                         (is_exact(policy_, fallback_) || fallback_ == shortfall::evict_lowest);
        f(t, met ? min_of(before, sum.allowed) : before, sum);
      }
    }
  }

  /// The most entries that any track of a sequence holds after the compression.
  std::uint32_t longest(std::uint32_t sequence, bool known) const {
    std::uint32_t most = 0;
    each_track(sequence, known,
               [&](track, std::uint32_t bound, budget_sum const&) { most = max_of(most, bound); });
    return most;
  }
  /// Number of rounds that a compression has to enqueue for a budget scope.
  std::uint32_t rounds(budget_sum const& sum) const {
    std::uint32_t const least = facts_of<select_facts>(policy_.select).thins_any_track ? 1 : 0;
    return max_of(least, kvmeld::max_rounds(policy_.identify, sum.held, sum.allowed));
  }
  /// Number of those rounds that are likely to have something to do. If the host cannot count the pinned
  /// entries, it takes all entries for pinned: only the entries above the budget are sure to take part.
  std::uint32_t likely_rounds(std::uint32_t sequence, budget_sum const& sum) const {
    bool const counts = facts_of<select_facts>(policy_.select).pins_exactly;
    std::uint32_t const outside =
        counts ? policy_.select.pinned(sum.held, sum.allowed, facts_.frozen[sequence]).total() : sum.held;
    std::uint32_t const least = facts_of<select_facts>(policy_.select).thins_any_track ? 1 : 0;
    return max_of(least, kvmeld::likely_rounds(policy_.identify, sum.held, sum.allowed, outside));
  }

private:
  Policy const& policy_;
  ledger_ref const& facts_;
  bool writes_all_, fits_;
  budget allowed_;
  shortfall fallback_;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
