// A cache of shared entries as merging leaves it, ragged and with pending tokens, and what attention over it
// has to be.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ragged_call.hpp"

namespace attention_test {

inline kvmeld::cache_options with_members(std::uint32_t members) {
  kvmeld::cache_options options{};
  options.members = members;
  return options;
}

// Directions and members at random; sequence 2 is empty. Members of a slot are older than it, or not:
// attention takes them as they are.
template <class T, class Policy = decltype(kvmeld::preset::ems::shared())> struct shared_cache {
  support::engine_memory<T> memory;
  decltype(support::make_cache(memory, std::declval<Policy const&>())) cache;

  shared_cache(kvmeld::shape const& s, support::dice& d, std::uint32_t members, std::uint32_t pending,
               std::uint32_t threads = 1, Policy const& policy = kvmeld::preset::ems::shared())
      : memory(s), cache(support::make_cache(memory, policy, with_members(members), threads)) {
    kvmeld::ledger_ref const& l = cache.ledger();
    for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      std::uint32_t const most = s.capacity - pending;
      std::uint32_t const n = sequence == 2 ? 0 : d.between(1, most);
      memory.fill_sequence(d, sequence, 0, s.capacity, support::texture::clusters);
      cache.open(sequence, n);
      support::for_tracks(s, sequence, [&](kvmeld::track t) {
        std::uint32_t const length = n > 1 ? d.between(1, n) : n;
        l.length[t.index] = length;
        std::vector<std::uint32_t> owners(length == 0 ? 0 : d.below(members + 1));
        for (auto& owner : owners) owner = d.chance(0.3) ? length / 2 : d.below(length);
        std::sort(owners.begin(), owners.end());
        l.members.count[t.index] = static_cast<std::uint32_t>(owners.size());
        for (std::uint32_t m = 0; m < owners.size(); ++m) {
          std::size_t const i = l.members.at(t, m);
          l.members.owner[i] = owners[m];
          l.members.norm[i] = static_cast<float>(0.2 + 2 * d.uniform());
          l.members.position[i] = static_cast<int>(d.below(n));
          l.members.own_norm[l.at(t, owners[m])] = static_cast<float>(0.2 + 2 * d.uniform());
          l.degree[l.at(t, owners[m])] += 1.0f;
        }
      });
      std::uint32_t const added = d.below(pending + 1);
      cache.append({sequence}, {added});
    }
  }
};

// What each query of one head sees: outputs, log-sum-exps, and the probability of every token, slots first.
inline reference::attention_result expected_of(kvmeld::ledger_ref const& l, kvmeld::track t,
                                               kvmeld::attention_params const& p, std::uint32_t head,
                                               reference::matrix const& queries,
                                               reference::matrix const& keys,
                                               reference::matrix const& values) {
  reference::attention_options const o = options_for(p, l.extent);
  reference::attention_options plain;  // visibility and rotation are dealt with here
  plain.scale = o.scale;
  plain.softcap = o.softcap;
  plain.has_sink = p.sink != nullptr;
  if (plain.has_sink) plain.sink = static_cast<double>(p.sink[head]);
  std::size_t const n = keys.size(), held = l.members.count[t.index], m = queries.size();
  long const last = long{l.seen[t.sequence]} + l.pending[t.sequence] - 1;
  reference::attention_result result;
  for (std::size_t q = 0; q < m; ++q) {
    long const at = last - static_cast<long>(m - 1 - q);
    reference::matrix seen_keys, seen_values;
    std::vector<std::size_t> tokens;
    for (std::size_t i = 0; i < n + held; ++i) {
      std::size_t const member = i < n ? 0 : l.members.at(t, static_cast<std::uint32_t>(i - n));
      std::size_t const slot = i < n ? i : l.members.owner[member];
      long const position =
          i < n ? l.position[l.at(t, static_cast<std::uint32_t>(i))] : l.members.position[member];
      double const own = static_cast<double>(l.members.own_norm[l.at(t, static_cast<std::uint32_t>(slot))]);
      double const norm = i >= n ? static_cast<double>(l.members.norm[member]) : own > 0 ? own : 1.0;
      if (p.causal && slot + m >= n + q + 1) continue;
      if (o.window > 0 && position >= o.always && at - position >= o.window) continue;
      reference::row key = reference::rotated(keys[slot], reference::rope_position(slot, position, o), o);
      for (double& x : key) x *= norm;
      seen_keys.push_back(key);
      seen_values.push_back(values[slot]);
      tokens.push_back(i);
    }
    auto const one = reference::attend({queries[q]}, seen_keys, seen_values,
                                       std::vector<double>(tokens.size(), 1.0), plain);
    reference::row probability(n + held, 0.0);
    for (std::size_t i = 0; i < tokens.size(); ++i) probability[tokens[i]] = one.probability[0][i];
    result.output.push_back(tokens.empty() ? reference::row(values.empty() ? 0 : values[0].size(), 0.0)
                                           : one.output[0]);
    result.lse.push_back(one.lse[0]);
    result.probability.push_back(probability);
  }
  return result;
}

