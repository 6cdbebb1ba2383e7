// SPDX-License-Identifier: Apache-2.0
// The weights of score::learned, fitted on the host where an engine runs.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/learned.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {
namespace detail {

/// What a ridge regression needs of the examples of one track, in double: sums of products of its features,
/// and with what is to be predicted. The last feature is 1. Nothing grows with the number of examples.
class regression_sums {
public:
  explicit regression_sums(std::size_t features)
      : gram_(features * (features + 1) / 2, 0.0), product_(features, 0.0) {}

  /// Adds four examples: their features x [4][features], and y [4], what is to be predicted. Zeros add
  /// nothing.
  void add(double const* x, double const* y) {
    std::size_t const n = product_.size();
    double const *const x0 = x, *const x1 = x0 + n, *const x2 = x1 + n, *const x3 = x2 + n;
    for (std::size_t i = 0; i < n; ++i) {
      double const a0 = x0[i], a1 = x1[i], a2 = x2[i], a3 = x3[i];
      double* const to = gram_.data() + row(i);
      for (std::size_t j = 0; j <= i; ++j) to[j] += (a0 * x0[j] + a1 * x1[j]) + (a2 * x2[j] + a3 * x3[j]);
      product_[i] += (a0 * y[0] + a1 * y[1]) + (a2 * y[2] + a3 * y[3]);
    }
    for (std::size_t r = 0; r < 4; ++r) square_ += y[r] * y[r];
  }

  void add(regression_sums const& other) {
    for (std::size_t i = 0; i < gram_.size(); ++i) gram_[i] += other.gram_[i];
    for (std::size_t i = 0; i < product_.size(); ++i) product_[i] += other.product_[i];
    square_ += other.square_;
  }

  double examples() const { return gram_.back(); }

  /// The weights w [features] that minimise the sum of the squared errors plus, for each feature but the last
  /// one, `ridge` * examples * variance of the feature * w^2. By a Cholesky factor.
  std::vector<double> fit(double ridge) const {
    std::size_t const n = product_.size();
    std::vector<double> l = gram_, w = product_;
    double const* const sums = gram_.data() + row(n - 1);  // of every feature
    for (std::size_t i = 0; i + 1 < n; ++i) {
      double const spread = gram_[row(i) + i] - sums[i] * sums[i] / examples();
      l[row(i) + i] += ridge * std::max(spread, 1e-12 * examples());
    }
    for (std::size_t i = 0; i < n; ++i) {
      double* const li = l.data() + row(i);
      for (std::size_t j = 0; j <= i; ++j) {
        double const* const lj = l.data() + row(j);
        double rest = li[j];
        for (std::size_t k = 0; k < j; ++k) rest -= li[k] * lj[k];
        li[j] = j < i ? rest / lj[j] : std::sqrt(std::max(rest, 1e-12));
      }
      for (std::size_t j = 0; j < i; ++j) w[i] -= li[j] * w[j];
      w[i] /= li[i];
    }
    for (std::size_t i = n; i-- > 0;) {
      w[i] /= l[row(i) + i];
      for (std::size_t j = 0; j < i; ++j) w[j] -= l[row(i) + j] * w[i];
    }
    return w;
  }

  /// The sum of the squared errors of weights.
  double errors(std::vector<double> const& w) const {
    double quadratic = 0.0, linear = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double of_row = 0.0;
      for (std::size_t j = 0; j < i; ++j) of_row += gram_[row(i) + j] * w[j];
      quadratic += w[i] * (2.0 * of_row + gram_[row(i) + i] * w[i]);
      linear += w[i] * product_[i];
    }
    return square_ - 2.0 * linear + quadratic;
  }

  /// The sum of the squared distances of what is to be predicted from its mean.
  double spread() const { return square_ - product_.back() * product_.back() / examples(); }

private:
  static std::size_t row(std::size_t i) { return i * (i + 1) / 2; }  ///< of the lower triangle

  std::vector<double> gram_, product_;
  double square_ = 0.0;
};

}  // namespace detail

/// What learned_fit has found.
struct learned_result {
  std::vector<float>
      weights;  ///< [layers][kv_heads][learned_weights::floats(key_dim)], for learned_weights::data
  /// [layers][kv_heads] share of the variance of the logarithm that was predicted for entries that were held
  /// out: 1 is all of it.
  std::vector<double> r2;
  double ridge = 0.0;         ///< the one that was chosen
  std::uint64_t entries = 0;  ///< of each track that were learned from in the end
};

