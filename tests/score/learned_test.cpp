// Learned scores: against plain loops, what stays with an entry, and which weights are refused.
#include <doctest/doctest.h>

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/test_layouts.hpp"
#include "support/track_view.hpp"

namespace learned_score_cases {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::budget;
using kvmeld::quantity;
using score_test::scores_of;
using score_test::tuned;
using support::dice;

namespace {

std::vector<float> random_weights(dice& d, kvmeld::shape const& s) {
  std::vector<float> out(std::size_t{s.layers} * s.kv_heads * kvmeld::learned_weights::floats(s.key_dim));
  for (float& x : out) x = static_cast<float>(d.normal());
  return out;
}

kvmeld::learned_weights of(std::vector<float> const& weights, kvmeld::shape const& s) {
  return {weights.data(), s.layers, s.kv_heads, s.key_dim};
}

auto evicting(kvmeld::learned_weights const& weights, kvmeld::rope_params const& rope = {}) {
  return kvmeld::preset::learned::with_weights(weights, rope, quantity::entries(0), quantity::entries(0));
}

// The score of an entry, from the formula of score::learned.
double wanted(reference::row const& stored, long position, float const* w,
              reference::attention_options const& o) {
  reference::row const key = reference::rotated(stored, -position, o);
  double sum = 0;
  for (std::size_t c = 0; c < key.size(); ++c) {
    sum += static_cast<double>(w[c]) * key[c] + static_cast<double>(w[key.size() + c]) * key[c] * key[c];
  }
  return sum + static_cast<double>(w[2 * key.size()]) * std::log(1.0 + static_cast<double>(position)) +
         static_cast<double>(w[2 * key.size() + 1]);
}

template <class T> void check_scores(dice& d) {
  kvmeld::shape const s{d.between(1, 3),  1, d.between(1, 3), 1, 2 * d.between(1, 20), d.between(1, 20),
                        d.between(2, 120)};
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : "LSTHC");
  std::vector<float> const weights = random_weights(d, s);
  kvmeld::rope_params rope;
  reference::attention_options o;
  if (d.chance(0.7)) {
    rope.pairing = d.chance(0.5) ? kvmeld::rope_pairing::half_split : kvmeld::rope_pairing::interleaved;
    rope.rotary_dim = 2 * d.between(1, s.key_dim / 2);
    rope.base = 50000;
    o.rope = rope.pairing == kvmeld::rope_pairing::half_split ? reference::rotation::half_split
                                                              : reference::rotation::interleaved;
    o.rotary = rope.rotary_dim;
    o.rope_base = 50000;
  }
  std::uint32_t const n = d.between(1, s.capacity);
  memory.fill_sequence(d, 0, 0, n, support::texture::walk);
  for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), tuned()}) {
    auto cache = support::make_cache(memory, evicting(of(weights, s), rope));
    cache.open(0, n);
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      reference::track_state const track = support::read_track(cache.ref(), t);
      std::vector<float> const got = scores_of(cache.policy().score, cache.ref(), t, kernels);
      std::size_t const at =
          (std::size_t{t.layer} * s.kv_heads + t.kv_head) * kvmeld::learned_weights::floats(s.key_dim);
      for (std::uint32_t i = 0; i < n; ++i) {
        double const expected = wanted(track.keys[i], track.position[i], weights.data() + at, o);
        CHECK(std::abs(static_cast<double>(got[i]) - expected) <= 2e-3 * (1.0 + std::abs(expected)));
        CHECK(cache.ledger().channel_data[0][cache.ledger().at(t, i)] == got[i]);  // it stays with the entry
      }
      CHECK(support::same_bits(scores_of(cache.policy().score, cache.ref(), t, kernels), got));
    });
  }
}

constexpr kvmeld::shape extent{2, 3, 2, 2, 8, 6, 60};

}  // namespace

TEST_CASE("scores are those of the formula, for any rotation, layout and element") {
  dice d(3001);
  for (int i = 0; i < 20; ++i) {
    check_scores<float>(d);
    check_scores<kvmeld::float16>(d);
    check_scores<kvmeld::bfloat16>(d);
  }
}

