// The calls that begin, grow, cut and end sequences.
#pragma once

#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/cache_storage.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_sequences.hpp>
#include <kvmeld/cache/check_shift.hpp>
#include <kvmeld/cache/count_figures.hpp>
#include <kvmeld/cache/fork.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/cache/page_notes.hpp>
#include <kvmeld/cache/sequences.hpp>
#include <kvmeld/cache/shift.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/figures.hpp>
#include <kvmeld/core/rope.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache that its sequences live through; see there for what refused calls do.
template <class Executor, class Policy, class Keys, class Values>
class sequence_calls : public cache_storage<Executor, Policy, Keys, Values> {
  using base = cache_storage<Executor, Policy, Keys, Values>;

public:
  /// As merged_cache.
  sequence_calls(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : base(std::move(executor), policy, tensors, sizes) {}

  /// Starts a sequence whose first `tokens_cached` tokens lie in K and V already (0: none), with degree 1 and their
  /// index as position. `frozen` of them are shared with others: never written, never moved. `id` keys random draws.
  status open(std::uint32_t slot, std::uint32_t tokens_cached = 0, std::uint32_t frozen = 0,
              std::uint32_t id = 0) {
    if (status s =
            refuse_once("open", [&] { return check_calls::open(facts_, slot, tokens_cached, frozen); });
        !s.ok())
      return s;
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&tokens_cached, 1}).data()};
    if (status s = launch_all("open", open_phase{all, frozen, id}, first_figures(all)); !s.ok()) return s;
    forget_plan_of(slot);
    known_.open(slot, tokens_cached, frozen, id);
    return {};
  }

  /// Writes degrees and positions of the sequences beside their pages, up to the ends of the pages that hold
  /// length_bound(slot) slots; pages that sequences share are written by each, with equal numbers. Entries of the table have to
  /// be valid so far. Enqueued. Refuses pending entries, and policies that share entries.
  template <class Entry, class Index>
  status write_pages(index_list slots, page_notes<Entry, Index> const& notes) {
    if (status s = refuse([&] { return check_calls::write_pages(facts_, slots, notes); }); !s.ok()) return s;
    bounds_.clear();
    for (std::uint32_t slot : slots) bounds_.push_back(known_.longest(slot));
    sequence_phase const all{ledger_, stage(slots), executor_.stage(bounds()).data()};
    return launch_all("write_pages", write_pages_phase<page_notes<Entry, Index>>{all, notes});
  }
  /// Starts a sequence on pages that hold entries already, merged ones perhaps, of which write_pages has left notes: where they
  /// were swapped in, received, or are shared with others (`freeze` those). `slots` are the length_bound they were written
  /// with, or fewer for a beginning, and `tokens` the tokens seen: the next position. Lengths, degrees and positions are those
  /// of the notes; on devices the host has bounds until the next report. Scores begin anew, and `truncate` cannot go back
  /// behind `tokens`. Enqueued. Refuses policies that share entries.
  /// `notes` are page_notes, or entry_notes where degrees and positions lie in plain arrays: of the first `slots` entries of
  /// every track.
  template <class Notes>
  status adopt(std::uint32_t slot, std::uint32_t slots, std::uint32_t tokens, Notes const& notes,
               std::uint32_t id = 0) {
    auto const problem = [&] { return check_calls::adopt(facts_, slot, slots, tokens, notes); };
    if (status s = refuse_once("adopt", problem); !s.ok()) return s;
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&slots, 1}).data()};
    if (status s = launch_all("adopt", open_phase{all, 0, id}, adopt_phase<Notes>{all, notes, tokens},
                              first_figures(all));
        !s.ok())
      return s;
    forget_plan_of(slot);
    known_.adopt(slot, slots, tokens, id);
    if constexpr (is_immediate<Executor>::value) known_.read(ledger_, slot);
    return {};
  }

  /// Opens `into` as a copy of `from`, which has nothing pending: entries, scores, counters, tokens seen. The first
  /// `frozen` entries of every track are shared between the two by the engine (0: none) and frozen in both from now on;
  /// rows behind them are those of `how` (copies only where they may be written: refused before, where the host can tell).
  /// `id` keys the copy's random draws.
  status fork(std::uint32_t from, std::uint32_t into, std::uint32_t id = 0, std::uint32_t frozen = 0,
              fork_rows how = fork_rows::copy) {
    auto const problem = [&] { return check_calls::fork(facts_, from, into, frozen, how, seen_tensors()); };
    if (status s = refuse_once("fork", problem); !s.ok()) return s;
    track_source const source{sizes_.extent, stage({&from, 1})};
    sequence_phase const copy{ledger_, stage({&into, 1}), nullptr};
    status const s = kvmeld::launch_all(executor_, "fork", [&] {
      if (how == fork_rows::copy) {
        launch(fork_rows_phase<Keys>{tensors_.keys, ledger_, into, frozen}, source);
        launch(fork_rows_phase<Values>{tensors_.values, ledger_, into, frozen}, source);
      }
      launch(fork_phase{ledger_, into, frozen, id}, source);
      launch(first_figures(copy));
    });
    if (!s.ok()) return s;
    forget_plan_of(from);
    forget_plan_of(into);
    known_.fork(from, into, frozen, id);
    return {};
  }

  /// Goes back to the first `tokens` tokens seen: forgets the entries of later ones. Exact, and therefore refused below
  /// compressed_at(slot), frozen entries and pending ones. Scores of what stays keep what they have observed, forgotten
  /// queries included, and findings stay.
  status truncate(std::uint32_t slot, std::uint32_t tokens) {
    if (status s = refuse([&] { return check_calls::truncate(facts_, slot, tokens); }); !s.ok()) return s;
    keep_known();
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&tokens, 1}).data()};
    if (status s = launch_all("truncate", truncate_phase{all}, truncate_settle_phase{all}); !s.ok()) return s;
    forget_plan_of(slot);
    known_.truncate(slot, tokens);
    return {};
  }

  /// Freezes the first `length` entries of every track, no more and no less: when their pages become shared, or are so no
  /// longer. Ragged sharing is for layouts with `writable`.
  status freeze(std::uint32_t slot, std::uint32_t length) {
    if (status s = refuse([&] { return check_calls::freeze(facts_, slot, length); }); !s.ok()) return s;
    keep_known();
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&length, 1}).data()};
    if (status s = launch_all("freeze", freeze_phase{all}); !s.ok()) return s;
    forget_plan_of(slot);
    known_.freeze(slot, length);
    return {};
  }

  /// Shifts a context: entries stored from position `first` on, and the next token, move by `offset` positions, and `rope`
  /// says how their keys lie rotated, so that they turn with them, in place. Inactive `rope`: keys lie unrotated, or the
  /// engine turns them itself. Rotations are linear: the logits of queries that turn likewise stay as they were, merged
  /// keys included, but for the rounding of storage. Tokens seen are counted anew from there (budgets by ratio and
  /// `truncate` go by them); positions below `first` (sinks) stay, and nothing may move to or below them, or below 0.
  /// Refuses pending entries, and frozen ones or rows that may not be written where they would turn; where the host cannot
  /// ask the layout, such rows leave finding::unrotated. Waits where launches are not immediate.
  status shift(std::uint32_t slot, position_t offset, rope_params const& rope = {}, position_t first = 0) {
    auto const problem = [&] {
      std::string text =
          check_calls::shift<Values>(facts_, slot, offset, rope, first, is_immediate<Executor>::value);
      if (!text.empty()) return text;
      return check_calls::shifted_entries(readable().ledger, slot, offset, rope, first, seen_tensors().keys);
    };
    if (status s = refuse_once("shift", problem); !s.ok()) return s;
    sequence_phase const all{ledger_, stage({&slot, 1}), nullptr};
    status const s = kvmeld::launch_all(executor_, "shift", [&] {
      if (rope.active())
        launch(turn_keys_phase<Keys>{tensors_.keys, ledger_, rope, offset, first}, {sizes_.extent, all.work});
      launch(shift_phase<Keys>{all, tensors_.keys, offset, first, rope.active()});
      launch(shift_settle_phase{all, offset, first});
    });
    if (!s.ok()) return s;
    forget_plan_of(slot);
    known_.shift(slot, offset, first);
    return {};
  }

  /// Ends a sequence; its slot can be opened again.
  status close(std::uint32_t slot) {
    if (status s = refuse([&] { return check_calls::is_open("close", facts_, {slot}); }); !s.ok()) return s;
    keep_known();
    if (status s = launch_all("close", close_phase{{ledger_, stage({&slot, 1}), nullptr}}); !s.ok()) return s;
    forget_plan_of(slot);
    known_.close(slot);
    return {};
  }

  /// Adds `counts[i]` pending entries to every track of sequence `slots[i]`. The engine writes their K and V to the
  /// slots below ref().length(track), before or after this call, before attention reads them.
  status append(index_list slots, index_list counts) {
    if (status s = refuse([&] { return check_calls::append(facts_, slots, counts); }); !s.ok()) return s;
    keep_known();
    sequence_phase const all{ledger_, stage(slots), executor_.stage(counts).data()};
    if (status s = launch_all("append", append_phase{all}, append_settle_phase{all}); !s.ok()) return s;
    for (std::size_t i = 0; i < slots.size(); ++i) known_.append(slots[i], counts[i]);
    // Where lengths cannot be looked at, apply could not tell that the plan is of the past.
    if constexpr (!is_immediate<Executor>::value) {
      for (std::uint32_t slot : slots) forget_plan_of(slot);
    }
    return {};
  }

  /// Keeps the first `accepted[i]` pending entries of sequence `slots[i]` and drops the rest (rejected drafts).
  status commit(index_list slots, index_list accepted) {
    if (status s = refuse([&] { return check_calls::commit(facts_, slots, accepted); }); !s.ok()) return s;
    keep_known();
    sequence_phase const all{ledger_, stage(slots), executor_.stage(accepted).data()};
    if (status s = launch_all("commit", commit_phase{all}, commit_settle_phase{all}); !s.ok()) return s;
    for (std::size_t i = 0; i < slots.size(); ++i) known_.commit(slots[i], accepted[i]);
    return {};
  }

