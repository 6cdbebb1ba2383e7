// SPDX-License-Identifier: Apache-2.0
// What a score is, and what it may be asked.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/observed_queries.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A score states in its `facts` (score_facts) what it `gives`, and has one of two forms:
/// - `float importance(view, i)`: the importance of entry i of a score_view; any lane asks
/// - `evaluate(team, view, out)`: writes out[slot] = importance for all slots of a score_view; all lanes of a
///   team call it together, and it ends with a barrier
///
/// Selectors, identifiers and merge functions with `needs_score` go with scores that give an order or
/// weights. Merge functions with `needs_score`, and identifiers that make spans, compute with scores, so they
/// go with weights only.
///
/// A score with `reads_rows` is computed from keys and values: it has `evaluate(team, view, rows, out)`,
/// where rows is a kv{track_rows, track_rows}. Rows are inspected for NaN and infinity before. What
/// `evaluate` writes for an entry with such a row does not count: the entry has the lowest score. It may
/// state how several blocks of a device can work on one track: `rows_alone`, `spans_blocks`.
///
/// A score from attention declares `channels()`: numbers per entry, which the ledger keeps. If the number
/// follows from the shape of the cache, it declares `channels(shape)` and states `max_channels`. For a block
/// of `rows` query rows observed together, it answers:
/// - `channel_update update(channel, window_rows, rows)`: what the block does to each channel
/// - `std::uint32_t next_window(window_rows, rows)`: the per-track counter after the block
/// - `contribution(channel, p, visible)`, optional: what an entry's probability p, in a row that sees
///   `visible` entries, adds to a channel instead of p itself
/// - `attention_fold fold()`, optional: how heads and rows become one number; by default, rows add up the
///   mean over heads. With head_fold::each it has as many channels as a KV head has query heads. It may also
///   ask for attention inside chunks, which only `observe` can show: with queries, but without log-sum-exps
/// It may say when it wants to be shown attention (score/observation.hpp). Otherwise it wants the queries of
/// every step, and a score without channels and table wants none. A track above its budget is refused as long
/// as it observed nothing and the score wants attention.
///
/// A score from the queries themselves declares a table: numbers per track, which the ledger keeps and
/// score_view::table() shows. `open` sets them to 0; `fork`, `save` and `resume` copy them; `shift`,
/// `renumber` and `truncate` leave them. It has
/// - `std::size_t table_floats(shape)`: how many
/// - `absorb(team, table, head, queries)`: takes the observed queries of one of the track's query heads,
///   numbered from 0, as observed_queries, into the track's table. All lanes of a team call it together.
///   Heads are absorbed at the same time: each has a part of the table to itself
/// - `std::string problem_for(shape)`, optional: returns why the score does not work for caches of this
///   shape; empty if it does
///
/// A score that keeps numbers may say what they depend on: `tell_kept(kept_facts&)`, optional. A saved
/// sequence is refused where these facts are others.
///
/// `scratch_bytes(shape, lanes)`, optional: scratch that `evaluate` or `absorb` takes from its team; the
/// default is score_scratch(). Row views take their own. This namespace lists what the library uses of a
/// score.
namespace score_uses {
template <class S> using channels = decltype(static_cast<channel_list>(contract::some<S>().channels()));
template <class S>
using channels_for =
    decltype(static_cast<channel_list>(contract::some<S>().channels(contract::some<shape>())));
template <class S> using channel_count = std::integral_constant<std::uint32_t, S::channels().count>;
template <class S>
using update = decltype(static_cast<channel_update>(contract::some<S>().update(0u, 0u, 0u)));
template <class S>
using next_window = decltype(static_cast<std::uint32_t>(contract::some<S>().next_window(0u, 0u)));
template <class S>
using importance =
    decltype(static_cast<float>(contract::some<S>().importance(contract::some<score_view>(), 0u)));
template <class S>
using evaluate = decltype(contract::some<S>().evaluate(contract::some<serial_team>(),
                                                       contract::some<score_view>(), std::declval<float*>()));
/// Rows of any layout, as `evaluate` gets them.
using some_rows = track_rows<strided<float>>;
template <class S>
using evaluate_rows =
    decltype(contract::some<S>().evaluate(contract::some<serial_team>(), contract::some<score_view>(),
                                          contract::some<kv<some_rows, some_rows>>(),
                                          std::declval<float*>()));
template <class S>
using table_floats =
    decltype(static_cast<std::size_t>(contract::some<S>().table_floats(contract::some<shape>())));
template <class S>
using absorb = decltype(contract::some<S>().absorb(contract::some<serial_team>(), std::declval<float*>(), 0u,
                                                   contract::some<observed_queries<float const>>()));
template <class S>
using problem_for =
    decltype(static_cast<std::string>(contract::some<S>().problem_for(contract::some<shape>())));
template <class S>
using contribution = decltype(static_cast<float>(contract::some<S>().contribution(0u, 0.0f, 0u)));
template <class S> using contributes = decltype(static_cast<bool>(contract::some<S>().contributes()));
template <class S> using fold = decltype(static_cast<attention_fold>(contract::some<S>().fold()));
template <class S>
using scratch_bytes = decltype(static_cast<std::size_t>(contract::some<S>().scratch_bytes(shape{}, 1)));
}  // namespace score_uses

