// The cache: an engine's K and V, the ledger beside them, and a policy, as one value.
#pragma once

#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/check_policy.hpp>
#include <kvmeld/cache/check_sequences.hpp>
#include <kvmeld/cache/check_split.hpp>
#include <kvmeld/cache/compress.hpp>
#include <kvmeld/cache/length_bounds.hpp>
#include <kvmeld/cache/padding.hpp>
#include <kvmeld/cache/plan_readings.hpp>
#include <kvmeld/cache/report.hpp>
#include <kvmeld/cache/save.hpp>
#include <kvmeld/cache/sequences.hpp>
#include <kvmeld/cache/when_full.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/span.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A thin bundle of executor, policy, ledger and workspace over K and V, which the engine owns and this never frees.
/// Construction allocates ledger and workspace; later calls nothing besides an executor's scratch, which grows to the
/// largest phase once, and memory of the host for the first report and the first recorded compression. `apply`
/// validates the plan on the host, with a few bytes per entry of one track. Copies are deep in the ledger and share K
/// and V: `rebind` the copy to a copy of the tensors.
/// Calls refuse bad arguments by throwing kvmeld::invalid_argument, or where exceptions are off by returning a status
/// with the same text; a refused call leaves the cache as it was. So does a call that finds no memory: each call makes room
/// for all its launches before the first one, and the host's view (lengths, bounds) changes after the last one is enqueued.
/// Missing memory of the executor is a refusal; missing memory of the host's heap is std::bad_alloc.
/// Moving a cache allocates nothing; the cache that was moved from refuses its calls.
template <class Executor, class Policy, class Keys, class Values>
class merged_cache : public plan_readings<Executor, policy_or_stand_in<Policy, Keys, Values>,
                                          layout_or_stand_in<Keys>, layout_or_stand_in<Values>> {
  using policy_used = policy_or_stand_in<Policy, Keys, Values>;
  using keys_used = layout_or_stand_in<Keys>;
  using values_used = layout_or_stand_in<Values>;
  using base = plan_readings<Executor, policy_used, keys_used, values_used>;
  using base::arrays_;
  using base::bounds;
  using base::bounds_;
  using base::budgets_;
  using base::executor_;
  using base::facts_;
  using base::first_figures;
  using base::for_tracks;
  using base::keep_known;
  using base::known_;
  using base::launch;
  using base::launch_all;
  using base::ledger_;
  using base::memory_;
  using base::plan_work;
  using base::planned_;
  using base::policy_;
  using base::policy_name_;
  using base::readable;
  using base::refuse;
  using base::refuse_once;
  using base::seen_tensors;
  using base::sizes_;
  using base::stage;
  using base::tensors_;
  using base::within;

public:
  using base::append;
  using base::planned_work;
  using base::shares;

  /// Allocates ledger and workspace, and refuses by name what does not go together: tensors, policy and
  /// sizes.
  merged_cache(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : base(std::move(executor), used_policy<policy_used>(policy),
             {used_layout<keys_used>(tensors.keys), used_layout<values_used>(tensors.values)}, sizes) {
    require_layout<Keys>();
    require_layout<Values>();
    require_whole(static_cast<Policy const*>(nullptr));
    require_guarded_rows<Policy, Keys, Values>();
  }

  /// Plans one round for all layers and heads of `slots` without touching the cache; needs limits.whole_plan.
  /// A policy of several rounds (Chelsea) plans its next one: repeat plan + apply, or call compress.
  status plan(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    auto const problem = [&] { return plan_problem_for(slots, allowed, fallback, true); };
    if (status s = refuse_once("plan", problem); !s.ok()) return s;
    work_list const work = plan_work(arrays_.planned, slots.size());
    budget const staged = stage_budget(allowed);
    auto const launches = [&] {
      kvmeld::plan(executor_, policy_, tensors_, ledger_, work, staged, fallback, arrays_.workspace);
    };
    if (status s = make_room(executor_, "plan", launches); !s.ok()) return s;
    planned_.assign(slots.begin(), slots.end());
    executor_.upload(arrays_.planned, planned_.data(), planned_.size() * sizeof(std::uint32_t));
    launches();
    return {};
  }

  /// Applies the plan made last. Refuses a plan that the cache has outgrown, and where the host may look at it an edited
  /// one that is not sound.
  status apply() {
    if (status s = refuse_once("apply", [&] { return apply_problem(); }); !s.ok()) return s;
    status const s = kvmeld::launch_all(executor_, "apply", [&] {
      kvmeld::apply(executor_, policy_, tensors_, ledger_, plan_work(arrays_.planned, planned_.size()),
                    arrays_.workspace);
    });
    if (!s.ok()) return s;
    for (std::uint32_t slot : planned_) {
      known_.lose(slot);  // the plan may have been edited
      known_.compressed(slot);
      if constexpr (is_immediate<Executor>::value) known_.read(ledger_, slot);
    }
    planned_.clear();
    return {};
  }

  /// Shrinks all layers and heads of `slots` to their budgets, in place, with as many rounds as it takes.
  status compress(index_list slots, budget allowed, shortfall fallback = shortfall::report) {
    if (status s = refuse([&] { return plan_problem_for(slots, allowed, fallback, false); }); !s.ok())
      return s;
    launch_counts const counts = counts_for(slots, allowed, fallback);
    work_list const work = stage(slots);
    sequence_phase const all{ledger_, work, sizes_.padded ? executor_.stage(bounds()).data() : nullptr};
    budget const staged = stage_budget(allowed);
    keep_known();
    status const s = kvmeld::launch_all(executor_, "compress", [&] {
      kvmeld::compress(executor_, policy_, tensors_, ledger_, plan_work(work.sequences, work.sequence_count),
                       staged, fallback, arrays_.workspace, counts.rounds, counts.likely_rounds);
      if (sizes_.padded) pad(all, slots);
    });
    if (!s.ok()) return s;
    planned_.clear();
    for (std::uint32_t slot : slots) {
      if constexpr (is_immediate<Executor>::value) {
        known_.read(ledger_, slot);
      } else {
        know_compressed(slot, allowed, fallback);
      }
    }
    return {};
  }

  /// As append(slots, counts), but first compresses the sequences that have no room for their entries: those whose
  /// length_bound and count exceed the capacity. They shrink to `full.shrink_to`, as `compress` would do it.
  /// Nothing is compressed unless the compression is sure to make room, which the host tells by length_after; the call is
  /// refused otherwise and the cache stays as it was. Sequences that have no room must have no pending entries. Where
  /// launches are not immediate, bounds may be above the lengths: a sequence is then compressed before it is really full.
  /// An attention bias that was written out is stale where length_bound has become less. Cannot be recorded.
  status append(index_list slots, index_list counts, when_full const& full) {
    std::vector<std::uint32_t> no_room;
    auto const problem = [&] { return full_problem(slots, counts, full, no_room); };
    if (status s = refuse_once("append", problem); !s.ok()) return s;
    if (!no_room.empty()) {
      index_list const list{no_room.data(), no_room.size()};
      if (status s = compress(list, full.shrink_to, full.fallback); !s.ok()) return s;
    }
    return append(slots, counts);
  }

  /// Guarded policies: goes by this guard from now on, its numbers and its probes.
  template <class Guard> status set_guard(Guard const& guard) {
    static_assert(is_guarded<typename policy_used::identify_type>::value,
                  "kvmeld: the policy has no guard to set");
    static_assert(std::is_same_v<Guard, typename policy_used::identify_type::guard_type>,
                  "kvmeld: the guard is of another type than the policy's");
    if (status s = refuse([&] { return problem_of(guard); }); !s.ok()) return s;
    policy_.identify.guard = guard;
    return {};
  }

  /// Lowers the bounds to the real lengths, and brings findings and rounds up to date. Waits where launches are not
  /// immediate; where they are, every compress does it.
  void report_lengths(std::uint32_t slot) {
    if (!within("report_lengths", slot)) return;
    if (refuse_once("report_lengths", [] { return std::string(); }).ok())
      known_.read(readable().ledger, slot);
  }
  /// Asks for what `report_lengths` tells, of all sequences, without waiting: enqueues a copy behind the calls made so far.
  /// One report is on its way at a time: asking again before it has arrived does nothing. The first time allocates host
  /// memory.
  status request_report() {
    if (status s = refuse_once("request_report", [] { return std::string(); }); !s.ok()) return s;
    if constexpr (!is_immediate<Executor>::value) {
      if (report_.sent()) return {};
      report_.send(executor_, memory_.data(), arrays_.word_bytes);
      known_.expect_report();
    }
    return {};
  }
  /// True, once, when the report has arrived; never waits. Bounds are then no higher than what it says and what was appended
  /// since; a sequence that was not compressed since has its lengths, findings and rounds told. Where launches are
  /// immediate there is nothing to wait for: true.
  bool poll_report() {
    if constexpr (is_immediate<Executor>::value) {
      return true;
    } else {
      if (!report_.arrived(executor_)) return false;
      arena a(report_.data(), arrays_.word_bytes);
      known_.take_report(carve_ledger(a, sizes_, ledger_.channels));
      return true;
    }
  }
  /// Sets the step of Chelsea's schedule: the next round of the sequence is round `n` (i in r_i, counted from 0), and those
  /// after it go on from there. `rounds(slot)` tells it. Enqueued. Refuses slots that are not open, and n above 2^31 - 1.
  status set_rounds(std::uint32_t slot, std::uint32_t n) {
    if (status s = refuse([&] { return check_calls::set_rounds(facts_, slot, n); }); !s.ok()) return s;
    keep_known();
    sequence_phase const all{ledger_, stage({&slot, 1}), executor_.stage({&n, 1}).data()};
    if (status s = launch_all("set_rounds", set_rounds_phase{all}); !s.ok()) return s;
    known_.set_rounds(slot, n);
    return {};
  }
  /// Starts Chelsea's schedule again: set_rounds(slot, 0).
  status reset_rounds(std::uint32_t slot) { return set_rounds(slot, 0); }

  /// Bytes that `save` writes for a sequence: everything the ledger knows about it, pending entries included, in a
  /// format with a version and a checksum. K and V rows and block tables are the engine's to save. Waits, as `save` and
  /// `resume` do, where launches are not immediate.
  std::size_t saved_bytes(std::uint32_t slot) const {
    if (!save_problem(slot).ok()) return 0;
    return saved::bytes_of(readable().ledger, slot, policy_name_);
  }
  /// Fills the first saved_bytes(slot) bytes of `out`.
  status save(std::uint32_t slot, span<std::byte> out) const {
    if (status s = save_problem(slot); !s.ok()) return s;
    return report(saved::save(readable().ledger, slot, policy_name_, out));
  }
  /// The same as a vector; empty where nothing is open and exceptions are off.
  std::vector<std::byte> save(std::uint32_t slot) const {
    if (!save_problem(slot).ok()) return {};
    return saved::save(readable().ledger, slot, policy_name_);
  }
  /// Opens `slot` as the sequence that was saved, in this or another cache of the same policy, channels and shape; its
  /// capacity and number of sequences may differ. The engine restores K and V rows. Allocates a ledger of one sequence
  /// to look at the bytes before it believes them.
  status resume(std::uint32_t slot, span<std::byte const> from) {
    auto const problem = [&] { return saved::problem(facts_, slot, from, policy_name_); };
    if (status s = refuse_once("resume", problem); !s.ok()) return s;
    readable_ledger const to = readable();
    sequence_phase const all{ledger_, stage({&slot, 1}), nullptr};
    auto const launches = [&] { launch(first_figures(all)); };
    if (status s = make_room(executor_, "resume", launches); !s.ok()) return s;
    saved::resume(to.ledger, slot, from, policy_name_);
    if (!to.memory.empty()) executor_.upload(memory_.data(), to.memory.data(), to.memory.size());
    known_.read(to.ledger, slot);
    launches();
    return {};
  }

  /// True where the host knows the lengths that `compress` leaves with budgets per head: evicting policies, and merging
  /// ones that meet their budget where the fallback evicts what rows of NaN or infinity leave over. Else, and wherever
  /// tracks share their budgets, report_lengths tells.
  bool exact(shortfall fallback = shortfall::report) const { return is_exact(policy_, fallback); }
  /// What length_bound would be after `compress` with this budget. Refuses what compress refuses.
  std::uint32_t length_after(std::uint32_t slot, budget allowed,
                             shortfall fallback = shortfall::report) const {
    std::uint32_t most = 0;
    if (!refuse([&] { return compress_problem("length_after", {&slot, 1}, allowed, fallback); }).ok())
      return most;
    bounds_after(slot, allowed, fallback,
                 [&](track, std::uint32_t bound, split_sum const&) { most = max_of(most, bound); });
    return most;
  }

private:
  status save_problem(std::uint32_t slot) const {
    return refuse_once("save", [&] { return check_calls::is_open("save", facts_, {slot}); });
  }

  std::string plan_problem_for(index_list slots, budget allowed, shortfall fallback, bool keeps_plan) const {
    if (keeps_plan && !sizes_.whole_plan) {
      return refusal("plan", "limits.whole_plan", "false",
                     "true, so that there is memory for a whole plan (or call compress)");
    }
    return compress_problem(keeps_plan ? "plan" : "compress", slots, allowed, fallback);
  }
  std::string compress_problem(char const* call, index_list slots, budget allowed, shortfall fallback) const {
    std::string text = check_calls::splits(call, allowed, policy_, sizes_);
    if (text.empty()) text = check_calls::compress(call, facts_, slots, allowed, policy_, seen_tensors());
    if (text.empty()) text = check_calls::guarded(call, policy_, fallback);
    if (text.empty()) text = check_calls::scopes(call, facts_, slots, allowed, sizes_.scope, seen_tensors());
    return text;
  }
  /// Why append cannot make room; fills `no_room` with the sequences that have none.
  std::string full_problem(index_list slots, index_list counts, when_full const& full,
                           std::vector<std::uint32_t>& no_room) const {
    std::string text = check_calls::one_count_each("append", slots, counts);
    if (text.empty()) text = check_calls::is_open("append", facts_, slots);
    if (!text.empty()) return text;
    std::uint32_t const capacity = sizes_.extent.capacity;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (counts[i] > capacity) {
        return refusal("append", message("counts[", i, "]"), counts[i], "at most ", capacity,
                       ", the capacity");
      }
      if (this->longest(slots[i]) > capacity - counts[i]) no_room.push_back(slots[i]);
    }
    if (no_room.empty()) return {};
    text = plan_problem_for({no_room.data(), no_room.size()}, full.shrink_to, full.fallback, false);
    if (!text.empty()) return text;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::uint32_t const left = this->longest(slots[i]) > capacity - counts[i]
                                     ? length_after(slots[i], full.shrink_to, full.fallback)
                                     : 0;
      if (left <= capacity - counts[i]) continue;
      return refusal("append",
                     message("what full.shrink_to and full.fallback leave of sequence slot ", slots[i]), left,
                     "at most ", capacity - counts[i], " entries, so that counts[", i, "] = ", counts[i],
                     " fit into the capacity of ", capacity);
    }
    return {};
  }
  static constexpr bool writes_all =
      is_always_writable<keys_used>::value && is_always_writable<values_used>::value;
  /// f(track, bound, sum) for every track of a sequence: what it holds at most after a compression, and what its split
  /// holds and may keep. A track alone is known as length_bounds.hpp says; of several that share their budgets each may
  /// keep what the others lose.
  template <class F> void bounds_after(std::uint32_t slot, budget allowed, shortfall fallback, F f) const {
    split_sum sum;
    auto const held = [&](track t) { return known_.held(t); };
    for_tracks(slot, [&](track t) {
      std::uint32_t const before = held(t), limit = allowed.resolve(t, facts_.seen[slot]);
      if (tracks_per_split(allowed.among(), sizes_.extent) == 1) {
        return f(t,
                 bound_after(policy_, before, known_.known(slot), limit, facts_.frozen[slot], writes_all,
                             fallback),
                 split_sum{1, before, limit});
      }
      if (leads_split(allowed.among(), t))
        sum = sum_of_split(sizes_.extent, t, allowed, facts_.seen[slot], held);
      bool const met = sum.excess() != 0 && (exact(fallback) || fallback == shortfall::evict_lowest);
      f(t, met ? min_of(before, sum.allowed) : before, sum);
    });
  }
  /// Where the host cannot count what is pinned, only what has to go is sure to take part.
  std::uint32_t likely_between(std::uint32_t slot, std::uint32_t before, std::uint32_t limit) const {
    bool const counts = traits_of_selector(policy_.select).pins_exactly;
    return likely_rounds(policy_.identify, before, limit,
                         counts ? policy_.select.pinned(before, limit, facts_.frozen[slot]).total() : before);
  }

  std::string apply_problem() const {
    if (planned_.empty()) return check_calls::no_plan();
    if constexpr (is_immediate<Executor>::value)
      return check_calls::apply(ledger_, arrays_.workspace.plan, planned_work(), tensors_);
    return {};
  }

  /// What a compression enqueues.
  struct launch_counts {
    std::uint32_t rounds;         ///< at most; where launches are immediate, as many as it takes
    std::uint32_t likely_rounds;  ///< that may have something to do
  };
  /// Also fills bounds_: the longest that each sequence can be once it is compressed.
  launch_counts counts_for(index_list slots, budget allowed, shortfall fallback) {
    std::uint32_t rounds = is_immediate<Executor>::value ? 0xffffffffu : 0;
    std::uint32_t most = rounds;  // whatever the lengths when recorded calls are made again
    std::uint32_t likely = rounds;
    bounds_.assign(slots.size(), 0);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::uint32_t const slot = slots[i];
      bounds_after(slot, allowed, fallback, [&](track, std::uint32_t bound, split_sum const& sum) {
        bounds_[i] = max_of(bounds_[i], bound);
        if constexpr (!is_immediate<Executor>::value) {
          std::uint32_t const full = sum.tracks * sizes_.extent.capacity;
          if (sum.held > sum.allowed)
            rounds = max_of(rounds, most_rounds(policy_.identify, sum.held, sum.allowed));
          if (executor_.records()) most = max_of(most, most_rounds(policy_.identify, full, sum.allowed));
          std::uint32_t const longest = executor_.records() ? full : sum.held;
          if (sum.tracks == 1) likely = max_of(likely, likely_between(slot, longest, sum.allowed));
        }
      });
    }
    return {executor_.limit("rounds", rounds, most), likely};
  }
  /// Does to what the host knows what a compression does to a sequence.
  void know_compressed(std::uint32_t slot, budget allowed, shortfall fallback) {
    bool changes = sizes_.padded;  // the last slots of a track may be empty from now on
    bool loses = !exact(fallback);
    if (sizes_.padded) known_.drop_padding(slot);
    bounds_after(slot, allowed, fallback, [&](track t, std::uint32_t bound, split_sum const& sum) {
      if (sum.held > sum.allowed) {
        changes = true;
        loses = loses || sum.tracks > 1;
      }
      known_.lower(t, bound);
    });
    if (changes) known_.compressed(slot);
    if (loses) known_.lose(slot);
    if (sizes_.padded) known_.pad(slot, writes_all && known_.known(slot));
  }
  /// Fills the tracks of every sequence up to the longest that the host knows: where launches are immediate, the longest
  /// there is.
  void pad(sequence_phase const& all, index_list slots) {
    if constexpr (is_immediate<Executor>::value) {
      for (std::size_t i = 0; i < slots.size(); ++i) bounds_[i] = this->longest(slots[i]);
    }
    launch(clear_padding_phase<keys_used>{all, tensors_.keys});
    launch(clear_padding_phase<values_used>{all, tensors_.values});
    launch(pad_phase{all});
    launch(pad_settle_phase{all});
  }

  /// Recorded calls may be given other budgets, of any kind, when they are made again.
  budget stage_budget(budget allowed) {
    if (!executor_.records()) return allowed.staged(executor_, sizes_.extent);
    budgets_.assign(sizes_.extent.tracks(), 0);
    for (std::uint32_t slot = 0; slot < sizes_.extent.sequences; ++slot) {
      for_tracks(slot, [&](track t) { budgets_[t.index] = allowed.resolve(t, facts_.seen[slot]); });
    }
    return budget::per_track(budgets_.data())
        .over(allowed.among(), allowed.floor())
        .staged(executor_, sizes_.extent);
  }
  report_on_its_way<Executor> report_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
