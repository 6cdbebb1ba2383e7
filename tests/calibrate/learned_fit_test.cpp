// Weights of learned scores: against the normal equations in long double, and those that scores were made
// from.
#include <doctest/doctest.h>

#include <kvmeld/calibrate/learned_fit.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace learned_fit_cases {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::calibrate::learned_fit;
using support::dice;

namespace {

using examples = std::vector<std::pair<std::vector<long double>, long double>>;

// The ridge regression of score::learned's features, by Gauss' elimination.
std::vector<long double> solved(examples const& all, long double ridge) {
  std::size_t const n = all[0].first.size();
  auto const count = static_cast<long double>(all.size());
  std::vector<std::vector<long double>> a(n, std::vector<long double>(n + 1, 0));
  for (std::size_t i = 0; i < n; ++i) {
    long double mean = 0, squares = 0;
    for (auto const& [x, y] : all) {
      for (std::size_t j = 0; j < n; ++j) a[i][j] += x[i] * x[j];
      a[i][n] += x[i] * y;
      mean += x[i] / count;
      squares += x[i] * x[i] / count;
    }
    if (i + 1 < n) a[i][i] += ridge * count * (squares - mean * mean);
  }
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t largest = k;
    for (std::size_t i = k; i < n; ++i) largest = std::abs(a[i][k]) > std::abs(a[largest][k]) ? i : largest;
    std::swap(a[k], a[largest]);
    for (std::size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      long double const times = a[i][k] / a[k][k];
      for (std::size_t j = k; j <= n; ++j) a[i][j] -= times * a[k][j];
    }
  }
  std::vector<long double> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(a[i][n] / a[i][i]);
  return out;
}

long double predicted(std::vector<long double> const& w, std::vector<long double> const& x) {
  long double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) sum += w[i] * x[i];
  return sum;
}

constexpr kvmeld::shape extent{2, 2, 2, 1, 6, 4, 300};

kvmeld::rope_params turning() {
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  rope.rotary_dim = 4;
  rope.base = 3000;
  return rope;
}

auto cache_over(support::engine_memory<float>& memory) {
  return support::make_cache(memory, kvmeld::preset::kvzip::for_budget());
}

// One passage of `n` tokens in sequence 1: its scores are e^(weights of its features + noise).
template <class Cache>
void read(dice& d, Cache& cache, support::engine_memory<float>& memory, std::uint32_t n,
          std::vector<float> const& weights, double noise, std::vector<examples>& to) {
  memory.fill_sequence(d, 1, 0, n, support::texture::noise);
  cache.open(1, n);
  reference::attention_options turned;
  turned.rope = reference::rotation::half_split;
  turned.rotary = 4;
  turned.rope_base = 3000;
  std::size_t const floats = kvmeld::learned_weights::floats(extent.key_dim);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    std::vector<float> rows(extent.kv_heads * extent.capacity, 0.0f);
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(extent, layer, 1, head);
      reference::track_state const track = support::read_track(cache.ref(), t);
      std::size_t const at = std::size_t{layer} * extent.kv_heads + head;
      for (std::uint32_t i = 0; i < n; ++i) {
        reference::row const k = reference::rotated(track.keys[i], -static_cast<long>(i), turned);
        std::vector<long double> x(k.begin(), k.end());
        for (double const c : k) x.push_back(static_cast<long double>(c * c));
        x.push_back(std::log(1.0L + i));
        x.push_back(1);
        long double y = noise * d.normal();
        for (std::size_t c = 0; c < floats; ++c)
          y += static_cast<long double>(weights[at * floats + c]) * x[c];
        float const score = static_cast<float>(std::exp(y));
        rows[head * extent.capacity + i] = score;
        if (i >= 4) to[at].push_back({x, std::log(1e-4L + static_cast<long double>(score))});
      }
    }
    kvmeld::attention_params all;
    all.causal = false;
    cache.observe_rows({layer, 1, 1}, kvmeld::rows_by_head(rows.data(), 1, extent.kv_heads, extent.capacity),
                       all);
  }
}