TEST_CASE(
    "a score is computed once: rows that change later do not change it, and sets have the best of their "
    "members") {
  dice d(3002);
  std::vector<float> const weights = random_weights(d, extent);
  support::engine_memory<float> memory(extent);
  memory.fill_sequence(d, 0, 0, 50, support::texture::clusters);
  auto const policy =
      kvmeld::preset::with_centroids(evicting(of(weights, extent)), {}, quantity::of_budget(0.5),
                                     quantity::entries(0), quantity::entries(0));
  auto cache = support::make_cache(memory, policy);
  cache.open(0, 50);
  kvmeld::track const t{0, 0, 0, 0};
  std::vector<float> const before = scores_of(policy.score, cache.ref(), t);
  cache.compress({0}, budget::entries(20));
  kvmeld::ledger_ref const& l = cache.ledger();
  std::vector<float> held;
  for (std::uint32_t s = 0; s < 20; ++s) held.push_back(l.channel_data[0][l.at(t, s)]);
  std::vector<float> sorted = before;
  std::sort(sorted.rbegin(), sorted.rend());
  for (std::uint32_t i = 0; i < 10; ++i) CHECK(std::count(held.begin(), held.end(), sorted[i]) == 1);
  CHECK(*std::max_element(held.begin(), held.end()) == sorted[0]);
  for (float x : held) CHECK(std::count(before.begin(), before.end(), x) >= 1);
  // The rows of centroids are means, and are not asked again.
  CHECK(support::same_bits(scores_of(policy.score, cache.ref(), t), held));
  cache.append({0}, {1});
  cache.commit({0}, {1});
  memory.fill_sequence(d, 0, 20, 21, support::texture::noise);
  std::vector<float> const more = scores_of(policy.score, cache.ref(), t);
  CHECK(std::equal(held.begin(), held.end(), more.begin()));
  CHECK(more[20] != kvmeld::score::learned::unknown);
}

TEST_CASE("rows with NaN rank lowest, and are asked again") {
  dice d(3003);
  std::vector<float> const weights = random_weights(d, extent);
  support::engine_memory<float> memory(extent);
  memory.fill_sequence(d, 0, 0, 30, support::texture::walk);
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 1);
  support::write_row(memory.tensors().keys, t, 7, {std::numeric_limits<float>::quiet_NaN()});
  auto cache = support::make_cache(memory, evicting(of(weights, extent)));
  cache.open(0, 30);
  cache.compress({0}, budget::entries(29));
  for (kvmeld::slot_t s = 0; s < 29; ++s) CHECK(cache.ledger().position[cache.ledger().at(t, s)] != 7);
}

TEST_CASE("a saved sequence tells of its weights") {
  dice d(3004);
  std::vector<float> weights = random_weights(d, extent);
  support::engine_memory<float> memory(extent);
  memory.fill_sequence(d, 0, 0, 30, support::texture::walk);
  auto cache = support::make_cache(memory, evicting(of(weights, extent)));
  cache.open(0, 30);
  cache.compress({0}, budget::entries(20));
  support::byte_list const saved = cache.save(0);
  cache.fork(0, 2, 0, kvmeld::sequence_id{1});
  CHECK(cache.save(2).size() == saved.size());
  std::vector<float> others = weights;
  others[3] += 1.0f;
  auto other = support::make_cache(memory, evicting(of(others, extent)));
  CHECK(refusal_of([&] { other.resume(0, saved); }).find("digest of weights") != std::string::npos);
  auto same = support::make_cache(memory, evicting(of(weights, extent)));
  same.resume(0, saved);
  CHECK(same.save(0) == saved);
}

TEST_CASE("weights of another model, and none, are refused") {
  dice d(3005);
  std::vector<float> const weights(10000, 0.5f);
  support::engine_memory<float> memory(extent);
  auto const refuses = [](auto call, std::string const& part) {
    check_text(refusal_of(call), {part.c_str()});
  };
  refuses(
      [&] { support::make_cache(memory, evicting({})); },
      "score::learned.weights is null; it must be what was learned of the model (kvmeld.learn, set_learned)");
  auto const refused = [&](std::uint32_t layers, std::uint32_t heads, std::uint32_t dim,
                           std::string const& text) {
    refuses([&] { support::make_cache(memory, evicting({weights.data(), layers, heads, dim})); }, text);
  };
  refused(3, 2, 8,
          "score::learned.weights.layers is 3; it must be 2, as the cache has: they are of another model");
  refused(2, 4, 8, "score::learned.weights.kv_heads is 4; it must be 2, as the cache has");
  refused(2, 2, 6, "score::learned.weights.key_dim is 6; it must be 8, as the cache has");
  kvmeld::rope_params slots;
  slots.pairing = kvmeld::rope_pairing::half_split;
  slots.positions = kvmeld::rope_positions::slot;
  refuses([&] { support::make_cache(memory, evicting(of(weights, extent), slots)); },
          "score::learned.rope.positions is rope_positions::slot");
  kvmeld::compose::composed policy;
  kvmeld::rope_params const none;
  kvmeld::compose::read_policy("learned", policy, none);  // the text says no weights; the cache asks for them
  CHECK(kvmeld::compose::needs_learned(policy));
  refuses([&] { support::make_cache(memory, policy); }, "score::learned.weights is null");
  kvmeld::compose::read_policy("learned_centroids heavy=50%", policy, none);
  CHECK(policy.score.name() == "learned");
  CHECK(policy.identify.name() == "centroids");
  refuses([&] { kvmeld::compose::read_policy("learned", policy); },
          "because the score learned turns them back");
  refuses([&] { kvmeld::compose::read_policy("kvzip_centroids", policy); },
          "policy: rope is not given; it must be half_split, interleaved or none, as the model rotates keys, "
          "because the identifier centroids turns them back");
  CHECK(kvmeld::need_of(policy).when == kvmeld::observation::none);
}

}  // namespace learned_score_cases
