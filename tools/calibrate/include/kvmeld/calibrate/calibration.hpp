// SPDX-License-Identifier: Apache-2.0
// What was measured about a model once. Later it turns a budget into one budget per head. The caller saves
// it; the example programs save it as JSON.
#pragma once

#include <kvmeld/calibrate/allot.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {

/// The numbers of `shape` that do not depend on a deployment. A calibration fits caches with the same
/// numbers.
struct model_shape {
  /// Extents of the model.
  std::uint32_t layers = 0, kv_heads = 0, queries_per_kv_head = 0, key_dim = 0, value_dim = 0;

  /// The numbers of a cache that holds all layers of the model.
  static model_shape of(shape const& s) {
    return {s.layers, s.kv_heads, s.queries_per_kv_head, s.key_dim, s.value_dim};
  }
  /// KV heads of the whole model.
  std::size_t heads() const { return std::size_t{layers} * kv_heads; }
  friend bool operator==(model_shape const& a, model_shape const& b) {
    return a.layers == b.layers && a.kv_heads == b.kv_heads &&
           a.queries_per_kv_head == b.queries_per_kv_head && a.key_dim == b.key_dim &&
           a.value_dim == b.value_dim;
  }
};

/// KVMerger's thresholds that keep `ratio` of the entries: theta[layer][sample]. Samples of one layer agree;
/// the paper calls this persistent sparsity (KVMerger, section 3.2).
struct layer_thresholds {
  double ratio = 0;                        ///< entries kept, as a share of the tokens
  std::vector<std::vector<double>> theta;  ///< theta[layer][sample]

  /// Mean over the samples of a layer. Refuses a layer that is out of range or has no samples; returns 0 then
  /// where exceptions are off.
  double mean(std::size_t layer) const {
    std::string problem;
    if (layer >= theta.size()) {
      problem = refusal("mean", "layer", layer, "less than ", theta.size(), ", the number of layers");
    } else if (theta[layer].empty()) {
      problem = refusal("mean", message("number of samples of layer ", layer), 0, "at least 1");
    }
    if (!raise(problem)) return 0;
    double sum = 0;
    for (double x : theta[layer]) sum += x / static_cast<double>(theta[layer].size());
    return sum;
  }
};

/// What a method loses by compressing one head while all other heads keep everything.
struct sensitivity {
  std::string method;  ///< name of the preset, or any name by which find() is to find it
  /// Cost curves: [layer * kv_heads + head].
  std::vector<cost_curve> curves;
};

/// What was measured about a model. Parts that were not measured are empty.
struct calibration {
  std::string model;                         ///< a name for people; `of` decides what fits
  model_shape of;                            ///< numbers that a cache has to have
  std::uint32_t tokens = 0;                  ///< length of the samples
  std::uint32_t samples = 0;                 ///< texts that were looked at
  std::vector<double> unmatched;             ///< Chelsea's unmatched_shares per head; may be empty
  std::vector<layer_thresholds> thresholds;  ///< a set of thresholds per ratio, for KVMerger
  std::vector<sensitivity> methods;          ///< cost curves per method

  /// The curves of a method by its name, or null.
  sensitivity const* find(std::string const& method) const {
    for (sensitivity const& s : methods) {
      if (s.method == method) return &s;
    }
    return nullptr;
  }
};

/// Why a calibration does not serve a cache of this shape; empty if it does.
inline std::string calibration_problem(calibration const& c, shape const& s) {
  model_shape const wanted = model_shape::of(s);
  auto const text = [](model_shape const& m) {
    return message(m.layers, " layers of ", m.kv_heads, " KV heads, ", m.queries_per_kv_head,
                   " query heads each, ", m.key_dim, " and ", m.value_dim, " channels");
  };
  if (!(c.of == wanted)) {
    return refusal("calibration", message("shape of ", c.model.empty() ? "the model" : c.model), text(c.of),
                   text(wanted), ", as the cache has");
  }
  if (!c.unmatched.empty() && c.unmatched.size() != c.of.heads()) {
    return refusal("calibration", "number of shares of unmatched entries", c.unmatched.size(), c.of.heads(),
                   ", one per head");
  }
  for (std::size_t h = 0; h < c.unmatched.size(); ++h) {
    if (!is_within(c.unmatched[h], 0.0, 1.0)) {
      return refusal("calibration", message("unmatched[", h, "]"), c.unmatched[h], "0 to 1");
    }
  }
  for (layer_thresholds const& t : c.thresholds) {
    if (!(is_within(t.ratio, 0.0, 1.0) && t.ratio > 0.0)) {
      return refusal("calibration", "ratio of thresholds", t.ratio, "above 0 and at most 1");
    }
    if (t.theta.size() != c.of.layers) {
      return refusal("calibration", message("number of layers of the thresholds for the ratio ", t.ratio),
                     t.theta.size(), c.of.layers);
    }
    for (std::size_t layer = 0; layer < t.theta.size(); ++layer) {
      if (t.theta[layer].empty()) {
        return refusal("calibration",
                       message("number of samples of layer ", layer, " for the ratio ", t.ratio), 0,
                       "at least 1");
      }
      for (double const x : t.theta[layer]) {
        if (is_within(x, -1.0, 1.0)) continue;
        return refusal("calibration", message("threshold of layer ", layer, " for the ratio ", t.ratio), x,
                       "-1 to 1, a cosine");
      }
    }
  }
  for (sensitivity const& m : c.methods) {
    if (m.curves.size() != c.of.heads()) {
      return refusal("calibration", message("number of cost curves for ", m.method), m.curves.size(),
                     c.of.heads(), ", one per head");
    }
    if (std::string problem = curves_problem(m.curves); !problem.empty()) {
      return refusal_within("calibration", refusal_within(m.method.c_str(), problem));
    }
  }
  return {};
}

/// Measures every head alone. measure(shares) returns what it costs to compress to `shares` [heads]. It is
/// called for each head and each share below 1, with all other heads at 1. The engine averages over its
/// samples in `measure`, and may stop a run by throwing. told(done, all) is called before each measurement
/// and after the last.
inline std::vector<cost_curve> measure_heads(std::size_t heads, std::vector<double> const& shares,
                                             std::function<double(std::vector<double> const&)> const& measure,
                                             std::function<void(std::size_t, std::size_t)> const& told = {}) {
  std::vector<cost_curve> out(heads, cost_curve{shares, std::vector<double>(shares.size(), 0.0)});
  std::string problem = refusal_within("measure_heads", curves_problem(out));
  if (problem.empty() && !measure) problem = refusal("measure_heads", "measure", "empty", "a function");
  if (!raise(problem).ok()) return {};
  std::size_t const each = shares.size() - 1;
  std::vector<double> now(heads, 1.0);
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t i = 0; i < each; ++i) {
      if (told) told(h * each + i, heads * each);
      now[h] = shares[i];
      out[h].cost[i] = measure(now);
    }
    now[h] = 1.0;
  }
  if (told) told(heads * each, heads * each);
  return out;
}

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
