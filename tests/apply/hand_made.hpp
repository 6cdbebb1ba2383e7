// Plans written by hand: an identity plan to edit, dumps of it, the same plan in the reference's words.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <vector>

#include "reference/plan_apply.hpp"
#include "support/random_cache.hpp"

namespace hand_made {

// One channel for each rule, fed by nobody.
struct four_channels {
  static constexpr kvmeld::score_facts facts{kvmeld::score_kind::weights};
  static constexpr kvmeld::channel_list channels() {
    kvmeld::channel_list c;
    c.add({kvmeld::channel_tag::user, kvmeld::channel_rule::sum, 0.0f});
    c.add({kvmeld::channel_tag::user + 1, kvmeld::channel_rule::max, 0.0f});
    c.add({kvmeld::channel_tag::user + 2, kvmeld::channel_rule::pivot, 0.0f});
    c.add({kvmeld::channel_tag::user + 3, kvmeld::channel_rule::weighted, 0.0f});
    return c;
  }
  kvmeld::channel_update update(std::uint32_t c, std::uint32_t, std::uint32_t) const {
    return {static_cast<std::int32_t>(c), 0};
  }
  std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  float importance(kvmeld::score_view const&, std::uint32_t) const { return 0.0f; }
};

// A policy that plans nothing by itself.
inline auto policy() {
  return kvmeld::policy{
      four_channels{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)},
      kvmeld::identify::none{}, kvmeld::merge::drop{}};
}

// A plan's arrays as they could be stored and read back; old_length comes with planning.
struct dump {
  std::vector<kvmeld::fate> fates;
  std::vector<std::uint32_t> target, span;
  std::vector<float> key_weight, value_weight, degree_weight;

  dump(kvmeld::plan_ref const& p, std::uint32_t item, std::uint32_t n)
      : fates(at(p.fates, p, item, n)),
        target(at(p.target, p, item, n)),
        span(at(p.span, p, item, n)),
        key_weight(at(p.key_weight, p, item, n)),
        value_weight(at(p.value_weight, p, item, n)),
        degree_weight(at(p.degree_weight, p, item, n)) {}

  void restore(kvmeld::plan_ref const& p, std::uint32_t item) const {
    for (std::uint32_t s = 0; s < fates.size(); ++s) {
      std::size_t const i = p.at(item, s);
      p.fates[i] = fates[s];
      p.target[i] = target[s];
      p.span[i] = span[s];
      p.key_weight[i] = key_weight[s];
      p.value_weight[i] = value_weight[s];
      p.degree_weight[i] = degree_weight[s];
    }
    renumber(p, item);
  }

  // New slots of kept entries and the new length, which are the plan's to know.
  static void renumber(kvmeld::plan_ref const& p, std::uint32_t item) {
    std::uint32_t kept = 0;
    for (std::uint32_t s = 0; s < p.old_length[item]; ++s) {
      if (p.fates[p.at(item, s)] == kvmeld::fate::keep) p.new_slot[p.at(item, s)] = kept++;
    }
    p.new_length[item] = kept;
  }

  reference::linear_plan in_reference() const {
    reference::linear_plan out;
    for (std::uint32_t s = 0; s < fates.size(); ++s)
      out.fates.push_back(static_cast<reference::fate>(fates[s]));
    out.target.assign(target.begin(), target.end());
    out.span.assign(span.begin(), span.end());
    out.key_weight.assign(key_weight.begin(), key_weight.end());
    out.value_weight.assign(value_weight.begin(), value_weight.end());
    out.degree_weight.assign(degree_weight.begin(), degree_weight.end());
    return out;
  }

private:
  template <class T>
  static std::vector<T> at(T const* array, kvmeld::plan_ref const& p, std::uint32_t item, std::uint32_t n) {
    return {array + p.at(item, 0), array + p.at(item, 0) + n};
  }
};

// Sends entry s to `target` with the given fate and weights.
inline void send(kvmeld::plan_ref const& p, std::uint32_t item, std::uint32_t s, kvmeld::fate how,
                 std::uint32_t target, float key, float value, float degree, std::uint32_t span = 0) {
  std::size_t const i = p.at(item, s);
  p.fates[i] = how;
  p.target[i] = target;
  p.span[i] = span;
  p.key_weight[i] = key;
  p.value_weight[i] = value;
  p.degree_weight[i] = degree;
}

// Fills the plan of one track with random sound fates: owners, spans, drops; rows of `unusable` only stay or
// go.
inline void randomise(support::dice& d, kvmeld::plan_ref const& p, std::uint32_t item, std::uint32_t n,
                      std::uint32_t frozen, std::vector<char> const& unusable, bool shares) {
  using kvmeld::fate;
  std::vector<std::uint32_t> owners, receivers;  // of sets, of spreads
  std::vector<char> used(n, 0);
  std::uint32_t receiving = frozen + d.below(n);  // a run of slots that stay, for spans
  std::uint32_t const run = d.between(0, 6);
  for (std::uint32_t s = receiving; s < std::min(n, receiving + run) && !unusable[s]; ++s) {
    receivers.push_back(s);
    used[s] = 1;
  }
  for (std::uint32_t s = frozen; s < n; ++s) {
    if (!used[s] && !unusable[s] && d.chance(0.25)) {
      owners.push_back(s);
      used[s] = 1;
    }
  }
  auto const weigh = [&](std::uint32_t s, fate how, std::uint32_t target, std::uint32_t span) {
    float w[3];
    for (float& x : w) x = static_cast<float>(d.uniform()) + 0.1f;
    send(p, item, s, how, target, how == fate::spread ? 1 : w[0], w[1], w[2], span);
  };
  for (std::uint32_t s = frozen; s < n; ++s) {
    if (used[s]) {  // owners and receivers weigh themselves
      weigh(s, fate::keep, s, 0);
    } else if (d.chance(0.15)) {
      send(p, item, s, fate::drop, s, 1, 1, 1);
    } else if (!unusable[s] && !owners.empty() && d.chance(0.6)) {
      std::uint32_t const owner = owners[d.below(static_cast<std::uint32_t>(owners.size()))];
      weigh(s, shares && owner % 2 == 0 ? fate::share : fate::merge, owner, 0);  // a set is one or the other
    } else if (!unusable[s] && !receivers.empty() && d.chance(0.6)) {
      std::uint32_t const first = d.below(static_cast<std::uint32_t>(receivers.size()));
      weigh(s, fate::spread, receivers[first],
            d.between(1, static_cast<std::uint32_t>(receivers.size()) - first));
    }
  }
  dump::renumber(p, item);
}

}  // namespace hand_made
