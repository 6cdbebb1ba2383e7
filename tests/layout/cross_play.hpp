// What happens to a cache, drawn once and played on any two layouts: opened, compressed, grown, compressed
// again.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "any_tensor.hpp"
#include "support/cache_bytes.hpp"
#include "support/compositions.hpp"
#include "support/random_cache.hpp"

namespace cross_test {

// One life of a cache, whatever its layouts are.
struct script {
  std::uint64_t seed;
  shape extent;
  kvmeld::tuning tuning;
  kvmeld::plan_scope scope;
  kvmeld::shortfall fallback;
  std::vector<std::uint32_t> lengths, frozen, ids;  // [sequences]
  std::vector<std::uint32_t> compressed;            // which sequences
  std::vector<std::uint32_t> budgets;               // [tracks], of both compressions
  std::vector<std::uint32_t> drafts, accepted;      // [sequences], between them
  bool in_two, again;                               // plan and apply; a second compression
};

// What a compression left.
struct outcome {
  support::byte_list ledger, plan;
  std::vector<std::uint32_t> lengths;  // [tracks]
};
// Looks at the outcome of the first (0) or second compression, writes the drafts' rows behind the first;
// false: enough.
using visitor = std::function<bool(int stage, outcome const&)>;

using layouts = kvmeld::kv<support::erased_layout, support::erased_layout>;

struct preset {
  std::string name;
  bool values_as_keys, rounds_anew;  // the same weights for both; merged keys are compared again
  bool turns_keys;                   // by pairs of channels: keys have an even number of them
  std::function<void(script const&, layouts const&, visitor const&)> play;
};

// Every number of a plan that means something.
template <class Cache> support::byte_list plan_bytes(Cache const& cache) {
  std::vector<std::uint32_t> out;
  kvmeld::plan_ref const& p = cache.current_plan();
  std::uint32_t const tracks = cache.planned_work().tracks(cache.options().extent);
  for (std::uint32_t item = 0; item < tracks; ++item) {
    for (slot_t s = 0; s < p.old_length[item]; ++s) {
      std::size_t const i = p.at(item, s);
      out.push_back(static_cast<std::uint32_t>(p.fates[i]));
      if (p.fates[i] == kvmeld::fate::drop) continue;
      for (float w : {p.key_weight[i], p.value_weight[i], p.degree_weight[i]})
        out.push_back(kvmeld::float_bits(w));
      out.push_back(p.fates[i] == kvmeld::fate::keep ? p.new_slot[i] : p.target[i]);
    }
    out.push_back(p.new_length[item]);
  }
  return support::bytes_of(out);
}

template <class Cache> void score(Cache& cache, dice& d, std::uint32_t sequences) {
  for (std::uint32_t q = 0; q < sequences; ++q) {
    support::for_tracks(cache.options().extent, q, [&](track t) {
      kvmeld::ledger_ref const& l = cache.ledger();
      support::set_table(l, t, d);
      for (std::uint32_t c = 0; c < l.channels.count; ++c) {
        support::set_scores(l, t, support::random_scores(d, l.length[t.index]), c);
        if (l.members.capacity == 0) continue;
        auto const scores = support::random_scores(d, l.members.count[t.index]);
        for (std::uint32_t m = 0; m < scores.size(); ++m)
          l.members.channel_data[c][l.members.at(t, m)] = scores[m];
      }
    });
  }
}

template <class Policy>
void play(Policy const& policy, script const& s, layouts const& x, visitor const& look) {
  kvmeld::cache_options options{};
  options.extent = s.extent;
  options.scope = s.scope;
  options.whole_plan = s.in_two;
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? 60 : 0;
  kvmeld::merged_cache cache{support::erasing_executor(1, s.tuning), policy, x, options};
  dice d(s.seed);
  auto const compress = [&](int stage) {
    score(cache, d, s.extent.sequences);
    auto const budget = kvmeld::budget::per_track(s.budgets.data());
    outcome out;
    if (s.in_two) {
      cache.plan(s.compressed, budget, s.fallback);
      out.plan = plan_bytes(cache);
      cache.apply();
    } else {
      cache.compress(s.compressed, budget, s.fallback);
    }
    out.ledger = support::ledger_bytes(cache);
    out.lengths.assign(cache.ledger().length, cache.ledger().length + s.extent.tracks());
    return look(stage, out);
  };
  for (std::uint32_t q = 0; q < s.extent.sequences; ++q)
    cache.open(q, s.lengths[q], s.frozen[q], kvmeld::sequence_id{s.ids[q]});
  if (!compress(0) || !s.again) return;
  for (std::uint32_t q = 0; q < s.extent.sequences; ++q) {
    cache.append({q}, {s.drafts[q]});
    cache.commit({q}, {s.accepted[q]});
  }
  compress(1);
}

template <class Identify> bool turns_keys(Identify const&) { return false; }
inline bool turns_keys(kvmeld::identify::centroids const& identify) {
  return identify.rope.pairing != kvmeld::rope_pairing::none;
}

// Every preset, those of EMS and D2O too.
inline std::vector<preset> every_preset() {
  std::vector<preset> out;
  auto const add = [&](char const* name, auto const& policy) {
    auto const merge = kvmeld::facts_of<kvmeld::merge_facts>(policy.merge);
    bool const repeats = kvmeld::facts_of<kvmeld::identify_facts>(policy.identify).repeats;
    support::few_types([&](char const*, auto const& played) {
      out.push_back(
          {name, !merge.spreads && !merge.shares, repeats, turns_keys(policy.identify),
           [played](script const& s, layouts const& x, visitor const& look) { play(played, s, x, look); }});
    })(name, policy);
  };
  support::each_preset(add);
  support::each_ems_preset(add);
  add("d2o", kvmeld::preset::d2o::defaults());
  return out;
}

}  // namespace cross_test
