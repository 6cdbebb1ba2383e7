// SPDX-License-Identifier: Apache-2.0
// For authors of scores, selectors, identifiers and merge functions: runs a policy on a small cache, on one
// lane and on many, and says what is wrong with it.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/policy/rules.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/testing/check_state.hpp>
#include <kvmeld/testing/lane_executor.hpp>
#include <kvmeld/testing/layout_options.hpp>
#include <kvmeld/testing/watch.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// What a cache and its tensors hold after a short life, and the first thing that went wrong.
struct life_outcome {
  std::string problem;
  std::vector<float> keys, values;  ///< [layer][sequence][head][slot][channel]
  std::vector<float> degree, scores;
  std::vector<std::uint32_t> length;
  std::vector<position_t> position;
};

/// A small cache that lives a short life under a policy: two prompts, a compression, more tokens, another
/// compression. Neighbours resemble each other; some rows are equal, and two hold NaN or infinity.
template <class Policy> class policy_life {
public:
  policy_life(Policy const& policy, shape const& extent) : policy_(policy), extent_(extent) {}

  /// Tokens of the first prompt and what they are compressed to, for a shape.
  static constexpr std::uint32_t frozen = 3;
  static std::uint32_t tokens_of(shape const& s) { return s.capacity * 3 / 4; }
  static std::uint32_t first_budget(shape const& s) { return s.capacity / 2; }
  static std::uint32_t last_budget(shape const& s) { return first_budget(s) - first_budget(s) / 4; }

  /// Whether the budgets of the life have room for what the policy pins, and for one entry more.
  bool fits() const {
    bool const needs_one = !facts_of<identify_facts>(policy_.identify).drops_unmerged;
    for (std::uint32_t left : {first_budget(extent_), last_budget(extent_)}) {
      if (policy_.select.pinned(tokens_of(extent_), left, frozen).total() + (needs_one ? 1 : 0) > left)
        return false;
    }
    return true;
  }

  template <class Executor> life_outcome run(Executor executor) {
    life_outcome o;
    o.keys.assign(extent_.slots() * extent_.key_dim, 1.0f);
    o.values.assign(extent_.slots() * extent_.value_dim, 1.0f);
    kv const tensors{strided<float>(o.keys.data(), "LSHTC", extent_, extent_.key_dim),
                     strided<float>(o.values.data(), "LSHTC", extent_, extent_.value_dim)};
    cache_options options{};
    options.extent = extent_;
    if (shares_entries<typename Policy::merge_type>::value) options.members = 2 * extent_.capacity;
    merged_cache cache{std::move(executor), policy_, tensors, options};
    std::uint32_t const full = tokens_of(extent_), half = first_budget(extent_);
    std::uint32_t const other = extent_.sequences - 1;  // the same sequence if there is one
    write(o, 0, 0, full);
    spoil(o, full / 3);
    cache.open(0, full, frozen, sequence_id{5});
    if (other != 0) {
      write(o, other, 0, half);
      cache.open(other, half, 0, sequence_id{9});
    }
    for (std::uint32_t left : {half, last_budget(extent_)}) {
      show_attention(cache, 0);
      if (other != 0) show_attention(cache, other);
      o.problem = compress(cache, o, {0, other}, other != 0 ? 2 : 1, left);
      if (!o.problem.empty()) return o;
      std::uint32_t const next = cache.longest(0), more = min_of(5u, extent_.capacity - next);
      write(o, 0, next, more);
      cache.append({0}, {more});
      cache.commit({0}, {more});
    }
    read(cache.ledger(), o);
    return o;
  }

private:
  float* key(life_outcome& o, track t, slot_t s) const {
    return o.keys.data() + place(t, s) * extent_.key_dim;
  }
  float* value(life_outcome& o, track t, slot_t s) const {
    return o.values.data() + place(t, s) * extent_.value_dim;
  }
  std::size_t place(track t, slot_t s) const {
    std::size_t const sequence = std::size_t{t.layer} * extent_.sequences + t.sequence;
    return (sequence * extent_.kv_heads + t.kv_head) * extent_.capacity + s;
  }
  static float noise(track t, std::uint32_t slot, std::uint32_t channel) {
    return 2.0f * uniform01({channel, t.layer, t.sequence, t.kv_head, slot}) - 1.0f;
  }
  void write(life_outcome& o, std::uint32_t sequence, std::uint32_t first, std::uint32_t n) const {
    testing::each_track(extent_, [&](track t) {
      if (t.sequence != sequence) return;
      for (slot_t s = first; s < first + n; ++s) {
        slot_t const of = s % 7 == 6 ? s - 1 : s;  // some rows equal the row before
        for (std::uint32_t c = 0; c < extent_.key_dim; ++c)
          key(o, t, s)[c] = noise(t, of / 4, c) + 0.3f * noise(t, of, c + 1000);
        for (std::uint32_t c = 0; c < extent_.value_dim; ++c)
          value(o, t, s)[c] = noise(t, of / 4, c + 2000) + 0.3f * noise(t, of, c + 3000);
      }
    });
  }
  void spoil(life_outcome& o, slot_t s) const {
    track const t = make_track(extent_, extent_.layers - 1, 0, extent_.kv_heads - 1);
    key(o, t, s)[0] = std::numeric_limits<float>::quiet_NaN();
    value(o, t, s + 1)[extent_.value_dim - 1] = std::numeric_limits<float>::infinity();
  }

  /// Attention of the last tokens of a sequence, with random queries.
  template <class Cache> void show_attention(Cache& cache, std::uint32_t sequence) const {
    observation_need const need = cache.needs_observation();
    if (!need) return;
    std::uint32_t const queries =
        min_of(cache.longest(sequence), need.rows == 0 ? 9u : min_of(9u, need.rows));
    std::size_t const rows = std::size_t{queries} * extent_.query_heads();
    std::vector<float> q(rows * extent_.key_dim), out(rows * extent_.value_dim), lse(rows);
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = 3.0f * noise({}, static_cast<std::uint32_t>(i % extent_.key_dim),
                          static_cast<std::uint32_t>(i / extent_.key_dim) + 4000);
    }
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer) {
      query_batch const batch{layer, sequence, queries};
      auto const query =
          rows_by_token<float const>(q.data(), queries, extent_.query_heads(), extent_.key_dim);
      attention::attend(cache.executor(), batch, query, cache.ref(),
                        rows_by_token(out.data(), queries, extent_.query_heads(), extent_.value_dim),
                        rows_by_head(lse.data(), queries, extent_.query_heads(), 1));
      cache.observe(batch, query, rows_by_head<float const>(lse.data(), queries, extent_.query_heads(), 1));
    }
  }

  template <class Cache>
  std::string compress(Cache& cache, life_outcome& o, std::vector<std::uint32_t> sequences, std::size_t count,
                       std::uint32_t left) const {
    sequences.resize(count);
    testing::watch const before(cache);
    if (auto const s = cache.compress(sequences, budget::entries(left)); !s.ok()) {
      return message("compress to ", left, " entries: ", s.text());
    }
    if (std::string text = before.after_compress(cache, sequences); !text.empty()) return text;
    std::string problem;
    ledger_ref const& l = cache.ledger();
    testing::each_track(extent_, [&](track t) {
      if (!problem.empty() || l.is_open[t.sequence] == 0) return;
      if (l.length[t.index] > left) {
        problem = message(check_calls::track_name(t), " holds ", l.length[t.index],
                          " entries after a compression to ", left);
      }
      for (slot_t s = 0; s < l.length[t.index] && problem.empty(); ++s) {
        bool finite = true;
        for (std::uint32_t c = 0; c < extent_.key_dim; ++c) finite = finite && is_finite(key(o, t, s)[c]);
        for (std::uint32_t c = 0; c < extent_.value_dim; ++c) finite = finite && is_finite(value(o, t, s)[c]);
        if (!finite && l.degree[l.at(t, s)] != 1.0f) {
          problem = message(testing::slot_name(t, s), " is merged, and holds NaN or infinity");
        }
      }
    });
    return problem;
  }

  void read(ledger_ref const& l, life_outcome& o) const {
    testing::each_track(extent_, [&](track t) {
      o.length.push_back(l.length[t.index]);
      for (slot_t s = 0; s < extent_.capacity; ++s) {
        bool const used = s < o.length.back();
        o.degree.push_back(used ? l.degree[l.at(t, s)] : 0.0f);
        o.position.push_back(used ? l.position[l.at(t, s)] : 0);
        float sum = 0.0f;
        for (std::uint32_t c = 0; used && c < l.channels.count; ++c) sum += l.channel_data[c][l.at(t, s)];
        o.scores.push_back(sum);
      }
    });
  }

  Policy policy_;
  shape extent_;
};

