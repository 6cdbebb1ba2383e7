// SPDX-License-Identifier: Apache-2.0
// What the parts of a policy state about themselves: one value of facts per part.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

// A part states its facts once: `static constexpr merge_facts facts{&merge_facts::needs_score};`. A fact that
// is not named has its default, and a part without `facts` has all defaults. If the facts depend on the
// parameters of the part, `facts` is what may hold, and the function `facts_now()` of the part returns what
// holds.

/// When a policy has to be shown attention.
enum class observation : std::uint8_t {
  none,            ///< nothing: calls of observe do nothing
  prefill_window,  ///< the last rows before a compression, in one call or, token by token, in many
                   ///< (score::local)
  every_step,      ///< the queries of prompts and of every generated token
  replay,          ///< the queries of a second reading of the prompt, before a compression, and no others
                   ///< (score::max_attention)
};

/// What a score gives, and what it is computed from.
struct score_facts {
  score_kind gives = score_kind::order;            ///< an order by default
  observation observes = observation::every_step;  ///< when it is shown attention, if it keeps numbers
  /// Most channels of a score whose `channels` depend on its parameters or on the shape; 0: they are
  /// constant.
  std::uint32_t max_channels = 0;
  bool reads_rows = false;  ///< computed from keys and values
  /// An entry's number depends on no rows but its own. It may depend on channels, degrees and positions of
  /// any entry. Several teams then share a track: `rows` shows each of them its part, and `evaluate` writes
  /// nothing for other entries. Its loops are as below.
  bool rows_alone = false;
  /// The team of `evaluate` may be several blocks. What loops over rows write for the block that runs them
  /// lies in block_scratch, and they keep to the team that they are given (track_rows).
  bool spans_blocks = false;
  bool keeps_queries = false;  ///< keeps reference queries: has `reference_queries references()`
  bool light = false;          ///< makes a few operations per entry of a track and reads no rows

  /// Whether several blocks may evaluate it as a part of another score.
  constexpr bool may_span() const { return !reads_rows || rows_alone || spans_blocks; }

  constexpr score_facts() = default;
  /// What is named holds: score_facts{score_kind::weights, &score_facts::light}.
  template <class... More> constexpr score_facts(score_kind kind, More... more) : score_facts(more...) {
    gives = kind;
  }
  /// See above.
  template <class... More> constexpr score_facts(observation when, More... more) : score_facts(more...) {
    observes = when;
  }
  /// See above.
  template <class... More>
  constexpr score_facts(bool score_facts::*fact, More... more) : score_facts(more...) {
    this->*fact = true;
  }
};

/// What a merge function needs and does; all false by default.
struct merge_facts {
  bool needs_score = false;  ///< weighs by score
  /// Weighs by score also where scores do not add up when entries merge (score_kind::peaks and log_peaks).
  /// Others that need scores refuse these.
  bool weighs_peaks = false;
  /// Weighs by the similarity of sources, and needs an identifier that gives similarities.
  bool needs_similarity = false;
  bool cooperative = false;  ///< the whole team weighs a set
  /// Weighs spans (fate::spread) instead of sets, and needs an identifier that makes spans.
  bool spreads = false;
  /// Merged entries stay as members with their own norms (fate::share); the cache's ref is a shared_ref.
  bool shares = false;
  bool drops = false;  ///< turns sources of sets and spans into evictions, as merge::drop does
  bool fits = false;   ///< may fit what stays: has `fit_options fit()`
  bool light = false;  ///< makes a few operations per entry of a track and reads no rows

  constexpr merge_facts() = default;
  /// The facts that are named are true: merge_facts{&merge_facts::needs_score, &merge_facts::cooperative}.
  template <class... More>
  constexpr merge_facts(bool merge_facts::*fact, More... more) : merge_facts(more...) {
    this->*fact = true;
  }
};

/// What a selector needs and does; all false by default.
struct select_facts {
  bool needs_score = false;  ///< roles depend on scores
  /// pinned().total() entries are pinned, pinned().centers more are centres, and all others drop or may
  /// merge. The host can then count entries before a phase has run.
  bool pins_exactly = false;
  bool makes_centers = false;  ///< some entries get role::center
  /// The budget is an upper bound, and compressions also take up tracks that are within it.
  bool thins_any_track = false;
  bool light = false;  ///< makes a few operations per entry of a track and reads no rows

  constexpr select_facts() = default;
  /// The facts that are named are true.
  template <class... More>
  constexpr select_facts(bool select_facts::*fact, More... more) : select_facts(more...) {
    this->*fact = true;
  }
};

