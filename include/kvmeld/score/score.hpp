// What a score is, and the phases that feed and read it.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What one observation does to a channel. The new value is the old value of channel `base` (0 if `base` is
/// below 0) plus what the rows from `first_row` on give the entry: attention, or their `contribution`.
struct channel_update {
  std::int32_t base;        ///< channel whose old value the sum starts from; below 0: none
  std::uint32_t first_row;  ///< first row of the block that counts
};

/// A score declares `channels()`. For a block of `rows` query rows observed together, it answers:
/// - `channel_update update(channel, window_rows, rows)`: what the block does to each channel
/// - `std::uint32_t next_window(window_rows, rows)`: the per-track counter after the block
/// - `contribution(channel, p, visible)`, optional: what an entry's probability p, in a row that sees
///   `visible` entries, adds to a channel instead of p itself
/// - `evaluate(team, ledger, track, length, out)`: out[slot] = importance, from the channels; cooperative
///
/// It declares `needs_attention`. True means three things at once: selectors, identifiers and merge functions
/// may use the score; calls of observe feed it (they do nothing where it is false); a track over its budget
/// that never observed attention is refused. So a score that is computed from keys declares true too. It is
/// then shown attention that it ignores (any one row). A score may say when it wants to be shown attention
/// (score/observation.hpp). This namespace lists what the library uses of a score.
namespace score_uses {
template <class S> using needs_attention = contract::flag<(S::needs_attention ? true : false)>;
template <class S> using channels = decltype(static_cast<channel_list>(std::declval<S const&>().channels()));
template <class S> using channel_count = std::integral_constant<std::uint32_t, S::channels().count>;
template <class S> using max_channels = std::integral_constant<std::uint32_t, S::max_channels>;
template <class S>
using update = decltype(static_cast<channel_update>(std::declval<S const&>().update(0u, 0u, 0u)));
template <class S>
using next_window = decltype(static_cast<std::uint32_t>(std::declval<S const&>().next_window(0u, 0u)));
template <class S>
using evaluate = decltype(std::declval<S const&>().evaluate(std::declval<serial_team const&>(),
                                                            std::declval<ledger_ref const&>(), track{}, 0u,
                                                            std::declval<float*>()));
}  // namespace score_uses

namespace detail {

/// Number of the first requirement that a score fails, as require_score counts; -1: none.
template <class S>
constexpr int missing_in_score = contract::first_missing<
    std::is_trivially_copyable_v<S>, contract::allows<score_uses::needs_attention, S>,
    contract::allows<score_uses::channels, S>,
    contract::allows<score_uses::channel_count, S> || contract::allows<score_uses::max_channels, S>,
    contract::allows<score_uses::update, S>, contract::allows<score_uses::next_window, S>,
    contract::allows<score_uses::evaluate, S>>();

}  // namespace detail

/// Whether a type is a score.
template <class Score> struct is_score : std::bool_constant<detail::missing_in_score<Score> == -1> {};

namespace detail {

/// Refuses a type that is no score and says what it lacks. The compiler's note names the type.
template <class Score> constexpr void require_score() {
  constexpr int missing = missing_in_score<Score>;
  static_assert(missing != 0, "kvmeld: the score is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the score has no `static constexpr bool needs_attention`");
  static_assert(missing != 2, "kvmeld: the score has no `channel_list channels()`");
  static_assert(missing != 3,
                "kvmeld: the score's `channels()` is not static constexpr, and it has no `max_channels`");
  static_assert(missing != 4, "kvmeld: the score has no `channel_update update(channel, window_rows, rows)`");
  static_assert(missing != 5, "kvmeld: the score has no `std::uint32_t next_window(window_rows, rows)`");
  static_assert(missing != 6, "kvmeld: the score has no `evaluate(team, ledger, track, length, out)`");
}

/// Whether a score's channels are known at run time only.
template <class Score, class = void> struct has_max_channels : std::false_type {};

template <class Score>
struct has_max_channels<Score, std::void_t<decltype(Score::max_channels)>> : std::true_type {};

/// Most channels that a score can have: the number that its type says, or `max_channels` if they are known
/// at run time only.
template <class Score> constexpr std::uint32_t channel_bound() {
  if constexpr (has_max_channels<Score>::value) {
    return Score::max_channels;
  } else {
    return Score::channels().count;
  }
}

/// Whether a score has a `contribution`: it adds up something other than attention.
template <class Score, class = void> struct has_contribution : std::false_type {};

template <class Score>
struct has_contribution<Score, std::void_t<decltype(std::declval<Score const&>().contribution(0u, 0.0f, 0u))>>
    : std::true_type {};

}  // namespace detail

/// What a row adds to a channel of an entry that the row gave probability `p`.
template <class Score>
KVMELD_HD float contribution_of([[maybe_unused]] Score const& score, [[maybe_unused]] std::uint32_t channel,
                                float p, [[maybe_unused]] std::uint32_t visible) {
  if constexpr (detail::has_contribution<Score>::value) {
    return score.contribution(channel, p, visible);
  } else {
    return p;
  }
}

/// Scratch that `evaluate` and `evaluate_members` may take from their team.
KVMELD_HD constexpr std::size_t score_scratch() { return 2 * team_sum_scratch(); }

namespace detail {

/// Whether a score also answers for members, as a policy that shares entries needs. `evaluate_members(team,
/// ledger, track, length, out)` writes out[member] = importance, from the members' channels.
template <class Score, class = void> struct scores_members : std::false_type {};

template <class Score>
struct scores_members<Score, std::void_t<decltype(std::declval<Score const&>().evaluate_members(
                                 std::declval<serial_team const&>(), std::declval<ledger_ref const&>(),
                                 track{}, 0u, std::declval<float*>()))>> : std::true_type {};

template <class Score> struct score_members_phase {
  Score score;
  wave_ref wave;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return score_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    score.evaluate_members(team, wave.ledger, t.where, s.length,
                           wave.member_score + wave.member_at(t.item, 0));
  }
};

/// Evaluates the score of every entry of a track.
template <class Score> struct score_phase {
  Score score;
  wave_ref wave;

  static constexpr bool light = is_light<Score>::value;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return score_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    score.evaluate(team, wave.ledger, t.where, s.length, wave.score + wave.at(t.item, 0));
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
