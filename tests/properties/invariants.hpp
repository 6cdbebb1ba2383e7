// One random case: a cache of awkward tracks under any policy, compressed in several ways, and what must
// hold.
#pragma once

#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace properties {

using support::dice;

// What a case is, besides its policy.
struct setting {
  kvmeld::shape extent;
  std::vector<std::uint32_t> lengths, frozen;  // per sequence
  std::vector<std::uint32_t> budgets;          // per track
  kvmeld::shortfall fallback;
  bool squares_overflow = false;  // cosines may be none: no promise to reach a budget
};

inline float special(dice& d) {
  constexpr std::uint32_t bits[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0xffc12345u};
  return kvmeld::bits_float(d.pick(bits));
}

// Rows that are alike, zero, huge, denormal, NaN or infinite among ordinary ones.
inline void spoil(dice& d, support::rows& k, support::rows& v, setting& s) {
  std::uint32_t const n = static_cast<std::uint32_t>(k.size());
  std::uint32_t const kind = d.below(8);
  for (std::uint32_t times = d.below(n / 2 + 1); times > 0; --times) {
    std::uint32_t const i = d.below(n);
    auto& row = d.chance(0.7) ? k[i] : v[i];
    float& x = row[d.below(static_cast<std::uint32_t>(row.size()))];
    switch (kind) {
    case 0: x = special(d); break;
    case 1: row.assign(row.size(), 0.0f); break;
    case 2: k[i] = k[0]; break;
    case 3:
      for (float& y : row) y *= 1e30f;
      s.squares_overflow = true;
      break;
    case 4:
      for (float& y : row) y *= 1e-40f;
      break;
    case 5: x = -0.0f; break;
    default: break;
    }
  }
}

template <class T, class Policy> struct subject {
  support::engine_memory<T> memory;
  decltype(support::make_cache(std::declval<support::engine_memory<T>&>(),
                               std::declval<Policy const&>())) cache;

  subject(support::engine_memory<T> const& m, Policy const& policy, std::uint32_t threads, std::uint32_t wave,
          bool whole)
      : memory(m), cache(support::make_cache(memory, policy, options(wave, whole), threads)) {}
  subject(subject const& other) : memory(other.memory), cache(other.cache.clone(memory.tensors())) {}
  subject& operator=(subject const&) = delete;

  static kvmeld::cache_options options(std::uint32_t wave, bool whole) {
    kvmeld::cache_options s;
    s.wave_tracks = wave;
    s.whole_plan = whole;
    s.zero_emptied = true;  // images hold the rows behind the end too
    s.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? 50 : 0;
    return s;
  }
};

inline float degree_of(kvmeld::ledger_ref const& l, kvmeld::track t, std::uint32_t slot) {
  return l.degree[l.at(t, slot)];
}

template <class Policy>
std::uint32_t min_budget(Policy const& p, std::uint32_t n, std::uint32_t limit, std::uint32_t frozen) {
  std::uint32_t const pinned = p.select.pinned(n, limit, frozen).total();
  return std::max(
      1u, pinned + (kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>.makes_sets &&
                            pinned < n
                        ? 1
                        : 0));
}

