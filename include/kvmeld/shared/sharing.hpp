// SPDX-License-Identifier: Apache-2.0
// The switch between entries that merge into one and entries that are shared by their members (EMS). A cache
// and its rounds ask sharing_of<Merge> for whatever differs, and never which of the two it is. Both forms
// have the names that the first one documents.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/observe/observe.hpp>
#include <kvmeld/shared/attend_shared.hpp>
#include <kvmeld/shared/checks.hpp>
#include <kvmeld/shared/observe_shared.hpp>
#include <kvmeld/shared/score_members.hpp>
#include <kvmeld/shared/shared_ref.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Entries that merge into one.
template <bool Shares> struct sharing {
  static constexpr bool shares = false;
  /// What attention reads.
  template <class Keys, class Values> using ref_type = cache_ref<Keys, Values>;
  /// The phases that observe queries and the engine's own attention.
  template <class Score, class Keys, class Q> using observe_queries = observe_queries_phase<Score, Keys, Q>;
  template <class Score, class T> using observe_rows = observe_rows_phase<Score, T>;
  /// Whether merge_members changes degrees, so that the ledger cannot merge while the plan is made.
  static constexpr bool changes_degrees = false;

  /// Launches what follows the scores of entries.
  template <class Launch, class Score> static void score(Launch const&, Score const&) {}

  /// Calls f(x), which takes one logit per slot. Shared entries refuse the call, `because` of their members.
  template <class F, class X>
  static status by_slot(char const* /*call*/, char const* /*because*/, F f, X&& x) {
    return f(x);
  }
  /// Why attention inside chunks cannot be observed; empty if it can.
  static std::string chunks_problem() { return {}; }
  /// Why options.members is too small; empty if it is not.
  static std::string room_problem(std::uint32_t) { return {}; }
  /// Why tracks cannot be padded to one length; empty if they can.
  static std::string padding_problem() { return {}; }
};

/// Entries that are shared by their members: the same, for them.
template <> struct sharing<true> {
  static constexpr bool shares = true;
  template <class Keys, class Values> using ref_type = shared_ref<Keys, Values>;
  template <class Score, class Keys, class Q> using observe_queries = observe_shared_phase<Score, Keys, Q>;
  template <class Score, class T> using observe_rows = observe_shared_rows_phase<Score, T>;
  static constexpr bool changes_degrees = true;

  template <class Launch, class Score> static void score(Launch const& launch, Score const& score) {
    launch(score_members_phase<Score>{score, launch.wave});
    if (launch.wave.scope > 1) launch(unite_member_scores_phase{{{launch.wave}}});
  }

  template <class F, class X> static status by_slot(char const* call, char const* because, F const&, X&&) {
    return raise(shares_problem(call, because));
  }
  static std::string chunks_problem() {
    return refusal("observe", "policy", "one that shares entries, with a score of attention inside chunks",
                   "one that does not share entries, because members have logits of their own");
  }
  static std::string room_problem(std::uint32_t members) {
    if (members != 0) return {};
    return refusal("options", "members", 0,
                   "at least 1, because the policy shares entries (preset::ems::members_for(budget))");
  }
  static std::string padding_problem() {
    return refusal(
        "options", "padded", "true",
        "false, because the policy shares entries and no bias per slot can express members (or use "
        "preset::ems::collapsed)");
  }
};

/// The switch, as a merge function sets it.
template <class Merge> using sharing_of = sharing<stated_facts<merge_facts, Merge>.shares>;

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