template <class Ref, class Q>
reference::attention_result expected_for(Ref const& ref, kvmeld::track t, kvmeld::attention_params const& p,
                                         std::uint32_t head, std::uint32_t member, std::uint32_t count,
                                         kvmeld::head_rows<Q> rows) {
  reference::matrix queries, keys, values;
  for (std::uint32_t m = 0; m < count; ++m) {
    queries.push_back({});
    for (std::uint32_t c = 0; c < ref.extent().key_dim; ++c)
      queries.back().push_back(as_double(rows.row(member, head, m)[c]));
  }
  for (std::uint32_t slot = 0; slot < ref.length(t); ++slot) {
    keys.push_back(support::read_row(ref.keys, t, slot));
    values.push_back(support::read_row(ref.values, t, slot));
  }
  return expected_of(ref.ledger, t, p, head, queries, keys, values);
}

// Runs the call and compares, as `compare` does for ordinary entries.
template <class Cache, class Q, class Out>
std::size_t compare_shared(Cache& cache, kvmeld::attention_params const& params, std::uint32_t layer,
                           call<Q, Out>& c, double tolerance, std::uint32_t parts = 1) {
  kvmeld::shape const s = cache.ref().extent();
  std::vector<float> memory(
      kvmeld::attention::split_floats(s, parts, static_cast<std::uint32_t>(c.sequences.size()), c.most));
  kvmeld::attention::attend(cache.executor(), c.batch(layer), c.queries(), cache.ref(), c.outputs(), c.sums(),
                            params, {parts, memory, 64});
  double worst = 0, worst_lse = 0;
  std::size_t touched = 0, blind = 0;
  for (std::uint32_t i = 0; i < c.sequences.size(); ++i) {
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      kvmeld::track const t = kvmeld::make_track(s, layer, c.sequences[i], head / s.queries_per_kv_head);
      auto const expected = expected_for(cache.ref(), t, params, head, i, c.counts[i], c.queries());
      for (std::uint32_t m = 0; m < c.most; ++m) {
        bool const asked = m < c.counts[i];
        Out const* const got = c.outputs().row(i, head, m);
        float const sum = *c.sums().row(i, head, m);
        for (std::uint32_t k = 0; k < s.value_dim; ++k) {
          double const wanted = !asked ? -77.0 : expected.output[m].empty() ? 0.0 : expected.output[m][k];
          worst = std::max(worst, std::fabs(as_double(got[k]) - wanted));
        }
        if (!asked) {
          touched += sum == -77.0f ? 0 : 1;
        } else if (expected.lse[m] == reference::empty_lse) {
          ++blind;
          touched += sum == kvmeld::element_traits<float>::lowest ? 0 : 1;
        } else {
          worst_lse = std::max(worst_lse, std::fabs(static_cast<double>(sum) - expected.lse[m]) /
                                              (1 + std::fabs(expected.lse[m])));
        }
      }
    }
  }
  CHECK(worst < tolerance);
  CHECK(worst_lse < 2e-5);
  CHECK(touched == 0);
  return blind;
}

}  // namespace attention_test