std::vector<float> planted(dice& d) {
  std::size_t const floats = kvmeld::learned_weights::floats(extent.key_dim);
  std::vector<float> out(extent.layers * extent.kv_heads * floats);
  for (float& w : out) w = static_cast<float>(0.2 * d.normal());
  for (std::size_t i = floats - 1; i < out.size(); i += floats) out[i] = -3.0f;
  return out;
}

}  // namespace

TEST_CASE("weights are those of the normal equations, and the ridge the best for what is held out") {
  dice d(7001);
  for (double const noise : {0.05, 1.0, 4.0}) {
    std::vector<float> const weights = planted(d);
    support::engine_memory<float> memory(extent, "LSTHC");
    auto cache = cache_over(memory);
    learned_fit fit(extent, turning());
    std::vector<examples> learned(4), held(4);
    for (std::uint32_t passage = 0; passage < 5; ++passage) {
      bool const is_held = passage == 2;
      read(d, cache, memory, d.between(30, 90), weights, noise, is_held ? held : learned);
      CHECK(fit.add(cache, 1, memory.tensors().keys, is_held));
      cache.close(1);
    }
    auto const got = fit.fit();
    double best = 0, chosen = 0;
    std::vector<double> r2;
    for (double const ridge : learned_fit::ridges) {
      double sum = 0;
      std::vector<double> of_ridge;
      for (std::size_t t = 0; t < 4; ++t) {
        auto const w = solved(learned[t], ridge);
        long double missed = 0, mean = 0, spread = 0;
        for (auto const& [x, y] : held[t]) {
          missed += (y - predicted(w, x)) * (y - predicted(w, x));
          mean += y / static_cast<long double>(held[t].size());
        }
        for (auto const& [x, y] : held[t]) spread += (y - mean) * (y - mean);
        sum += static_cast<double>(missed);
        of_ridge.push_back(static_cast<double>(1 - missed / spread));
      }
      if (chosen != 0 && sum >= best) continue;
      best = sum, chosen = ridge, r2 = of_ridge;
    }
    CHECK(got.ridge == chosen);
    CHECK(got.entries == learned[0].size() + held[0].size());
    REQUIRE(got.weights.size() == weights.size());
    for (std::size_t t = 0; t < 4; ++t) {
      CHECK(std::abs(got.r2[t] - r2[t]) < 1e-3);
      learned[t].insert(learned[t].end(), held[t].begin(), held[t].end());
      auto const all = solved(learned[t], chosen);
      for (std::size_t c = 0; c < all.size(); ++c) {
        float const w = got.weights[t * all.size() + c];
        CHECK(std::abs(static_cast<double>(w) - static_cast<double>(all[c])) < 1e-4);
        // What scores were made from comes back, up to `least` and the noise.
        if (noise == 0.05) CHECK(std::abs(w - weights[t * all.size() + c]) < 0.1f);
      }
    }
    if (noise == 0.05) CHECK(*std::min_element(got.r2.begin(), got.r2.end()) > 0.9);
  }
}

TEST_CASE("what was learned orders entries as the second reading does") {
  dice d(7002);
  std::vector<float> const weights = planted(d);
  support::engine_memory<float> memory(extent, "LSTHC");
  auto cache = cache_over(memory);
  learned_fit fit(extent, turning());
  std::vector<examples> unused(4);
  for (int passage = 0; passage < 4; ++passage) {
    read(d, cache, memory, 250, weights, 0.0, unused);
    fit.add(cache, 1, memory.tensors().keys, passage == 3);
    if (passage < 3) cache.close(1);
  }
  auto const learned = fit.fit();
  kvmeld::learned_weights const found{learned.weights.data(), extent.layers, extent.kv_heads, extent.key_dim};
  support::engine_memory<float> other = memory;
  auto from_keys = support::make_cache(
      other, kvmeld::preset::learned::with_weights(found, turning(), kvmeld::quantity::entries(0)));
  from_keys.open(1, 250);
  cache.compress({1}, kvmeld::budget::ratio(0.3));
  from_keys.compress({1}, kvmeld::budget::ratio(0.3));
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    auto const a = support::read_track(cache.ref(), t).position,
               b = support::read_track(from_keys.ref(), t).position;
    REQUIRE(a.size() == b.size());
    std::size_t same = 0;
    for (auto const p : a) same += static_cast<std::size_t>(std::count(b.begin(), b.end(), p));
    CHECK(same >= 0.9 * static_cast<double>(a.size()));
  });
}