namespace detail {

/// Whether a score reads rows of keys and values.
template <class Score> constexpr bool reads_rows = stated_facts<score_facts, Score>.reads_rows;

/// Whether a score keeps numbers per entry.
template <class Score>
constexpr bool has_channels =
    contract::allows<score_uses::channels, Score> || contract::allows<score_uses::channels_for, Score>;

/// Whether a score keeps numbers per track.
template <class Score> constexpr bool has_table = contract::allows<score_uses::table_floats, Score>;

/// Number of the first requirement that a score fails, as require_score counts; -1: none.
template <class S>
constexpr int missing_in_score =
    contract::first_missing<std::is_trivially_copyable_v<S>, has_form_of_facts<score_facts, S>(),
                            !has_channels<S> || contract::allows<score_uses::channel_count, S> ||
                                (stated_facts<score_facts, S>.max_channels != 0),
                            !has_channels<S> || contract::allows<score_uses::update, S>,
                            !has_channels<S> || contract::allows<score_uses::next_window, S>,
                            !has_table<S> || contract::allows<score_uses::absorb, S>,
                            !reads_rows<S> || contract::allows<score_uses::evaluate_rows, S>,
                            reads_rows<S> || contract::allows<score_uses::importance, S> ||
                                contract::allows<score_uses::evaluate, S>>();

}  // namespace detail

/// Whether a type is a score.
template <class Score> struct is_score : std::bool_constant<detail::missing_in_score<Score> == -1> {};

namespace detail {

/// Refuses a type that is no score and says what it lacks. The compiler's note names the type.
template <class Score> constexpr void require_score() {
  constexpr int missing = missing_in_score<Score>;
  static_assert(missing != 0, "kvmeld: the score is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the score states no `static constexpr score_facts facts`");
  static_assert(missing != 2,
                "kvmeld: the score's `channels()` is not static constexpr, and it has no `max_channels`");
  static_assert(missing != 3,
                "kvmeld: the score has channels, but no `channel_update update(channel, window_rows, rows)`");
  static_assert(missing != 4,
                "kvmeld: the score has channels, but no `std::uint32_t next_window(window_rows, rows)`");
  static_assert(missing != 5, "kvmeld: the score has a table, but no `absorb(team, table, head, queries)`");
  static_assert(missing != 6, "kvmeld: the score reads rows, but has no `evaluate(team, view, rows, out)`");
  static_assert(missing != 7,
                "kvmeld: the score has no `float importance(view, i)`, and no `evaluate(team, view, out)`");
}

}  // namespace detail

/// The channels of a score as it is configured, in a cache of this shape; none if it declares none.
template <class Score>
channel_list channels_of([[maybe_unused]] Score const& score, [[maybe_unused]] shape const& extent = {}) {
  if constexpr (contract::allows<score_uses::channels_for, Score>) {
    return score.channels(extent);
  } else if constexpr (detail::has_channels<Score>) {
    return score.channels();
  } else {
    return {};
  }
}

/// Floats that a score keeps of each track in a cache of this shape; 0 if it declares no table. Construction
/// of the cache refuses more than largest::table_floats.
template <class Score> std::uint32_t table_floats_of(Score const& score, shape const& extent) {
  std::size_t const n = contract::ask<score_uses::table_floats>(
      score, [&](auto const& s) { return s.table_floats(extent); }, std::size_t{0});
  return n < 0xffffffffu ? static_cast<std::uint32_t>(n) : 0xffffffffu;
}

