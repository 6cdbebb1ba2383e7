// SPDX-License-Identifier: Apache-2.0
// How many entries may stay: budgets, the counts that selectors derive from them, the trigger, Chelsea's
// schedule.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// floor(share * whole) in double with 1e-9 added, so that 0.45 * 20 is 9 on every machine.
KVMELD_HD inline std::uint32_t floor_share(double share, std::uint32_t whole) {
  return static_cast<std::uint32_t>(share * static_cast<double>(whole) + 1e-9);
}

/// How many entries a track may keep. A ratio is a share of the tokens seen since the sequence was opened, so
/// compressing again with the same ratio does not shrink the cache twice. `over` lets tracks share their
/// budgets.
class budget {
public:
  /// Exactly `n` entries per track.
  static budget entries(std::uint32_t n) { return budget(kind::entries, n, 0.0, nullptr); }
  /// floor(ratio * tokens seen) entries per track, at least one; 0 < ratio <= 1.
  static budget ratio(double r) { return budget(kind::ratio, 0, r, nullptr); }
  /// `n[track.index]` entries; the array is read when the plan is made.
  static budget per_track(std::uint32_t const* n) { return budget(kind::per_track, 0, 0.0, n); }
  /// `n[layer]` entries for each head of a layer; the array is read when the plan is made.
  static budget per_layer(std::uint32_t const* n) { return budget(kind::per_layer, 0, 0.0, n); }

  /// Number of entries that track `t` may keep after `seen` tokens.
  KVMELD_HD std::uint32_t resolve(track t, std::uint32_t seen) const {
    if (kind_ == kind::entries) return entries_;
    if (kind_ == kind::ratio) return max_of(std::uint32_t{1}, floor_share(ratio_, seen));
    return table_[kind_ == kind::per_layer ? t.layer : t.index];
  }

  /// The same budgets, shared by a budget scope: the tracks of a layer, or of all layers, of one sequence.
  /// Together these tracks keep as many entries as their budgets add up to. The entries with the lowest
  /// scores go first, whichever track holds them (docs/budgets.md). Every track keeps at least the share
  /// `floor` (0 to 1) of its own budget, and what its policy pins. Needs options.budgets_over of at least
  /// this scope, and a policy in which the score alone decides what stays.
  budget over(budget_scope among, double floor = 0.2) const {
    budget b = *this;
    b.among_ = among;
    b.floor_ = floor;
    return b;
  }
  /// The budget scope. With budget_scope::head no tracks share their budgets.
  budget_scope among() const { return among_; }
  /// Share of its own budget that every track keeps, 0 to 1.
  double floor() const { return floor_; }

  /// The same budget, with its table where phases of `executor` can read it.
  template <class Executor> budget staged(Executor& executor, shape const& extent) const {
    budget b = *this;
    if (is_per_track()) b.table_ = executor.stage({table_, extent.tracks()}).data();
    if (is_per_layer()) b.table_ = executor.stage({table_, extent.layers}).data();
    return b;
  }
  /// Whether made by ratio().
  bool is_ratio() const { return kind_ == kind::ratio; }
  /// Whether made by per_track().
  bool is_per_track() const { return kind_ == kind::per_track; }
  /// Whether made by per_layer().
  bool is_per_layer() const { return kind_ == kind::per_layer; }
  /// The ratio; 0 for other kinds of budget.
  double ratio_value() const { return ratio_; }
  /// [tracks] the numbers of per_track(), or [layers] those of per_layer(); null for other kinds of budget.
  std::uint32_t const* table() const { return table_; }

private:
  enum class kind : std::uint8_t { entries, ratio, per_track, per_layer };
  budget(kind k, std::uint32_t n, double r, std::uint32_t const* table)
      : kind_(k), entries_(n), ratio_(r), table_(table) {}

  kind kind_;
  std::uint32_t entries_;
  double ratio_;
  std::uint32_t const* table_;
  budget_scope among_ = budget_scope::head;
  double floor_ = 0.0;
};