/// Fits the weights of score::learned to the scores of KVzip's second reading. A caller reads passages of
/// text twice, as for preset::kvzip, into a cache with score::max_attention, and adds each passage:
///
///     learned_fit fit(model_shape, rope);
///     for (passage : passages) {
///       cache.open(0, tokens);                  // the keys lie in the cache's tensors
///       observe the second reading              // docs/observing.md; its own entries are truncated
///       fit.add(cache, 0, keys, ++number % 5 == 0);
///       cache.close(0);
///     }
///     learned_result const learned = fit.fit();
///
/// It is what kvmeld.learn does in Python: a ridge regression, in double, predicts the logarithm of
/// `least` + score from the features of score::learned, for each KV head of each layer. Memory: two triangles
/// of (2 d + 2)^2 / 2 doubles for each track, for d key channels (12 MB for 90 tracks of 64 channels),
/// whatever is added. One thread at a time.
class learned_fit {
public:
  /// Added to scores before their logarithm: smaller ones differ by chance.
  static constexpr double least = 1e-4;
  /// First tokens that are not learned from: models look at these whatever they say.
  static constexpr position_t first = 4;
  /// Strengths of the ridge that `fit` chooses from.
  static constexpr double ridges[] = {1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1};

  /// For a model of extent.layers, extent.kv_heads and extent.key_dim, whose keys lie rotated as `rope` says.
  /// Refuses a rotation that is not valid; then `add` refuses all.
  learned_fit(shape const& extent, rope_params const& rope)
      : layers_(extent.layers), kv_heads_(extent.kv_heads), key_dim_(extent.key_dim), rope_(rope) {
    problem_ = kvmeld::detail::rope_problem("learned_fit", rope, key_dim_, true);
    if (!raise(problem_)) return;
    learned_.assign(tracks(), detail::regression_sums(learned_weights::floats(key_dim_)));
    held_out_ = learned_;
  }

  /// Adds the entries of an open sequence of a cache with score::max_attention, to which a second reading was
  /// shown, and which holds the first reading alone: nothing was merged or evicted. The host can read its
  /// ledger and its keys, whose layout is `keys`. held_out: these passages choose the ridge, and are learned
  /// from afterwards; every fifth or so should be. Costs 2 (d + 1)^2 multiply-adds for each entry. False
  /// where it refuses and exceptions are off.
  template <class Cache, class Keys>
  bool add(Cache const& cache, std::uint32_t sequence, Keys const& keys, bool held_out) {
    ledger_ref const& l = cache.ledger();
    std::uint32_t const channel = l.channels.find(channel_tag::max_attention);
    std::string problem = problem_;
    auto const expect = [&](char const* what, std::uint32_t is, std::uint32_t wants) {
      if (problem.empty() && is != wants) problem = refusal("add", what, is, wants, ", as the fit has");
    };
    expect("cache's number of layers", l.extent.layers, layers_);
    expect("cache's number of KV heads", l.extent.kv_heads, kv_heads_);
    expect("cache's key_dim", l.extent.key_dim, key_dim_);
    if (problem.empty() && channel == l.channels.count) {
      problem = refusal("add", "cache's score", "another", "score::max_attention, which KVzip has");
    } else if (problem.empty() && !(sequence < l.extent.sequences && cache.is_open(sequence))) {
      problem = refusal("add", "sequence", sequence, "one that is open");
    } else if (problem.empty()) {
      problem = sequence_problem(l, channel, sequence);
    }
    if (!raise(problem)) return false;
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      for (std::uint32_t head = 0; head < kv_heads_; ++head) {
        add_track(l, l.channel_data[channel], make_track(l.extent, layer, sequence, head), keys,
                  (held_out ? held_out_ : learned_)[std::size_t{layer} * kv_heads_ + head]);
      }
    }
    return true;
  }

  /// The weights, fitted to all that was added, with the ridge whose mean squared error on what was held out
  /// is the least, over all tracks. Refuses if nothing was learned from or nothing held out, and if a weight
  /// is not finite; then its weights are empty where exceptions are off. Costs 7 Cholesky factors of each
  /// track.
  learned_result fit() const {
    learned_result out;
    for (auto const& [what, sums] :
         {std::pair{"learned from", &learned_}, std::pair{"held out", &held_out_}}) {
      if (sums->empty() || !(sums->front().examples() > 0.0)) {
        (void)raise(refusal("fit", message("number of entries that are ", what), 0, "above 0"));
        return out;
      }
    }
    double best = 0.0;
    for (double const ridge : ridges) {
      double sum = 0.0;
      std::vector<double> r2;
      for (std::size_t t = 0; t < tracks(); ++t) {
        double const missed = held_out_[t].errors(learned_[t].fit(ridge));
        sum += missed;
        r2.push_back(1.0 - missed / std::max(held_out_[t].spread(), 1e-12 * held_out_[t].examples()));
      }
      if (!out.r2.empty() && !(sum < best)) continue;
      best = sum;
      out.ridge = ridge;
      out.r2 = r2;
    }
    for (std::size_t t = 0; t < tracks(); ++t) {
      detail::regression_sums all = learned_[t];
      all.add(held_out_[t]);
      for (double const w : all.fit(out.ridge)) {
        if (!is_finite(static_cast<float>(w))) {
          (void)raise(refusal("fit", message("weight of layer ", t / kv_heads_, ", head ", t % kv_heads_), w,
                              "finite: keys that are no numbers were added"));
          return {};
        }
        out.weights.push_back(static_cast<float>(w));
      }
      out.entries = static_cast<std::uint64_t>(all.examples());
    }
    return out;
  }

