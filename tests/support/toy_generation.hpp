// A long generation under any policy: tokens one by one, attention that feeds the score, compression when
// due, and what has to hold after every single step.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "brief.hpp"
#include "random_cache.hpp"

namespace support {

/// What a policy does to degrees.
enum class degree_law {
  one,     ///< eviction: every entry stands for itself
  tokens,  ///< merging: degrees sum to the tokens seen, none is lost
  losing,  ///< evicting, then merging: degrees are tokens, members among them, but not all tokens
  mass,    ///< degrees stand for attention: finite, from `min_degree` to `max_degree`
};

struct toy_options {
  kvmeld::trigger when{24, 1};  // down to `limit` at `limit + interval` entries
  std::uint32_t steps = long_life(100000);
  degree_law degrees = degree_law::one;
  double min_degree = 1, max_degree = 1;      // for degree_law::mass, with a rounding of 1e-4
  bool meets_budget = true;                   // false: lengths may stay above the limit, up to the capacity
  kvmeld::shape extent{1, 2, 1, 1, 4, 3, 0};  // capacity 0: the trigger's most
  std::uint64_t seed = 1;
  std::uint32_t members = 0;  // per track, for policies that share entries
};

/// What a generation has shown. `broken` names the first promise that did not hold; empty if all did.
struct toy_report {
  std::string broken;
  std::uint32_t at_step = 0;
  std::size_t compressions = 0, max_members = 0;
  double max_degree = 0, largest_value = 0;
};

namespace detail {

/// One generation in the making.
template <class T, class Policy> class toy_generation {
public:
  toy_generation(Policy const& policy, toy_options const& options)
      : options_(with_capacity(options)),
        dice_(options.seed),
        memory_(options_.extent),
        cache_(make_cache(memory_, policy, with_plan(options.members))),
        queries_(std::size_t{options_.extent.sequences} * options_.extent.query_heads() *
                 options_.extent.key_dim),
        outputs_(std::size_t{options_.extent.sequences} * options_.extent.query_heads() *
                 options_.extent.value_dim),
        lse_(std::size_t{options_.extent.sequences} * options_.extent.query_heads()) {
    for (std::uint32_t q = 0; q < options_.extent.sequences; ++q) {
      cache_.open(q, 0, 0, kvmeld::sequence_id{100 + q});
      slots_.push_back(q);
      ones_.push_back(1);
    }
  }

  toy_report run() {
    for (step_ = 1; step_ <= options_.steps && report_.broken.empty(); ++step_) {
      cache_.append(slots_, ones_);
      write_tokens();
      cache_.commit(slots_, ones_);
      attend();
      compress();
      check();
    }
    return report_;
  }

private:
  static toy_options with_capacity(toy_options o) {
    if (o.extent.capacity == 0) o.extent.capacity = o.when.limit + o.when.interval;
    return o;
  }

  void require(bool holds, char const* promise) {
    if (holds || !report_.broken.empty()) return;
    report_.broken = promise;
    report_.at_step = step_;
  }

  // Keys that resemble the key before, values around 1: sums that drift would show.
  void write_tokens() {
    kvmeld::shape const& s = options_.extent;
    auto const x = memory_.tensors();
    std::vector<float> key(s.key_dim), value(s.value_dim);
    walk_.resize(s.tracks() * std::size_t{s.key_dim});
    for (std::uint32_t q : slots_) {
      for_tracks(s, q, [&](kvmeld::track t) {
        for (std::uint32_t c = 0; c < s.key_dim; ++c) {
          float& w = walk_[t.index * std::size_t{s.key_dim} + c];
          key[c] = w = 0.8f * w + 0.6f * static_cast<float>(2 * dice_.uniform() - 1);
        }
        for (float& v : value) v = static_cast<float>(2 * dice_.uniform());
        std::uint32_t const slot = cache_.ref().length(t) - 1;
        write_row(x.keys, t, slot, key);
        write_row(x.values, t, slot, value);
      });
    }
  }

  void attend() {
    kvmeld::shape const& s = options_.extent;
    std::uint32_t const heads = s.query_heads();
    for (float& x : queries_) x = static_cast<float>(4 * dice_.uniform() - 2);
    auto const queries = kvmeld::rows_by_token<float const>(queries_.data(), 1, heads, s.key_dim);
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      kvmeld::query_batch const batch{layer, slots_, ones_};
      kvmeld::attention::attend(cache_.executor(), batch, queries, cache_.ref(),
                                kvmeld::rows_by_token(outputs_.data(), 1, heads, s.value_dim),
                                kvmeld::rows_by_head(lse_.data(), 1, heads, 1));
      cache_.observe(batch, queries, kvmeld::rows_by_head<float const>(lse_.data(), 1, heads, 1));
      for (float x : outputs_) require(kvmeld::is_finite(x), "attention is finite");
    }
  }

  // Each sequence when it is due: all are as long, so all at once.
  void compress() {
    if (!cache_.due(0, options_.when)) return;
    cache_.compress(slots_, kvmeld::budget::entries(options_.when.limit));
    ++report_.compressions;
    for (std::uint32_t q : slots_) {
      require(!options_.meets_budget || cache_.longest(q) == options_.when.limit, "the budget is met");
      require(!options_.meets_budget || cache_.warnings(q) == 0, "nothing is found");
    }
  }

  void check() {
    auto const ref = cache_.ref();
    for (std::uint32_t q : slots_) {
      require(cache_.tokens(q) == step_, "every token counts");
      for_tracks(options_.extent, q, [&](kvmeld::track t) { check_track(ref, t); });
    }
  }