// Everything an engine can see of one sequence, in bits; every NaN counts as the same. Which rows were looked
// at, and found to be bad, may be left out.
template <class Cache>
std::vector<std::uint32_t> image(Cache const& cache, std::uint32_t q, std::uint32_t n, bool looks = true) {
  std::uint32_t const told = looks ? ~0u : ~std::uint32_t{kvmeld::warning::nonfinite_rows};
  std::vector<std::uint32_t> out{cache.rounds(q), cache.warnings(q) & told};
  auto const ref = cache.ref();
  auto const add = [&](double x) {
    std::uint32_t const u = kvmeld::float_bits(static_cast<float>(x));
    out.push_back((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u);
  };
  support::for_tracks(ref.extent(), q, [&](kvmeld::track t) {
    out.push_back(ref.length(t));
    out.push_back(ref.ledger.warnings[t.index] & told);
    for (std::uint32_t i = 0; i < n; ++i) {
      if (i < ref.length(t)) {
        for (double x : support::read_row(ref.keys, t, i)) add(x);
        out.push_back(static_cast<std::uint32_t>(ref.position(t, i)));
        if (looks) out.push_back(ref.ledger.flags[ref.ledger.at(t, i)]);
        for (std::uint32_t c = 0; c < ref.ledger.channels.count; ++c)
          add(static_cast<double>(ref.ledger.channel_data[c][ref.ledger.at(t, i)]));
        add(static_cast<double>(degree_of(ref.ledger, t, i)));
      }
      for (double x : support::read_row(ref.values, t, i)) add(x);
    }
    kvmeld::member_ref const& m = ref.ledger.members;
    std::uint32_t const members = m.capacity == 0 ? 0 : m.count[t.index];
    for (std::uint32_t i = 0; m.capacity != 0 && i < ref.length(t); ++i)
      add(static_cast<double>(m.own_norm[ref.ledger.at(t, i)]));
    for (std::uint32_t i = 0; i < members; ++i) {
      std::size_t const at = ref.ledger.members.at(t, i);
      out.push_back(m.owner[at]);
      out.push_back(static_cast<std::uint32_t>(m.position[at]));
      add(static_cast<double>(m.norm[at]));
      for (std::uint32_t c = 0; c < ref.ledger.channels.count; ++c)
        add(static_cast<double>(m.channel_data[c][at]));
    }
  });
  return out;
}

template <class Ref>
bool same_row(reference::row const& a, Ref const& layout, kvmeld::track t, std::uint32_t slot) {
  reference::row const b = support::read_row(layout, t, slot);
  for (std::size_t c = 0; c < a.size(); ++c) {
    std::uint32_t const x = kvmeld::float_bits(static_cast<float>(a[c])),
                        y = kvmeld::float_bits(static_cast<float>(b[c]));
    bool const nans = (x & 0x7fffffffu) > 0x7f800000u && (y & 0x7fffffffu) > 0x7f800000u;
    if (x != y && !nans) return false;
  }
  return true;
}

// Whether `middle` mergeable entries can be what stays of a track, wherever `bad` ones among them lie. A bad
// entry ends a consecutive set. Where one entry more has more pairs of a source and a target than there are
// bad ones, an edge is sure.
template <class Identify> bool has_room(Identify const& identify, std::uint32_t middle, std::uint32_t bad) {
  if constexpr (kvmeld::stated_facts<kvmeld::identify_facts, Identify>.needs_centers) {
    return middle > bad;
  } else if constexpr (kvmeld::detail::lists_edges<Identify>) {
    std::uint32_t pairs = 0;
    for (std::uint32_t i = 0; i <= middle; ++i) pairs += i % identify.chunk % 2;
    return pairs > bad;
  } else {
    return middle > 2 * bad;
  }
}

// One track after compression against itself before: what depends on the policy. (What holds of every
// operation is kvmeld::testing::watch's to say.) Counts one failed promise per bit, so that a case costs one
// CHECK.
template <class Policy, class Cache>
std::uint32_t broken_promises(Policy const& policy, setting const& s, Cache const& cache, kvmeld::track t,
                              reference::track_state const& before) {
  enum : std::uint32_t {
    order = 1,
    length = 2,
    degree = 4,
    edges = 16,
    untouched = 32,
    flagged = 64,
    finite = 128,
    found = 512,
    tokens = 1024,
    shorter = 2048
  };
  auto const ref = cache.ref();
  std::uint32_t const n = static_cast<std::uint32_t>(before.size()), held = ref.length(t),
                      limit = s.budgets[t.index];
  std::uint32_t const found_bits = ref.ledger.warnings[t.index];
  std::uint32_t bad = 0, broken = 0;
  for (char b : before.bad) bad += b ? 1 : 0;
  auto const require = [&](bool holds, std::uint32_t bit) { broken |= holds ? 0 : bit; };
  using kvmeld::warning::budget_unreached;
  using kvmeld::warning::evicted_fallback;
  bool const tells_of_bad = (found_bits & kvmeld::warning::nonfinite_rows) != 0;
  require(!tells_of_bad || bad != 0, found);
  if (n <= limit) {
    require(held == n && (found_bits & ~kvmeld::warning::nonfinite_rows) == 0, length);
    for (std::uint32_t i = 0; i < held && i < n; ++i) {
      require(same_row(before.keys[i], ref.keys, t, i) && same_row(before.values[i], ref.values, t, i),
              untouched);
      require(static_cast<double>(degree_of(ref.ledger, t, i)) == before.degree[i] &&
                  ref.position(t, i) == before.position[i],
              degree);
    }
    return broken;
  }
  // Lengths. What can be reached: pinned entries and bad ones stay, the rest becomes one at least for each
  // stretch.
  kvmeld::pins const pins = policy.select.pinned(n, limit, s.frozen[t.sequence]);
  constexpr kvmeld::identify_facts identifier =
      kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>;
  constexpr bool meets = identifier.meets_budget && !Policy::select_type::drops;
  constexpr bool sets = identifier.makes_sets;
  constexpr bool drops_all = std::is_same_v<typename Policy::merge_type, kvmeld::merge::drop>;
  constexpr bool spans = identifier.makes_spans && !drops_all;
  // Degrees that stand for attention are not tokens.
  constexpr bool by_mass = std::is_same_v<typename Policy::merge_type, kvmeld::merge::mass_preserving>;
  // Entries that find no centre are evicted; shared ones live on as members, which have promises of their
  // own.
  constexpr bool evicts = identifier.needs_centers;
  constexpr bool shares = kvmeld::shares_entries<typename Policy::merge_type>::value;
  bool const falls_back = s.fallback == kvmeld::shortfall::evict_lowest;
  bool const reached = (found_bits & budget_unreached) == 0;
  require((held >= 1 || Policy::select_type::drops) && held <= n, length);
  if (meets) require(held >= limit && (held == limit) == reached, length);
  if (!meets) require(held <= limit || !reached, length);
  if (falls_back) require(reached && held <= limit, length);
  if (!falls_back) require((found_bits & evicted_fallback) == 0, found);
  std::uint32_t loose_bad = 0;  // bad entries that may not be pinned
  for (std::uint32_t i = pins.sinks; i < n - pins.recents; ++i) loose_bad += before.bad[i] ? 1 : 0;
  // Of the rows that might have merged none is overlooked; rows that stay or go are not looked at.
  bool const some_may_merge = !evicts && !Policy::select_type::drops && loose_bad > pins.heavy;
  bool const hands_off = pins.total() > limit;  // the frozen beginning fills the budget
  if (!sets && !spans) require(!tells_of_bad, found);
  if (!hands_off && ((sets && some_may_merge) || (spans && bad != 0))) require(tells_of_bad, found);
  bool const room = !sets || (limit > pins.total() && !s.squares_overflow &&
                              has_room(policy.identify, limit - pins.total(), loose_bad));
  if (meets && room) require(held == limit && (found_bits & evicted_fallback) == 0, shorter);

  std::map<long, std::uint32_t> slot_of;
  for (std::uint32_t i = 0; i < n; ++i) slot_of[before.position[i]] = i;
  double total = 0, all = 0;
  for (double x : before.degree) all += x;
  for (std::uint32_t i = 0; i < held; ++i) {
    long const p = ref.position(t, i);
    auto const at = slot_of.find(p);
    if (at == slot_of.end()) return broken | order;
    std::uint32_t const old = at->second;
    double const now = static_cast<double>(degree_of(ref.ledger, t, i));
    total += now;
    require(now > 0 && (shares || by_mass || now >= before.degree[old]) &&
                (shares || policy.merge.carries_degree() || now == before.degree[old]),
            degree);
    bool const same_keys = same_row(before.keys[old], ref.keys, t, i);
    bool const same = same_keys && same_row(before.values[old], ref.values, t, i);
    bool const pinned = old < pins.sinks || old >= n - pins.recents;
    bool const receives = spans && old >= n - pins.recents;
    bool const merges = (sets && !drops_all) || receives;
    bool const tells = policy.merge.carries_degree() && !spans && !by_mass;
    if (pinned) require(receives ? same_keys : same && (shares || now == before.degree[old]), edges);
    if (!merges || (tells && now == before.degree[old])) require(same, untouched);
    if (before.bad[old]) require(same && (shares || now == before.degree[old]), flagged);
    if (!before.bad[old]) {
      require(support::finite_row(support::read_row(ref.keys, t, i)) &&
                  support::finite_row(support::read_row(ref.values, t, i)),
              finite);
    }
  }
  for (std::uint32_t i = 0; i < pins.sinks; ++i) require(ref.position(t, i) == before.position[i], edges);
  for (std::uint32_t i = 0; i < pins.recents && i < held; ++i)
    require(ref.position(t, held - 1 - i) == before.position[n - 1 - i], edges);
  if (policy.merge.carries_degree() && sets && !Policy::select_type::drops) {
    bool const evicted = (found_bits & evicted_fallback) != 0;
    require(by_mass   ? total < all * (1 + 1e-5)
            : evicts  ? total <= all
            : evicted ? total < all
                      : total == all,
            tokens);
  }
  return broken;
}

}  // namespace properties