/// What an admission rule promises; both false by default.
struct admit_facts {
  bool repeats = false;       ///< further rounds may follow in one compression
  bool meets_budget = false;  ///< all rounds together allow as many merges as the budget needs

  constexpr admit_facts() = default;
  /// The facts that are named are true.
  template <class... More>
  constexpr admit_facts(bool admit_facts::*fact, More... more) : admit_facts(more...) {
    this->*fact = true;
  }
};

/// What an identifier needs and does. By default it makes sets in one round and reads no rows.
struct identify_facts {
  bool repeats = false;       ///< further rounds may follow
  bool meets_budget = false;  ///< the length is exactly the budget whenever enough is mergeable
  /// One round meets the budget exactly, whatever the rows, as long as one entry may merge. So tracks can
  /// share a budget: each merges down to its part.
  bool fills_budget = false;
  /// No mergeable entry stays, whatever the data. Only pinned entries and centres stay.
  bool drops_unmerged = false;
  bool needs_score = false;  ///< decides by score
  /// Reads keys. The library then looks for rows with NaN or infinity before the identifier sees the list.
  bool needs_keys = false;
  bool needs_values = false;   ///< reads values, too: `propose` receives kv{keys, values} instead of the keys
  bool needs_centers = false;  ///< sources merge into role::center, so the selector has to make some
  /// The key weight of a source is its similarity until a merge function weighs it.
  bool gives_similarity = false;
  bool makes_sets = true;  ///< true by default: entries merge into sets, and do not only drop
  /// Sources go to spans of slots (fate::spread) instead of sets. `admit` then also writes the step's span.
  /// As value weight, it writes how much of the source goes over (0 to 1).
  bool makes_spans = false;
  /// True by default: looks at the list of live entries. If false, there is no list, and live() of its
  /// round_view is 0.
  bool reads_live = true;
  bool light = false;  ///< makes a few operations per entry of a track and reads no rows

  constexpr identify_facts() = default;
  /// The facts that are named are true.
  template <class... More>
  constexpr identify_facts(bool identify_facts::*fact, More... more) : identify_facts(more...) {
    this->*fact = true;
  }
};

/// `facts` with other values: changed_facts(facts, &merge_facts::light, false, ...).
template <class Facts> constexpr Facts changed_facts(Facts facts) { return facts; }
/// See above.
template <class Facts, class T, class... More>
constexpr Facts changed_facts(Facts facts, T Facts::*fact, T value, More... more) {
  facts.*fact = value;
  return changed_facts(facts, more...);
}

namespace detail {

template <class Part> using facts_said = decltype(Part::facts);
template <class Part> using facts_now = decltype(std::declval<Part const&>().facts_now());
template <class Part> using needs_score_said = decltype(Part::needs_score);
template <class Part> using gives_said = decltype(Part::gives);
template <class Part> using repeats_said = decltype(Part::repeats);

/// Whether the facts of a part depend on its parameters.
template <class Part> constexpr bool has_facts_now = contract::allows<facts_now, Part>;

template <class Facts, class Part, class = void> struct stated { static constexpr Facts facts{}; };
template <class Facts, class Part>
struct stated<Facts, Part, std::enable_if_t<std::is_same_v<decltype(Part::facts), Facts const>>> {
  static constexpr Facts facts = Part::facts;
};

/// Whether a part states its facts as a constant of the right kind, or nothing. A member that is called
/// like a fact would be one that nobody reads.
template <class Facts, class Part> constexpr bool has_form_of_facts() {
  if constexpr (contract::allows<gives_said, Part> || contract::allows<needs_score_said, Part> ||
                contract::allows<repeats_said, Part>) {
    return false;
  } else if constexpr (contract::allows<facts_said, Part>) {
    return std::is_same_v<decltype(Part::facts), Facts const>;
  } else {
    return true;
  }
}

}  // namespace detail

/// What the type of a part states: stated_facts<merge_facts, Merge>.cooperative.
template <class Facts, class Part> constexpr Facts stated_facts = detail::stated<Facts, Part>::facts;

/// What holds for a part as it is configured: facts_of<merge_facts>(policy.merge).drops.
template <class Facts, class Part> Facts facts_of([[maybe_unused]] Part const& part) {
  if constexpr (detail::has_facts_now<Part>) {
    return part.facts_now();
  } else {
    return stated_facts<Facts, Part>;
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