/// How many entries a selector pins: a number, or a share of the length or the budget of a track.
class quantity {
public:
  /// A number of entries.
  KVMELD_HD static constexpr quantity entries(std::uint32_t n) {
    return {unit::entries, static_cast<double>(n)};
  }
  /// A share of the entries held before compression.
  KVMELD_HD static constexpr quantity of_length(double share) { return {unit::of_length, share}; }
  /// A share of the entries that the track may keep beside those that are frozen or may not be written.
  KVMELD_HD static constexpr quantity of_budget(double share) { return {unit::of_budget, share}; }
  /// `n` entries, or a share of the budget as of_budget counts it, if that is less. For counts that suit long
  /// contexts.
  KVMELD_HD static constexpr quantity at_most(std::uint32_t n, double share_of_budget) {
    return {unit::of_budget, share_of_budget, n};
  }
  /// The part of the budget that the quantities before this one leave, but for the share `but` of the budget
  /// (above 0, at least one entry), which then is left for sets.
  KVMELD_HD static constexpr quantity rest_of_budget(double but = 0.0) { return {unit::rest, but}; }

  /// Number of entries for a track that holds `length` entries and may keep `limit`. The quantities before
  /// this one have taken `taken` entries of the limit.
  KVMELD_HD std::uint32_t resolve(std::uint32_t length, std::uint32_t limit, std::uint32_t taken) const {
    switch (unit_) {
    case unit::entries: return static_cast<std::uint32_t>(value_);
    case unit::of_length: return floor_share(value_, length);
    case unit::of_budget: return min_of(max_, floor_share(value_, limit));
    case unit::rest: break;
    }
    if (value_ > 0.0) taken += max_of(std::uint32_t{1}, floor_share(value_, limit));
    return limit > taken ? limit - taken : 0;
  }
  /// Whether its value is a share of the length or of the budget.
  constexpr bool is_share() const { return unit_ != unit::entries && (unit_ != unit::rest || value_ != 0.0); }
  /// The number of entries, or the share.
  constexpr double value() const { return value_; }

private:
  enum class unit : std::uint8_t { entries, of_length, of_budget, rest };
  KVMELD_HD constexpr quantity(unit u, double v, std::uint32_t most = 0xffffffffu)
      : unit_(u), value_(v), max_(most) {}

  unit unit_;
  double value_;
  std::uint32_t max_;
};

/// Why a quantity cannot be used; empty if it can.
inline std::string share_problem(char const* name, quantity q) {
  if (q.is_share() && !is_within(q.value(), 0.0, 1.0)) {
    return refusal("policy", name, q.value(), "0 to 1, a share");
  }
  return {};
}

/// When to compress during generation: a track of `limit` + `interval` entries shrinks to `limit` (Chelsea,
/// section 4).
struct trigger {
  std::uint32_t limit;          ///< entries that a compression leaves
  std::uint32_t interval = 64;  ///< tokens between two compressions

  /// Whether a track of this length is to be compressed. Always false if 32 bits cannot hold limit +
  /// interval.
  KVMELD_HD constexpr bool due(std::uint32_t length) const {
    return length >= std::uint64_t{limit} + std::uint64_t{interval};
  }
};

/// What to do with a track that merging does not bring to its budget.
enum class shortfall : std::uint8_t {
  keep,          ///< leave the track longer; warning::budget_unreached says so
  evict_lowest,  ///< evict the entries with the lowest scores; without a score, the oldest. The default of
                 ///< all calls: budgets hold
};

/// For an append that may find a sequence full: the append compresses the sequence first.
struct when_full {
  budget shrink_to;                              ///< entries that stay; fewer than the capacity
  shortfall fallback = shortfall::evict_lowest;  ///< what happens if merging does not reach it
};

/// How many entries a selector pins: the first, the last, and the best in between. `centers` more entries
/// stay as targets of merges.
struct pins {
  std::uint32_t sinks, recents, heavy;  ///< first, last and best entries
  std::uint32_t centers = 0;            ///< targets that stay beside them
  /// Number of pinned entries.
  KVMELD_HD constexpr std::uint32_t total() const { return sinks + recents + heavy; }
};

/// Resolves quantities in the order sinks, recents, heavy. The whole beginning that is frozen or may not be
/// written is pinned, even where it is longer than the sinks. Shares of the budget are shares of what this
/// beginning leaves. So a text that sequences share does not take the room of their recent entries.
KVMELD_HD inline pins resolve_pins(quantity sinks, quantity recents, quantity heavy, std::uint32_t length,
                                   std::uint32_t limit, std::uint32_t frozen) {
  pins p{};
  std::uint32_t const free = limit > frozen ? limit - frozen : 0;
  p.sinks = max_of(frozen, min_of(length, sinks.resolve(length, free, 0)));
  std::uint32_t const more = p.sinks - frozen;  // sinks behind the frozen beginning
  p.recents = min_of(length - p.sinks, recents.resolve(length, free, more));
  p.heavy = min_of(length - p.sinks - p.recents, heavy.resolve(length, free, more + p.recents));
  return p;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
