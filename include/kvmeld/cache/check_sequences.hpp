// The argument checks of the calls that fork, cut and freeze sequences.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/fork.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace check_calls {

/// Committed entries, and empty slots, of a sequence's shortest track.
inline std::uint32_t shortest(ledger_ref const& l, std::uint32_t slot) {
  std::uint32_t least = l.extent.capacity;
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      least = min_of(least, l.length[make_track(l.extent, layer, slot, head).index]);
    }
  }
  return least - l.pending[slot];
}

/// Entries that every track of a sequence has before pending ones and empty slots.
inline std::uint32_t solid_beginning(ledger_ref const& l, std::uint32_t slot) {
  std::uint32_t least = shortest(l, slot);
  for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < l.extent.kv_heads; ++head) {
      std::uint32_t const from = l.word(make_track(l.extent, layer, slot, head), track_word::padded_from);
      if (from != 0) least = min_of(least, from - 1);
    }
  }
  return least;
}

inline std::string frozen_fits(char const* call, ledger_ref const& l, std::uint32_t slot,
                               std::uint32_t frozen) {
  std::uint32_t const most = solid_beginning(l, slot);
  if (frozen <= most) return {};
  return refusal(call, "frozen", frozen, "at most ", most,
                 ", the committed entries of the shortest track of sequence slot ", slot,
                 most == shortest(l, slot) ? "" : " before its first empty slot");
}

template <class Keys, class Values>
std::string fork(ledger_ref const& l, std::uint32_t from, std::uint32_t into, std::uint32_t frozen,
                 fork_rows how, kv<Keys, Values> const& tensors) {
  if (std::string text = is_open("fork", l, {from}); !text.empty()) return text;
  if (std::string text = is_closed("fork", l, into); !text.empty()) return text;
  if (std::string text = nothing_pending("fork", l, from); !text.empty()) return text;
  if (std::string text = frozen_fits("fork", l, from, frozen); !text.empty()) return text;
  if (how == fork_rows::shared) return {};
  if constexpr (!is_always_writable<Keys>::value || !is_always_writable<Values>::value) {
    return first_track_problem(l, from, [&](track t) -> std::string {
      track const to = make_track(l.extent, t.layer, into, t.kv_head);
      for (slot_t s = frozen; s < l.length[t.index]; ++s) {
        if (tensors.keys.writable(to, s) && tensors.values.writable(to, s)) continue;
        return refusal("fork", message("slot ", s, " of ", track_name(to)), "not writable",
                       "writable, because it lies behind frozen = ", frozen, " (or give fork_rows::shared)");
      }
      return {};
    });
  } else {
    (void)tensors;
    return {};
  }
}

inline std::string truncate(ledger_ref const& l, std::uint32_t slot, std::uint32_t tokens) {
  if (std::string text = is_open("truncate", l, {slot}); !text.empty()) return text;
  if (std::string text = nothing_pending("truncate", l, slot); !text.empty()) return text;
  std::uint32_t const seen = l.seen[slot];
  std::uint32_t const merged = l.sequence_state(slot, sequence_word::compressed_at);
  std::uint32_t const least = shortest(l, slot);
  std::uint32_t const unfrozen = least - min_of(least, l.frozen[slot]);
  std::uint32_t const lowest = max_of(merged, seen - min_of(seen, unfrozen));
  if (tokens >= lowest && tokens <= seen) return {};
  return refusal("truncate", "tokens", tokens, lowest, " to ", seen, ", the tokens of sequence slot ", slot,
                 lowest == merged && merged != 0 ? " that are seen but not compressed"
                 : lowest != 0                   ? " that are seen but not frozen"
                                                 : " that are seen");
}

/// Tracks that are to share one plan have to be alike: equally long, with equal budgets, and as many rows that may not
/// be written.
template <class Keys, class Values>
std::string scopes(char const* call, ledger_ref const& l, index_list slots, budget allowed, plan_scope scope,
                   kv<Keys, Values> const& tensors) {
  if (scope == plan_scope::head) return {};
  for (std::uint32_t slot : slots) {
    std::string text = first_track_problem(l, slot, [&](track t) -> std::string {
      track const leader = make_track(l.extent, scope == plan_scope::layer ? t.layer : 0, slot, 0);
      auto const differ = [&](char const* what, std::uint32_t own, std::uint32_t other) {
        return own == other ? std::string()
                            : refusal(call, message(what, " of ", track_name(t)), own, other, ", as that of ",
                                      track_name(leader), ", whose plan it shares (limits.scope)");
      };
      std::string problem = differ("length", l.length[t.index], l.length[leader.index]);
      if (problem.empty()) {
        problem = differ("budget", allowed.resolve(t, l.seen[slot]), allowed.resolve(leader, l.seen[slot]));
      }
      if (problem.empty() && l.members.count != nullptr)
        problem = differ("number of members", l.members.count[t.index], l.members.count[leader.index]);
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

inline std::string freeze(ledger_ref const& l, std::uint32_t slot, std::uint32_t frozen) {
  if (std::string text = is_open("freeze", l, {slot}); !text.empty()) return text;
  return frozen_fits("freeze", l, slot, frozen);
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