/// The first difference of two outcomes; empty if there is none.
inline std::string first_difference(life_outcome const& a, life_outcome const& b, shape const& extent) {
  std::string text;
  testing::each_track(extent, [&](track t) {
    if (!text.empty()) return;
    if (a.length[t.index] != b.length[t.index]) {
      text = message(check_calls::track_name(t), " holds ", b.length[t.index], " entries instead of ",
                     a.length[t.index]);
    }
    auto const differs = [&](std::vector<float> const& x, std::vector<float> const& y, std::size_t slot,
                             std::uint32_t n) {
      for (std::size_t i = slot * n; i < (slot + 1) * n; ++i) {
        if (float_bits(x[i]) != float_bits(y[i])) return true;
      }
      return false;
    };
    for (slot_t s = 0; s < a.length[t.index] && text.empty(); ++s) {
      std::size_t const i = std::size_t{t.index} * extent.capacity + s;
      char const* const what = a.position[i] != b.position[i]                     ? "another entry"
                               : differs(a.degree, b.degree, i, 1)                ? "another degree"
                               : differs(a.keys, b.keys, i, extent.key_dim)       ? "another key"
                               : differs(a.values, b.values, i, extent.value_dim) ? "another value"
                               : differs(a.scores, b.scores, i, 1) ? "other numbers of the score"
                                                                   : nullptr;
      if (what != nullptr) text = message(testing::slot_name(t, s), " has ", what);
    }
  });
  return text;
}

}  // namespace detail

