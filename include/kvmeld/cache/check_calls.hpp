// The argument checks of merged_cache's calls: each returns why the call is refused, or nothing.
#pragma once

#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/check_split.hpp>
#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/cache/shortfall.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/queries.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace check_calls {

template <class F> std::string first_track_problem(ledger_ref const& l, std::uint32_t sequence, F problem) {
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      std::string text = problem(make_track(l.extent, layer, sequence, head));
      if (!text.empty()) return text;
    }
  }
  return {};
}

inline std::string track_name(track t) {
  return message("track (layer ", t.layer, ", sequence ", t.sequence, ", head ", t.kv_head, ")");
}

inline std::string in_range(char const* call, ledger_ref const& l, std::uint32_t slot) {
  if (slot < l.extent.sequences) return {};
  return message(call, ": sequence slot is ", slot, "; allowed are 0 to ", l.extent.sequences - 1);
}

/// Every sequence slot_at(0 .. count - 1) is in range, open, and listed once.
template <class SlotAt>
std::string each_is_open(char const* call, ledger_ref const& l, std::size_t count, SlotAt slot_at) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const slot = slot_at(i);
    if (std::string text = in_range(call, l, slot); !text.empty()) return text;
    if (l.is_open[slot] == 0) return message(call, ": sequence slot ", slot, " is not open; open it first");
    for (std::size_t j = 0; j < i; ++j) {
      if (slot_at(j) == slot)
        return message(call, ": sequence slot ", slot, " is listed twice; list it once");
    }
  }
  return {};
}

inline std::string is_open(char const* call, ledger_ref const& l, index_list slots) {
  return each_is_open(call, l, slots.size(), [&](std::size_t i) { return slots[i]; });
}

inline std::string one_count_each(char const* call, index_list slots, index_list counts) {
  if (slots.size() == counts.size()) return {};
  return message(call, ": ", slots.size(), " sequence slots but ", counts.size(), " counts; give one each");
}

inline std::string open(ledger_ref const& l, std::uint32_t slot, std::uint32_t cached, std::uint32_t frozen) {
  if (std::string text = in_range("open", l, slot); !text.empty()) return text;
  if (l.is_open[slot] != 0) return message("open: sequence slot ", slot, " is open already; close it first");
  if (cached > l.extent.capacity) {
    return message("open: tokens_cached is ", cached, "; allowed are 0 to the capacity of ",
                   l.extent.capacity);
  }
  if (frozen > cached)
    return message("open: frozen is ", frozen, "; allowed are 0 to tokens_cached = ", cached);
  return {};
}

inline std::string append(ledger_ref const& l, index_list slots, index_list counts) {
  if (std::string text = one_count_each("append", slots, counts); !text.empty()) return text;
  if (std::string text = is_open("append", l, slots); !text.empty()) return text;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::string text = first_track_problem(l, slots[i], [&](track t) -> std::string {
      std::uint32_t const room = l.extent.capacity - l.length[t.index];
      if (counts[i] <= room) return {};
      return message("append: ", counts[i], " entries to ", track_name(t), ", which holds ",
                     l.length[t.index], "; allowed are up to ", room, " (capacity ", l.extent.capacity, ")");
    });
    if (!text.empty()) return text;
  }
  return {};
}

inline std::string commit(ledger_ref const& l, index_list slots, index_list accepted) {
  if (std::string text = one_count_each("commit", slots, accepted); !text.empty()) return text;
  if (std::string text = is_open("commit", l, slots); !text.empty()) return text;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (accepted[i] > l.pending[slots[i]]) {
      return message("commit: ", accepted[i], " entries of sequence slot ", slots[i],
                     "; allowed are 0 to the pending ", l.pending[slots[i]]);
    }
  }
  return {};
}

/// Rounds of later compressions are added, and their sum has to stay a number of 32 bits.
inline std::string set_rounds(ledger_ref const& l, std::uint32_t slot, std::uint32_t n) {
  if (std::string text = is_open("set_rounds", l, {slot}); !text.empty()) return text;
  if (n <= 0x7fffffffu) return {};
  return message("set_rounds: n is ", n, "; it must be at most 2147483647");
}

inline std::string observe(ledger_ref const& l, query_batch const& batch, attention_params const& params,
                           bool null) {
  if (std::string text = batch_problem("observe", l.extent, batch); !text.empty()) return text;
  if (std::string text = params_problem("observe", params, l.extent.key_dim); !text.empty()) return text;
  auto const slot_at = [&](std::size_t i) { return batch.sequence(static_cast<std::uint32_t>(i)); };
  if (std::string text = each_is_open("observe", l, batch.size(), slot_at); !text.empty()) return text;
  bool any = false;
  for (std::uint32_t i = 0; i < batch.size(); ++i) {
    std::uint32_t const sequence = batch.sequence(i);
    std::uint32_t const since = l.seen[sequence] - l.sequence_state(sequence, sequence_word::compressed_at);
    if (l.padded && batch.queries(i) > max_of(since, 1u)) {
      return message("observe: ", batch.queries(i), " queries of sequence slot ", sequence, ", which got ",
                     since, " tokens since it was last compressed; allowed are up to ", max_of(since, 1u),
                     " (limits.padded: older tokens lie before empty slots)");
    }
    if (l.pending[sequence] != 0) {
      return message("observe: sequence slot ", sequence, " has ", l.pending[sequence],
                     " pending entries; commit them first");
    }
    std::string text = first_track_problem(l, sequence, [&](track t) -> std::string {
      if (t.layer != batch.layer() || batch.queries(i) <= l.length[t.index]) return {};
      return message("observe: ", batch.queries(i), " queries on ", track_name(t), "; allowed are up to its ",
                     l.length[t.index], " entries (the queries are those of its last tokens)");
    });
    if (!text.empty()) return text;
    any = any || batch.queries(i) != 0;
  }
  if (null && any) {
    return "observe: the queries, log-sum-exps or rows are null; give what attention was computed from";
  }
  return {};
}