protected:
  using base::arrays_;
  using base::executor_;
  using base::facts_;
  using base::keep_known;
  using base::known_;
  using base::ledger_;
  using base::memory_;
  using base::planned_;
  using base::refuse;
  using base::sizes_;
  using base::tensors_;

  /// For calls that wait, or whose numbers are no lists: made again they would do what they did when recorded.
  template <class Problem> status refuse_once(char const* call, Problem problem) const {
    return refuse([&]() -> std::string {
      if (executor_.records())
        return refusal(call, "recording", "on", "off, because this call cannot be recorded");
      return problem();
    });
  }
  /// Layouts as checks on the host may ask them: block tables lie in memory of the executor.
  auto seen_tensors() const {
    if constexpr (is_immediate<Executor>::value) {
      return tensors_;
    } else {
      return kv<check_calls::unseen_rows, check_calls::unseen_rows>{};
    }
  }
  /// The ledger where the host can read it; waits where launches are not immediate.
  readable_ledger readable() const { return read_ledger(executor_, arrays_, memory_.data(), sizes_); }
  /// One number per sequence of a call, in bounds_.
  index_list bounds() const { return {bounds_.data(), bounds_.size()}; }
  /// Nothing was compressed in a sequence that begins.
  open_figures_phase first_figures(sequence_phase const& all) const {
    return {all, arrays_.workspace.figures};
  }
  /// A plan is for the sequences that were open when it was made.
  void forget_plan_of(std::uint32_t slot) {
    for (std::uint32_t other : planned_) {
      if (other == slot) return planned_.clear();
    }
  }
  // Phases may run when the caller's lists are gone. Lists of one number are those of a call's arguments.
  work_list stage(index_list slots) {
    index_list const staged = executor_.stage(slots);
    return {staged.data(), static_cast<std::uint32_t>(staged.size())};
  }
  template <class Phase> void launch(Phase const& phase) { launch(phase, {sizes_.extent, phase.work}); }
  void launch(open_figures_phase const& phase) {
    if (phase.figures != nullptr) launch(phase, {sizes_.extent, phase.work});
  }
  /// The launches of a call, all of them or none; see kvmeld::launch_all.
  template <class... Phases> status launch_all(char const* call, Phases const&... phases) {
    return kvmeld::launch_all(executor_, call, [&] { (launch(phases), ...); });
  }
  template <class Phase> void launch(Phase const& phase, track_source const& source) {
    executor_.run(phase, sizes_.extent, source.work.tracks(sizes_.extent), source);
  }

  std::vector<std::uint32_t> bounds_;  ///< of the call that is made
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