namespace testing {

/// The shape of policy_problem's cache if the author names none and the policy pins few entries.
constexpr shape small_shape{1, 2, 2, 2, 12, 10, 64};

/// small_shape, with a larger capacity for a policy that pins many entries: the least multiple of 32 that
/// leaves room for others. It grows up to 4,096; a policy that pins whole budgets fits no shape.
template <class Policy> shape shape_for(Policy const& policy) {
  shape extent = small_shape;
  while (extent.capacity < 4096 && !detail::policy_life<Policy>(policy, extent).fits()) extent.capacity += 32;
  return extent;
}

/// What is wrong with a policy; empty if nothing is. Builds a small cache of `extent`, lets it live through
/// two compressions, and checks: its configuration; budgets and invariants (watch::after_compress); that rows
/// with NaN or infinity merge with nothing; that nothing depends on what scratch begins with, on the number
/// of lanes, or on the order of tiles; that lanes meet at the same barriers and stay within the scratch that
/// was declared. A policy that passes gives the same bits on every backend, as far as these rows show.
/// `extent` needs a capacity of at least 32. The first compression has half of the capacity as its budget,
/// the second three eighths. Host only. Starts up to 5 threads. Takes a second, or more if threads have to
/// share a core or the policy pins many entries.
template <class Policy> std::string policy_problem(Policy const& policy, shape const& extent) {
  if (extent.capacity < 32) {
    return refusal("policy_problem", "extent.capacity", extent.capacity, "at least 32");
  }
  if (std::string text = configuration_problem(policy); !text.empty()) return text;
  detail::policy_life<Policy> life(policy, extent);
  detail::life_outcome one;
#if KVMELD_EXCEPTIONS
  try {
    one = life.run(host_executor(1, tuning::off));
  } catch (invalid_argument const& refused) {
    return refused.what();
  }
#else
  one = life.run(host_executor(1, tuning::off));
#endif
  if (!one.problem.empty()) return one.problem;
  if (std::string text = life.run(host_executor(1)).problem; !text.empty()) {
    return message("with the host's vector kernels: ", text);
  }
  struct way {
    std::uint32_t lanes, teams;
    tile_order order;
    unsigned char poison;
    char const* says;
  };
  constexpr auto up = tile_order::ascending, down = tile_order::descending;
  for (way const& w :
       {way{1, 1, up, 0xFF, "if scratch does not begin with zeros (a part reads what it did not write): "},
        way{1, 1, up, 0x00, "if scratch begins with zeros (a part reads what it did not write): "},
        way{1, 2, down, 0xFF, "if tracks are computed in another order: "},
        way{2, 1, up, 0xFF, "on 2 lanes: "}, way{5, 1, up, 0xFF, "on 5 lanes: "}}) {
    findings found;
    detail::life_outcome const many = life.run(lane_executor(w.lanes, w.teams, w.order, &found, w.poison));
    if (auto const all = found.all(); !all.empty()) return w.says + all.front();
    if (!many.problem.empty()) return w.says + many.problem;
    if (std::string text = detail::first_difference(one, many, extent); !text.empty()) return w.says + text;
  }
  return {};
}
/// The same with shape_for(policy).
template <class Policy> std::string policy_problem(Policy const& policy) {
  if (std::string text = configuration_problem(policy); !text.empty()) return text;
  return policy_problem(policy, shape_for(policy));
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