private:
  std::size_t tracks() const { return std::size_t{layers_} * kv_heads_; }

  /// Why a sequence cannot be learned from; empty if it can.
  std::string sequence_problem(ledger_ref const& l, std::uint32_t channel, std::uint32_t sequence) const {
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      for (std::uint32_t head = 0; head < kv_heads_; ++head) {
        track const t = make_track(l.extent, layer, sequence, head);
        float most = 0.0f;
        for (slot_t s = 0; s < l.length[t.index]; ++s) {
          if (l.degree[l.at(t, s)] != 1.0f) {
            return refusal("add", message("degree of slot ", s, " of layer ", layer, ", head ", head),
                           l.degree[l.at(t, s)], 1, ": entries must be tokens as they were read");
          }
          most = max_of(most, l.channel_data[channel][l.at(t, s)]);
        }
        if (!(most > 0.0f)) {
          return refusal("add", message("attention to layer ", layer, ", head ", head), most,
                         "above 0, as after a second reading");
        }
      }
    }
    return {};
  }

  template <class Keys>
  void add_track(ledger_ref const& l, float const* scores, track t, Keys const& keys,
                 detail::regression_sums& to) const {
    std::size_t const features = learned_weights::floats(key_dim_);
    std::vector<double> x(4 * features, 0.0), y(4, 0.0);
    std::vector<float> row(key_dim_);
    std::size_t count = 0;
    serial_team const team(nullptr, 0);
    auto const add = [&] {
      to.add(x.data(), y.data());
      x.assign(x.size(), 0.0);
      y.assign(y.size(), 0.0);
      count = 0;
    };
    for (slot_t s = 0; s < l.length[t.index]; ++s) {
      position_t const p = l.position[l.at(t, s)];
      if (p < first) continue;
      keys.load_tile(team, t, s, 1, 0, key_dim_, row.data(), key_dim_);
      rotate_row(rope_, -rope_.turned_for(s, p), row.data(), key_dim_);
      double* const of_row = x.data() + count * features;
      for (std::uint32_t c = 0; c < key_dim_; ++c) {
        auto const k = static_cast<double>(row[c]);
        of_row[c] = k;
        of_row[key_dim_ + c] = k * k;
      }
      of_row[2 * key_dim_] = std::log(1.0 + p);
      of_row[2 * key_dim_ + 1] = 1.0;
      y[count] = std::log(least + static_cast<double>(scores[l.at(t, s)]));
      if (++count == 4) add();
    }
    add();
  }

  std::uint32_t layers_, kv_heads_, key_dim_;
  rope_params rope_;
  std::string problem_;
  std::vector<detail::regression_sums> learned_, held_out_;
};

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
