// SPDX-License-Identifier: Apache-2.0
// Checks what holds for a ledger between any two calls.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/testing/layout_options.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// What is wrong with the members of one track; empty if nothing is. Members fit their room, each belongs to
/// an entry of the track, they are ordered by owner, and norms are finite and not negative.
inline std::string member_problem(ledger_ref const& l, track t) {
  if (l.members.capacity == 0) return {};
  std::uint32_t const count = l.members.count[t.index];
  if (count > l.members.capacity) {
    return message(check_calls::track_name(t), " has ", count, " members, but room for ", l.members.capacity);
  }
  for (std::uint32_t m = 0; m < count; ++m) {
    std::size_t const i = l.members.at(t, m);
    if (l.members.owner[i] >= l.length[t.index]) {
      return message("member ", m, " of ", check_calls::track_name(t), " belongs to slot ",
                     l.members.owner[i], ", but the track holds ", l.length[t.index], " entries");
    }
    if (m > 0 && l.members.owner[i] < l.members.owner[i - 1]) {
      return message("member ", m, " of ", check_calls::track_name(t), " belongs to slot ",
                     l.members.owner[i], ", and the one before it to slot ", l.members.owner[i - 1],
                     "; members are ordered by owner");
    }
    if (!is_finite(l.members.norm[i]) || l.members.norm[i] < 0.0f) {
      return message("member ", m, " of ", check_calls::track_name(t), " has norm ", l.members.norm[i]);
    }
  }
  return {};
}

/// What is wrong with the entries of one track; empty if nothing is. Degrees are above 0. Stored positions
/// ascend strictly and are below seen + pending. Pending entries have degree 1 and the last positions. In
/// padded tracks, as many slots are empty as the track says.
inline std::string entry_problem(ledger_ref const& l, track t) {
  std::uint32_t const n = l.length[t.index], pending = l.pending[t.sequence];
  std::int64_t const known = std::int64_t{l.seen[t.sequence]} + pending;
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  std::uint32_t empty = 0;
  for (slot_t s = 0; s < n; ++s) {
    float const degree = l.degree[l.at(t, s)];
    if (l.padded && degree == 0.0f && s + pending < n) {
      if (empty++ == 0 && l.word(t, track_word::padded_from) != s + 1) {
        return message(slot_name(t, s), " is empty, but the track says that its first empty slot is ",
                       std::int64_t{l.word(t, track_word::padded_from)} - 1);
      }
      continue;
    }
    if (!is_finite(degree) || !(degree > 0.0f)) {
      return message(slot_name(t, s), " has degree ", degree, "; it must be a finite number above 0");
    }
    position_t const position = l.position[l.at(t, s)];
    if (position <= last) {
      return message(slot_name(t, s), " is stored at position ", position, ", and the slot before it at ",
                     last, "; positions ascend");
    }
    last = position;
    if (position >= known) {
      return message(slot_name(t, s), " is stored at position ", position, ", but ", known,
                     " tokens are known (seen and pending)");
    }
    if (s + pending >= n && (degree != 1.0f || position != known - (std::int64_t{n} - s))) {
      return message(slot_name(t, s), " is pending, but has degree ", degree, " and position ", position,
                     "; expected are 1 and ", known - (std::int64_t{n} - s));
    }
  }
  if (empty != l.word(t, track_word::empty)) {
    return message(check_calls::track_name(t), " has ", empty, " empty slots, but says ",
                   l.word(t, track_word::empty));
  }
  return {};
}

/// What is wrong with a ledger; empty if nothing is. Closed sequences are not checked. For every track of an
/// open sequence: frozen + pending <= length <= capacity, length without empty slots <= seen + pending, and
/// degrees, positions and members as entry_problem and member_problem say. Host only; linear in the ledger.
inline std::string invariant_problem(ledger_ref const& l) {
  std::string problem;
  each_track(l.extent, [&](track t) {
    if (!problem.empty() || l.is_open[t.sequence] == 0) return;
    std::uint32_t const n = l.length[t.index];
    std::uint32_t const seen = l.seen[t.sequence], pending = l.pending[t.sequence],
                        frozen = l.frozen[t.sequence];
    if (n > l.extent.capacity) {
      problem =
          message(check_calls::track_name(t), " holds ", n, " entries, but has capacity ", l.extent.capacity);
    } else if (std::uint64_t{frozen} + pending > n) {
      problem = message(check_calls::track_name(t), " holds ", n, " entries, fewer than its ", frozen,
                        " frozen and ", pending, " pending ones");
    } else if (l.held(t) > std::uint64_t{seen} + pending) {
      problem = message(check_calls::track_name(t), " holds ", l.held(t), " entries, more than the ", seen,
                        " tokens seen and ", pending, " pending");
    } else {
      problem = entry_problem(l, t);
      if (problem.empty()) problem = member_problem(l, t);
    }
  });
  return problem;
}

/// What is wrong with the ledger of a cache; empty if nothing is.
template <class Cache> std::string invariant_problem(Cache const& cache) {
  return invariant_problem(cache.ledger());
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