/// Stands for a layout that the host may not look into: what may not be written there, phases find out.
struct unseen_rows {
  static constexpr bool always_writable = true;
  static constexpr bool writable(track, slot_t) { return true; }
};

/// Length of the beginning that is frozen or that a layout refuses to write.
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

/// Empty slots are taken out before anything else: rows behind the first one have to be writable.
template <class Keys, class Values>
std::string padding_problem(char const* call, ledger_ref const& l, track t, kv<Keys, Values> const& tensors) {
  std::uint32_t const from = l.word(t, track_word::padded_from);
  if (l.word(t, track_word::empty) == 0) return {};
  std::uint32_t const shielded = shielded_length(l, t, tensors);
  if (shielded < from) return {};
  return message(call, ": slot ", shielded - 1, " of ", track_name(t),
                 " may not be written, but lies behind the empty slot ", from - 1,
                 " (limits.padded); allowed are shared rows before it");
}

template <class Guard, class = void> struct has_problem_of_call : std::false_type {};
template <class Guard>
struct has_problem_of_call<Guard, std::void_t<decltype(std::declval<Guard const&>().problem_of_call(""))>>
    : std::true_type {};

/// A guarded policy evicts nothing, so that what is left can be vouched for; its guard may want something first.
template <class Policy>
std::string guarded(char const* call, [[maybe_unused]] Policy const& p, [[maybe_unused]] shortfall wanted) {
  if constexpr (is_guarded<typename Policy::identify_type>::value) {
    if constexpr (has_problem_of_call<typename Policy::identify_type::guard_type>::value) {
      if (std::string text = p.identify.guard.problem_of_call(call); !text.empty()) return text;
    }
    if (wanted == shortfall::report) return {};
  } else {
    return {};
  }
  return message(call,
                 ": the fallback is shortfall::evict_lowest, but the policy is guarded, and no bound covers "
                 "what is evicted; allowed is shortfall::report");
}

/// Budgets that make sense, scores that were fed, nothing pending, pinned entries that fit.
template <class Policy, class Keys, class Values>
std::string compress(char const* call, ledger_ref const& l, index_list slots, budget allowed,
                     Policy const& policy, kv<Keys, Values> const& tensors) {
  if (std::string text = is_open(call, l, slots); !text.empty()) return text;
  if (allowed.is_ratio() && !(allowed.ratio_value() > 0.0 && allowed.ratio_value() <= 1.0)) {
    return message(call, ": budget ratio is ", allowed.ratio_value(),
                   "; allowed are numbers above 0 and up to 1");
  }
  if (allowed.is_per_track() && allowed.table() == nullptr) {
    return message(call, ": the per-track budget table is null; give one number per track");
  }
  for (std::uint32_t slot : slots) {
    if (l.pending[slot] != 0) {
      return message(call, ": sequence slot ", slot, " has ", l.pending[slot],
                     " pending entries; commit them first");
    }
    bool shrinks = false;  // of the split that the track is in
    std::string text = first_track_problem(l, slot, [&](track t) -> std::string {
      std::uint32_t const length = l.held(t);
      std::uint32_t const limit = allowed.resolve(t, l.seen[slot]);
      if (allowed.among() != split::head && leads_split(allowed.among(), t)) {
        auto const held = [&](track other) { return l.held(other); };
        shrinks = sum_of_split(l.extent, t, allowed, l.seen[slot], held).excess() != 0;
      }
      if (limit == 0)
        return message(call, ": budget of ", track_name(t), " is 0; allowed are numbers from 1 on");
      if (std::string problem = padding_problem(call, l, t, tensors); !problem.empty()) return problem;
      if (length <= limit && !shrinks) return {};
      if (traits_of_score(policy.score).needs_attention && l.word(t, track_word::observed_rows) == 0) {
        return message(call, ": the policy ranks entries by attention, but ", track_name(t),
                       " never observed any; call observe for every layer first");
      }
      if (length <= limit) return {};
      pins const p = policy.select.pinned(length, limit, min_of(length, shielded_length(l, t, tensors)));
      // Sets need an entry to live in besides the pinned ones.
      std::uint32_t const least =
          p.total() + (traits_of_identifier(policy.identify).makes_sets && p.total() < length ? 1 : 0);
      if (limit >= least) return {};
      return message(call, ": budget is ", limit, " entries, but ", p.total(), " of the ", length,
                     " entries of ", track_name(t), " are pinned (", p.sinks, " sinks or frozen, ", p.recents,
                     " recents, ", p.heavy, " by score); allowed are budgets from ", least,
                     " on, or a selector that pins fewer");
    });
    if (!text.empty()) return text;
  }
  return {};
}

template <class Keys, class Values>
std::string apply(ledger_ref const& l, plan_ref const& plan, work_list work,
                  kv<Keys, Values> const& tensors) {
  if (work.sequence_count == 0) return "apply: there is no plan; call plan first";
  for (std::uint32_t item = 0; item < work.tracks(l.extent); ++item) {
    track const t = work.at(l.extent, item);
    if (l.pending[t.sequence] != 0) {
      return message("apply: sequence slot ", t.sequence, " has ", l.pending[t.sequence],
                     " pending entries; commit them first");
    }
    std::string text = plan_problem(l, t, plan, item, shielded_length(l, t, tensors));
    if (!text.empty()) return "apply: " + text;
  }
  return {};
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