TEST_CASE("what cannot be learned from is refused") {
  dice d(7003);
  std::vector<float> const weights = planted(d);
  support::engine_memory<float> memory(extent, "LSTHC");
  auto cache = cache_over(memory);
  auto const keys = memory.tensors().keys;
  std::vector<examples> unused(4);
  learned_fit fit(extent, turning());
  check_text(refusal_of([&] { fit.fit(); }),
             {"fit: number of entries that are learned from is 0; it must be above 0"});
  check_text(refusal_of([&] { fit.add(cache, 1, keys, false); }),
             {"add: sequence is 1; it must be one that is open"});
  check_text(refusal_of([&] { fit.add(cache, 2, keys, false); }),
             {"add: sequence is 2; it must be one that is open"});
  cache.open(0, 20);
  check_text(refusal_of([&] { fit.add(cache, 0, keys, false); }),
             {"add: attention to layer 0, head 0 is 0; it must be above 0, as after a second reading"});
  read(d, cache, memory, 40, weights, 0.0, unused);
  CHECK(fit.add(cache, 1, keys, false));
  check_text(refusal_of([&] { fit.fit(); }),
             {"fit: number of entries that are held out is 0; it must be above 0"});
  for (kvmeld::shape const& other :
       {kvmeld::shape{3, 2, 2, 1, 6, 4, 300}, kvmeld::shape{2, 2, 1, 1, 6, 4, 300},
        kvmeld::shape{2, 2, 2, 1, 8, 4, 300}}) {
    learned_fit of_other(other, {});
    check_text(refusal_of([&] { of_other.add(cache, 1, keys, false); }),
               {"add: cache's ", ", as the fit has"});
  }
  kvmeld::rope_params none = turning();
  none.rotary_dim = 8;
  check_text(refusal_of([&] { learned_fit const refused(extent, none); }),
             {"learned_fit: rope.rotary_dim is 8"});
  auto const few = kvmeld::quantity::entries(2);
  auto merging = support::make_cache(
      memory, kvmeld::policy{kvmeld::score::max_attention{}, kvmeld::select::top{few, few, few},
                             kvmeld::identify::chunked_bipartite<>{}, kvmeld::merge::degree_weighted{}});
  std::vector<float> const one(extent.kv_heads * extent.capacity, 0.5f);
  merging.open(1, 40);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
    merging.observe_rows({layer, 1, 1}, kvmeld::rows_by_head(one.data(), 1, extent.kv_heads, extent.capacity),
                         {});
  merging.compress({1}, kvmeld::budget::entries(20));
  check_text(refusal_of([&] { fit.add(merging, 1, keys, false); }),
             {"add: degree of slot ", "it must be 1: entries must be tokens as they were read"});
  auto other = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  other.open(1, 40);
  check_text(refusal_of([&] { fit.add(other, 1, keys, false); }),
             {"add: cache's score is another; it must be score::max_attention, which KVzip has"});
  fit.add(cache, 1, keys, true);
  CHECK(fit.fit().weights.size() == weights.size());
  std::vector<float> const spoiled(extent.key_dim, std::numeric_limits<float>::quiet_NaN());
  support::write_row(memory.tensors().keys, kvmeld::make_track(extent, 1, 1, 0), 7, spoiled);
  fit.add(cache, 1, keys, true);
  check_text(
      refusal_of([&] { fit.fit(); }),
      {"fit: weight of layer 1, head 0 is nan; it must be finite: keys that are no numbers were added"});
}

}  // namespace learned_fit_cases
