// Compresses one random case whole, in rounds of plan and apply, on more threads, in other waves, alone and
// elsewhere.
#pragma once

#include <kvmeld/testing.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "invariants.hpp"
#include "member_invariants.hpp"
#include "support/brief.hpp"

namespace properties {

// Random cases of a test.
inline int cases(int n) { return support::cases(n, 16); }

// Degrees, positions and scores as earlier rounds may have left them.
template <class Cache> void age(dice& d, Cache const& cache, std::uint32_t q, std::uint32_t n) {
  kvmeld::ledger_ref const& l = cache.ledger();
  bool const merged = d.chance(0.5), odd_scores = d.chance(0.2);
  support::for_tracks(l.extent, q, [&](kvmeld::track t) {
    int position = 0;
    for (std::uint32_t i = 0; i < n; ++i, ++position) {
      if (merged) l.degree[l.at(t, i)] = static_cast<float>(d.between(1, 4));
      if (merged) position += static_cast<int>(d.below(3));
      l.position[l.at(t, i)] = position;
    }
    l.seen[q] = std::max(l.seen[q], static_cast<std::uint32_t>(position));
    for (std::uint32_t c = 0; c < l.channels.count; ++c) {
      std::vector<float> scores(n);
      for (float& x : scores) x = static_cast<float>(d.chance(0.5) ? d.below(5) : 5 * d.uniform());
      if (odd_scores) scores[d.below(n)] = special(d);
      support::set_scores(l, t, scores, c);
    }
    l.word(t, kvmeld::track_word::observed_rows) = 1;
    if (l.members.capacity != 0) give_members(d, l, t, n);
  });
}

// The per-entry arrays and words of one track in another ledger.
inline void copy_ledger(kvmeld::ledger_ref const& from, kvmeld::track a, kvmeld::ledger_ref const& to,
                        kvmeld::track b) {
  for (std::uint32_t i = 0; i < from.length[a.index]; ++i) {
    std::size_t const x = from.at(a, i), y = to.at(b, i);
    to.degree[y] = from.degree[x];
    to.position[y] = from.position[x];
    for (std::uint32_t c = 0; c < from.channels.count; ++c) to.channel_data[c][y] = from.channel_data[c][x];
  }
  copy_members(from, a, to, b);
  to.word(b, kvmeld::track_word::observed_rows) = from.word(a, kvmeld::track_word::observed_rows);
}

// Raw bits of row `slot` of one track into another tensor.
template <class Layout>
void copy_bits(Layout const& from, kvmeld::track a, Layout const& to, kvmeld::track b, std::uint32_t slot) {
  auto const x = from.locate(a, slot), y = to.locate(b, slot);
  for (std::uint32_t c = 0; c < from.channels(); ++c)
    y.base[c * y.channel_stride] = x.base[c * x.channel_stride];
}

// What `b` holds that `a` does not, values aside, which may have been rounded more often; empty if nothing.
template <class T, class Cache> std::string unlike(Cache const& a, Cache const& b, std::uint32_t q) {
  std::string out = a.rounds(q) == b.rounds(q) ? "" : "rounds";
  support::for_tracks(a.ledger().extent, q, [&](kvmeld::track t) {
    auto const x = support::read_track(a.ref(), t), y = support::read_track(b.ref(), t);
    if (!out.empty()) return;
    if (x.size() != y.size())
      out = "length " + std::to_string(x.size()) + " and " + std::to_string(y.size());
    else if (x.position != y.position)
      out = "positions";
    else if (x.degree != y.degree)
      out = "degrees";
    for (std::uint32_t i = 0; out.empty() && i < x.size(); ++i) {
      if (!same_row(x.keys[i], b.ref().keys, t, i)) out = "keys";
      if (x.bad[i]) continue;
      double largest = 1e-30, off = 0;
      for (std::size_t c = 0; c < x.values[i].size(); ++c) {
        largest = std::max(largest, std::fabs(x.values[i][c]));
        off = std::max(off, std::fabs(x.values[i][c] - y.values[i][c]));
      }
      // Cancellation: the members may be larger than their mean. The rows are around 1, or were scaled to
      // 1e30.
      double const scale = std::max(largest, largest > 1e20 ? 1e31 : largest > 1e-35 ? 4.0 : 1e-38);
      if (off > (std::is_same_v<T, float> ? 1e-5 : 1e-2) * scale)
        out = "values " + std::to_string(off) + " apart, of " + std::to_string(largest);
    }
  });
  return out;
}

// Planning again and again selects again: with several rounds the outcome is that of `compress` only where
// the selector pins the same entries every time, as `repeatable` says.
template <class T, class Policy> void run_case(dice& d, Policy const& policy, bool repeatable = true) {
  setting s;
  s.extent = {d.between(1, 2), d.between(1, 3), d.between(1, 2), 1, d.between(1, 40), d.between(1, 40), 0};
  s.extent.capacity = d.between(1, 60);
  s.fallback = d.chance(0.4) ? kvmeld::shortfall::evict_lowest : kvmeld::shortfall::keep;
  support::engine_memory<T> memory(s.extent);
  std::vector<std::uint32_t> slots;
  for (std::uint32_t q = 0; q < s.extent.sequences; ++q) {
    slots.push_back(q);
    s.lengths.push_back(d.between(1, s.extent.capacity));
    s.frozen.push_back(d.chance(0.2) ? d.below(s.lengths[q] / 2 + 1) : 0);
    constexpr support::texture textures[] = {support::texture::noise, support::texture::walk,
                                             support::texture::clusters};
    support::for_tracks(s.extent, q, [&](kvmeld::track t) {
      auto k = support::random_rows(d, s.lengths[q], s.extent.key_dim, d.pick(textures));
      auto v = support::random_rows(d, s.lengths[q], s.extent.value_dim, support::texture::noise);
      if (d.chance(0.4)) spoil(d, k, v, s);
      memory.fill(t, 0, k, v);
    });
  }
  subject<T, Policy> start(memory, policy, 1, d.between(0, 4), true);
  s.budgets.resize(s.extent.tracks());
  std::vector<reference::track_state> before(s.extent.tracks());
  std::vector<member_list> members(s.extent.tracks());
  for (std::uint32_t q : slots) {
    start.cache.open(q, s.lengths[q], s.frozen[q]);
    age(d, start.cache, q, s.lengths[q]);
    support::for_tracks(s.extent, q, [&](kvmeld::track t) {
      before[t.index] = support::read_track(start.cache.ref(), t);
      members[t.index] = members_of(start.cache.ledger(), t);
      std::uint32_t const n = s.lengths[q];
      std::uint32_t& limit = s.budgets[t.index];
      for (limit = d.between(1, n + 1); limit < n && limit < min_budget(policy, n, limit, s.frozen[q]);)
        ++limit;
    });
  }
  auto const budget = kvmeld::budget::per_track(s.budgets.data());
  auto const images = [&](auto const& cache, bool looks = true) {
    std::vector<std::vector<std::uint32_t>> out;
    for (std::uint32_t q : slots) out.push_back(image(cache, q, s.lengths[q], looks));
    return out;
  };

  kvmeld::testing::watch const unharmed(start.cache);
  subject<T, Policy> whole = start;
  whole.cache.compress(slots, budget, s.fallback);
  CHECK(unharmed.after_compress(whole.cache, slots) == "");
  for (std::uint32_t q : slots) {
    support::for_tracks(s.extent, q, [&](kvmeld::track t) {
      CHECK(broken_promises(policy, s, whole.cache, t, before[t.index]) == 0);
      CHECK(broken_member_promises(policy, s.budgets[t.index], whole.cache, t, before[t.index],
                                   members[t.index]) == 0);
    });
  }

  subject<T, Policy> rounds = start;
  for (bool more = true; more;) {
    std::size_t held = 0, left = 0;
    for (std::uint32_t q : slots) held += rounds.cache.entries(q);
    kvmeld::testing::watch const last(rounds.cache);
    rounds.cache.plan(slots, budget, s.fallback);
    CHECK(last.unchanged(rounds.cache) == "");
    rounds.cache.apply();
    CHECK(last.after_compress(rounds.cache, slots) == "");
    for (std::uint32_t q : slots) left += rounds.cache.entries(q);
    more =
        kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>.repeats && left < held;
  }
  if (!kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>.repeats)
    CHECK(images(whole.cache, false) == images(rounds.cache, false));  // a plan looks at all rows
  for (std::uint32_t q : slots) CHECK((repeatable ? unlike<T>(whole.cache, rounds.cache, q) : "") == "");

  // Other waves; every so often more threads too, which on small cases mostly wait for each other.
  std::uint32_t const threads = d.chance(0.08) ? d.between(2, 3) : 1;
  subject<T, Policy> waved(memory, policy, threads, d.between(1, s.extent.tracks()), false);
  for (std::uint32_t q : slots) waved.cache.open(q, s.lengths[q], s.frozen[q]);
  for (std::uint32_t q : slots) {  // the ledger as it was
    support::for_tracks(
        s.extent, q, [&](kvmeld::track t) { copy_ledger(start.cache.ledger(), t, waved.cache.ledger(), t); });
  }
  waved.cache.compress(slots, budget, s.fallback);
  CHECK(images(waved.cache) == images(whole.cache));

  // One sequence alone, in another slot of a cache of other shape.
  std::uint32_t const q = d.below(s.extent.sequences), elsewhere = d.below(4);
  kvmeld::shape other = s.extent;
  other.sequences = 4;
  support::engine_memory<T> lone(other);
  subject<T, Policy> alone(lone, policy, 1, 0, false);
  alone.cache.open(elsewhere, s.lengths[q], s.frozen[q]);
  std::vector<std::uint32_t> budgets(other.tracks());
  support::for_tracks(s.extent, q, [&](kvmeld::track t) {
    kvmeld::track const to = kvmeld::make_track(other, t.layer, elsewhere, t.kv_head);
    budgets[to.index] = s.budgets[t.index];
    copy_ledger(start.cache.ledger(), t, alone.cache.ledger(), to);
    for (std::uint32_t i = 0; i < s.lengths[q]; ++i) {
      copy_bits(start.cache.ref().keys, t, alone.cache.ref().keys, to, i);
      copy_bits(start.cache.ref().values, t, alone.cache.ref().values, to, i);
    }
  });
  alone.cache.compress({elsewhere}, kvmeld::budget::per_track(budgets.data()), s.fallback);
  CHECK(image(alone.cache, elsewhere, s.lengths[q]) == image(whole.cache, q, s.lengths[q]));
}

}  // namespace properties