namespace detail {

/// Why a score cannot keep a table in caches of this shape; empty if it can, or needs none.
template <class Score> std::string table_problem(Score const& score, shape const& extent) {
  if (std::uint32_t const n = table_floats_of(score, extent); n > largest::table_floats) {
    return refusal("policy", "number of floats that the score keeps of each track", n, "at most ",
                   largest::table_floats);
  }
  return contract::ask<score_uses::problem_for>(
      score, [&](auto const& s) { return s.problem_for(extent); }, std::string());
}

/// Shows queries to a score that has a table. Collective.
template <class Score, class Team, class Queries>
KVMELD_HD void absorb_queries([[maybe_unused]] Score const& score, [[maybe_unused]] Team const& team,
                              [[maybe_unused]] float* table, [[maybe_unused]] std::uint32_t head,
                              [[maybe_unused]] Queries const& queries) {
  if constexpr (has_table<Score>) score.absorb(team, table, head, queries);
}

/// Whether a score's channels are known at run time only.
template <class Score> constexpr bool has_max_channels = stated_facts<score_facts, Score>.max_channels != 0;

/// Most channels that a score can have: the number that its type says, or `max_channels` if they are known
/// at run time only.
template <class Score> constexpr std::uint32_t channel_bound() {
  if constexpr (has_max_channels<Score>) {
    return stated_facts<score_facts, Score>.max_channels;
  } else if constexpr (has_channels<Score>) {
    return Score::channels().count;
  } else {
    return 0;
  }
}

/// What an observation does to a channel: nothing if the score has none.
template <class Score>
KVMELD_HD channel_update update_of(Score const& score, std::uint32_t channel, std::uint32_t window,
                                   std::uint32_t rows) {
  return contract::ask<score_uses::update>(
      score, [=](auto const& s) { return s.update(channel, window, rows); }, channel_update{-1, 0});
}

/// The per-track counter after an observation.
template <class Score>
KVMELD_HD std::uint32_t next_window_of(Score const& score, std::uint32_t window, std::uint32_t rows) {
  return contract::ask<score_uses::next_window>(
      score, [=](auto const& s) { return s.next_window(window, rows); }, 0u);
}

/// Whether a score has a `contribution`: it adds up something other than attention.
template <class Score> constexpr bool has_contribution = contract::allows<score_uses::contribution, Score>;

/// The same of a score as it is configured: one that is chosen at run time has `contributes()`.
template <class Score> KVMELD_HD bool contributes(Score const& score) {
  return contract::ask<score_uses::contributes>(
      score, [](auto const& s) { return s.contributes(); }, has_contribution<Score>);
}

}  // namespace detail

/// What a row adds to a channel of an entry that the row gave probability `p`.
template <class Score>
KVMELD_HD float contribution_of([[maybe_unused]] Score const& score, [[maybe_unused]] std::uint32_t channel,
                                float p, [[maybe_unused]] std::uint32_t visible) {
  if constexpr (detail::has_contribution<Score>) {
    return score.contribution(channel, p, visible);
  } else {
    return p;
  }
}

namespace detail {

/// How a score's observations become one number.
template <class Score> KVMELD_HD attention_fold fold_of(Score const& score) {
  return contract::ask<score_uses::fold>(
      score, [](auto const& s) { return s.fold(); }, attention_fold{});
}

}  // namespace detail

/// Scratch that a score may take from its team if it says nothing else.
KVMELD_HD constexpr std::size_t score_scratch() { return 2 * team_sum_scratch(); }

namespace detail {

/// Scratch that a score takes from its team.
template <class Score> std::size_t scratch_of_score(Score const& score, shape const& extent, int lanes) {
  return contract::ask<score_uses::scratch_bytes>(
      score, [&](auto const& s) { return s.scratch_bytes(extent, lanes); }, score_scratch());
}

/// Evaluates a score for all that `view` shows, whatever the score's form. `rows` is a kv of track_rows, or
/// anything if the score reads none. Collective; barrier at the end.
template <class Score, class Team, class Rows>
KVMELD_HD void evaluate_score(Score const& score, Team const& team, score_view const& view,
                              [[maybe_unused]] Rows const& rows, float* out) {
  if constexpr (reads_rows<Score>) {
    score.evaluate(team, view, rows, out);
  } else if constexpr (contract::allows<score_uses::importance, Score>) {
    team.for_each(view.length(), [&](std::uint32_t i) { out[i] = score.importance(view, i); });
    team.sync();
  } else {
    score.evaluate(team, view, out);
  }
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