  template <class Ref> void check_track(Ref const& ref, kvmeld::track t) {
    kvmeld::ledger_ref const& l = ref.ledger;
    std::uint32_t const n = ref.length(t);
    require(n >= 1 && n <= step_ &&
                (!options_.meets_budget || n < options_.when.limit + options_.when.interval),
            "lengths stay below the trigger");
    double sum = 0, least = 1e300, most = 0;
    std::uint32_t bad_rows = 0, disorder = 0, bad_scores = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      std::size_t const e = l.at(t, i);
      double const degree = static_cast<double>(l.degree[e]);
      sum += degree;
      least = std::min(least, degree);
      most = std::max(most, degree);
      disorder += i > 0 && l.position[e] <= l.position[e - 1] ? 1 : 0;
      for (std::uint32_t c = 0; c < l.channels.count; ++c)
        bad_scores += kvmeld::is_finite(l.channel_data[c][e]) && l.channel_data[c][e] >= 0 ? 0 : 1;
      bad_rows += finite(ref.keys, t, i) && finite(ref.values, t, i, &report_.largest_value) ? 0 : 1;
    }
    require(disorder == 0 && l.position[l.at(t, 0)] >= 0, "positions ascend");
    require(l.position[l.at(t, n - 1)] == static_cast<std::int32_t>(step_ - 1),
            "the last token is the last entry");
    require(bad_rows == 0, "rows are finite");
    require(bad_scores == 0, "scores are finite");
    report_.max_degree = std::max(report_.max_degree, most);
    if (l.members.capacity != 0) check_members(l, t);
    switch (options_.degrees) {
    case degree_law::one: require(least == 1 && most == 1, "degrees are 1"); break;
    case degree_law::tokens: require(sum == step_ && least >= 1, "degrees sum to the tokens"); break;
    case degree_law::losing: require(sum <= step_ && least >= 1, "degrees sum to some of the tokens"); break;
    case degree_law::mass:
      require(least > options_.min_degree * (1 - 1e-4) && most < options_.max_degree * (1 + 1e-4) &&
                  kvmeld::is_finite(static_cast<float>(most)),
              "degrees stay in their bounds");
      break;
    }
  }

  // Ordered by owner, each token in one place, each entry's degree itself and its members.
  void check_members(kvmeld::ledger_ref const& l, kvmeld::track t) {
    std::uint32_t const n = l.length[t.index], held = l.members.count[t.index];
    report_.max_members = std::max(report_.max_members, std::size_t{held});
    require(held <= l.members.capacity, "members fit");
    std::vector<float> tokens(n, 1.0f);
    std::vector<std::int32_t> positions(l.position + l.at(t, 0), l.position + l.at(t, 0) + n);
    std::uint32_t bad = 0, disorder = 0;
    for (std::uint32_t m = 0; m < held && m < l.members.capacity; ++m) {
      std::size_t const i = l.members.at(t, m);
      std::uint32_t const owner = l.members.owner[i];
      disorder += owner >= n || (m > 0 && owner < l.members.owner[i - 1]) ? 1 : 0;
      if (owner >= n) continue;
      tokens[owner] += 1.0f;
      positions.push_back(l.members.position[i]);
      bad += kvmeld::is_finite(l.members.norm[i]) && l.members.norm[i] > 0 ? 0 : 1;
      float const own = l.members.own_norm[l.at(t, owner)];
      bad += kvmeld::is_finite(own) && own > 0 ? 0 : 1;
      for (std::uint32_t c = 0; c < l.channels.count; ++c)
        bad += kvmeld::is_finite(l.members.channel_data[c][i]) && l.members.channel_data[c][i] >= 0 ? 0 : 1;
    }
    require(disorder == 0, "members are ordered by entries that are held");
    require(bad == 0, "members are finite");
    for (std::uint32_t s = 0; s < n; ++s) bad += l.degree[l.at(t, s)] == tokens[s] ? 0 : 1;
    require(bad == 0, "degrees count members");
    std::sort(positions.begin(), positions.end());
    require(std::adjacent_find(positions.begin(), positions.end()) == positions.end() &&
                positions.front() >= 0 && positions.back() < static_cast<std::int32_t>(step_),
            "every token is in one place");
  }

  template <class Layout>
  static bool finite(Layout const& layout, kvmeld::track t, std::uint32_t slot, double* largest = nullptr) {
    using traits = kvmeld::element_traits<typename Layout::element_type>;
    auto const s = layout.locate(t, slot);
    bool all = true;
    for (std::uint32_t c = 0; c < layout.channels(); ++c) {
      float const x = traits::to_float(s.base[std::int64_t{c} * s.channel_stride]);
      all = all && kvmeld::is_finite(x);
      if (largest != nullptr) *largest = std::max(*largest, static_cast<double>(x < 0 ? -x : x));
    }
    return all;
  }

  toy_options options_;
  dice dice_;
  engine_memory<T> memory_;
  decltype(make_cache(std::declval<engine_memory<T>&>(), std::declval<Policy const&>())) cache_;
  std::vector<float> queries_, outputs_, lse_, walk_;
  std::vector<std::uint32_t> slots_, ones_;
  std::uint32_t step_ = 0;
  toy_report report_;
};

}  // namespace detail

template <class T = float, class Policy>
toy_report generate(Policy const& policy, toy_options const& options) {
  return detail::toy_generation<T, Policy>(policy, options).run();
}

}  // namespace support
