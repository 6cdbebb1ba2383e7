// Measures what a model's heads need, and writes it to a file that the demo takes: Chelsea's outlier heads,
// KVMerger's thresholds per layer, and per method what it costs to keep less of one head alone.
#include "prompted.hpp"

#include <demo/material.hpp>
#include <demo/methods.hpp>

#include <tiny_llama/calibration_file.hpp>
#include <tiny_llama/command_line.hpp>
#include <tiny_llama/error.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/progress.hpp>
#include <tiny_llama/threads.hpp>
#include <tiny_llama/tokens.hpp>

#include <kvmeld/calibrate.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using calibrating::sample;
using kvmeld::calibrate::calibration;

struct options {
  std::string model = "examples/data/tiny-kjv", text, out = "calibration.json";
  std::vector<std::string> methods{"streaming_llm", "h2o",     "snapkv",
                                   "kvmerger",      "chelsea", "leverage_dropkv"};
  std::vector<double> shares{0.05, 0.1, 0.2, 0.35, 0.6};
  std::vector<double> ratios{0.5, 0.35, 0.2};
  int context = 1024, samples = 6, needles = 4, threads = 0;
  std::uint64_t seed = 1001;
};

constexpr int text_tokens = 65;
constexpr int min_entries = 40;  // what the presets pin at most, and some

void check(options const& o) {
  auto const refuse = [](std::string const& text) { throw tiny_llama::option_error(text + "."); };
  for (double s : o.shares) {
    if (!(s < 1) || s * o.context < min_entries) {
      refuse(kvmeld::message("a number of --shares is ", s, "; it must be below 1 and keep at least ",
                             min_entries, " of the ", o.context, " entries of --context"));
    }
  }
  for (double r : o.ratios) {
    if (!(r >= o.shares.front() && r < 1)) {
      refuse(kvmeld::message("a number of --ratio is ", r, "; it must be at least ", o.shares.front(),
                             ", the smallest of --shares, and below 1"));
    }
  }
  for (std::string const& m : o.methods) {
    auto const& known = tiny_llama::known_methods();
    bool const fits = std::find(known.begin(), known.end(), m) != known.end() && m != "full" &&
                      m != "composed" && m != "ems" && !demo::wants_learned(m, {});
    if (!fits)
      refuse("a name of --method is " + tiny_llama::in_quotes(m) +
             "; it must be a method of the demo other than full, composed, ems and those that "
             "need learned scores");
  }
  tiny_llama::expect_writable("--out", o.out);
}

/// Returns the text of --help where it was asked for.
std::string parse(int argc, char** argv, options& o) {
  using namespace tiny_llama;
  command_line line(
      "Measures what the heads of a model need and writes it to a file for kvmeld_demo --calibration.");
  line.add("--model", "DIR", "folder with config.json and model.safetensors [examples/data/tiny-kjv]",
           [&](auto const& v) { o.model = some_path("--model", v); });
  line.add("--text", "FILE", "text to take samples from [heldout.txt in the model's folder]",
           [&](auto const& v) { o.text = some_path("--text", v); });
  line.add(
      "--method", "NAMES",
      "methods to calibrate, comma-separated [streaming_llm,h2o,snapkv,kvmerger,chelsea,leverage_dropkv]",
      [&](auto const& v) { o.methods = split_at_commas(v); });
  line.add("--shares", "SHARES",
           "shares of a head's entries to measure, comma-separated [0.05,0.1,0.2,0.35,0.6]",
           [&](auto const& v) { o.shares = shares_above_zero("--shares", v); });
  line.add("--ratio", "SHARES", "totals to show allotments and find thresholds for [0.5,0.35,0.2]",
           [&](auto const& v) {
             o.ratios = shares_above_zero("--ratio", v);
             std::reverse(o.ratios.begin(), o.ratios.end());
           });
  line.add("--context", "N", "tokens per sample [1024]",
           [&](auto const& v) { o.context = small_number("--context", v, 512, 1 << 20); });
  line.add("--samples", "N", "samples to average over [6]",
           [&](auto const& v) { o.samples = small_number("--samples", v, 1, 1000); });
  line.add("--needles", "N", "planted numbers per sample [4]",
           [&](auto const& v) { o.needles = small_number("--needles", v, 0, 32); });
  line.add("--seed", "N", "seed of the samples; the demo's contexts come from other seeds [1001]",
           [&](auto const& v) { o.seed = seed_number("--seed", v); });
  line.add("--out", "FILE", "file to write [calibration.json]",
           [&](auto const& v) { o.out = some_path("--out", v); });
  line.add("--threads", "N", "threads, 0 for as many as the machine has [0]",
           [&](auto const& v) { o.threads = small_number("--threads", v, 0, 1024); });
  return line.parse(argc, argv);
}

/// Thresholds per layer and ratio of one sample, added to the calibration.
void add_thresholds(calibration& c, tiny_llama::model& model, sample& s, std::uint32_t capacity) {
  tiny_llama::prompt_state& p = s.context.plain;
  auto const heads = static_cast<std::uint32_t>(model.shape().heads),
             d = static_cast<std::uint32_t>(model.shape().head_dim);
  kvmeld::shape const extent = tiny_llama::extent_of(model.shape(), capacity);
  kvmeld::strided<kvmeld::float16> const keys(p.keys.data(), "LSTHC", extent, d),
      values(p.values.data(), "LSTHC", extent, d);
  for (auto& t : c.thresholds) {
    auto const theta = kvmeld::calibrate::thresholds_for(
        tiny_llama::executor(), demo::kvmerger_with(nullptr, t.ratio), kvmeld::kv{keys, values}, extent,
        t.ratio, [&](auto& cache) {
          cache.open(0, p.tokens);
          for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
            cache.observe(
                {layer, 0, p.tokens},
                kvmeld::rows_by_token(static_cast<float const*>(p.queries[layer].data()), p.tokens, heads, d),
                kvmeld::rows_by_token(static_cast<float const*>(p.lse[layer].data()), p.tokens, heads, 1));
          }
        });
    t.theta.resize(theta.size());
    for (std::size_t layer = 0; layer < theta.size(); ++layer) t.theta[layer].push_back(theta[layer]);
  }
}

void add_unmatched(calibration& c, sample& s, kvmeld::shape const& extent, std::size_t samples) {
  kvmeld::strided<kvmeld::float16> const keys(s.context.plain.keys.data(), "LSTHC", extent, extent.key_dim);
  kvmeld::strided<kvmeld::float16> const values(s.context.plain.values.data(), "LSTHC", extent,
                                                extent.value_dim);
  auto const found = kvmeld::calibrate::unmatched_shares(tiny_llama::executor(), kvmeld::kv{keys, values},
                                                         extent, 0, s.context.plain.tokens);
  c.unmatched.resize(found.size(), 0.0);
  for (std::size_t h = 0; h < found.size(); ++h) c.unmatched[h] += found[h] / static_cast<double>(samples);
}

/// Mean divergence over the samples of a cache compressed to `shares`.
double divergence_of(tiny_llama::model& model, std::vector<tiny_llama::engine<demo::full_policy>> const& read,
                     std::vector<sample> const& samples, std::vector<double> const& shares) {
  auto const vocab = static_cast<std::size_t>(model.shape().vocab);
  double sum = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    tiny_llama::engine<demo::full_policy> engine(read[i]);
    engine.compress(shares);
    sum += calibrating::divergence_of(engine, samples[i], vocab);
  }
  return sum / static_cast<double>(samples.size());
}

calibration measure(options const& o) {
  tiny_llama::use_threads(o.threads);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  tiny_llama::options of_model;
  of_model.loaded = &model;
  auto const& m = model.shape();
  std::string const path = o.text.empty() ? o.model + "/heldout.txt" : o.text;
  std::vector<int> const ids = tiny_llama::read_tokens(path, m.vocab);
  bool const bytes = tiny_llama::is_byte_model(m.vocab);
  std::string const text = bytes ? std::string(ids.begin(), ids.end()) : std::string();
  bool const replays = std::any_of(o.methods.begin(), o.methods.end(),
                                   [&](auto const& name) { return demo::wants_replay(name, of_model); });
  auto const capacity = static_cast<std::uint32_t>(o.context * (replays ? 2 : 1) + 192);
  auto const u = [](int x) { return static_cast<std::uint32_t>(x); };

  calibration c;
  c.model = model.name();
  c.of = kvmeld::calibrate::model_shape::of(tiny_llama::extent_of(m, capacity));
  c.tokens = u(o.context);
  c.samples = u(o.samples);
  for (double r : o.ratios) c.thresholds.push_back({r, {}});
  std::size_t const steps = o.methods.size() * c.of.heads() * o.shares.size();
  double const per_sample = 4;  // reading one takes as long as a few measurements
  tiny_llama::progress bar(std::cerr, static_cast<double>(steps) + per_sample * o.samples);

  std::vector<sample> samples;
  for (int i = 0; i < o.samples; ++i) {
    bar.update(per_sample * i, "sample " + std::to_string(i + 1) + " of " + std::to_string(o.samples));
    tiny_llama::needle_request request;
    request.context = o.context;
    request.needles = bytes ? o.needles : 0;
    request.continuation = text_tokens;
    request.seed = o.seed;
    request.index = static_cast<std::uint64_t>(i);
    samples.push_back(calibrating::read_sample(
        model, bytes ? demo::text_material(text, request) : demo::id_material(ids, request), capacity,
        replays));
    add_unmatched(c, samples.back(), tiny_llama::extent_of(m, capacity), static_cast<std::size_t>(o.samples));
    add_thresholds(c, model, samples.back(), capacity);
  }
  std::vector<double> shares = o.shares;
  shares.push_back(1.0);
  double done = per_sample * o.samples;
  for (std::string const& method : o.methods) {
    std::vector<tiny_llama::engine<demo::full_policy>> read;
    read.reserve(samples.size());
    for (sample const& s : samples) {
      read.emplace_back(model, demo::policy_of(method, of_model), capacity, s.context.plain,
                        demo::reading_of(method, of_model));
    }
    c.methods.push_back(
        {method,
         kvmeld::calibrate::measure_heads(
             c.of.heads(), shares,
             [&](std::vector<double> const& now) { return divergence_of(model, read, samples, now); },
             [&](std::size_t n, std::size_t) { bar.update(done + static_cast<double>(n), method); })});
    done += static_cast<double>(c.of.heads() * o.shares.size());
  }
  bar.finish();
  return c;
}

void print_row(char const* name, std::vector<double> const& values, std::size_t per_layer,
               char const* format) {
  std::printf("%-16s", name);
  for (std::size_t h = 0; h < values.size(); ++h) {
    if (h % per_layer == 0) std::printf(" |");
    std::printf(format, values[h]);
  }
  std::printf("\n");
}

void print(calibration const& c, options const& o) {
  std::size_t const heads = c.of.kv_heads;
  std::printf("%s: %u layers of %u KV heads, %u samples of %u tokens\n\n", c.model.c_str(), c.of.layers,
              c.of.kv_heads, c.samples, c.tokens);
  std::printf("Chelsea's statistic: share of A entries without a partner above 0.8, per layer and head\n");
  print_row("unmatched", c.unmatched, heads, " %5.2f");
  auto const outliers = kvmeld::calibrate::outlier_heads(c.unmatched);
  for (std::size_t h = 0; h < outliers.size(); ++h) {
    if (outliers[h]) std::printf("outlier: layer %zu head %zu\n", h / heads, h % heads);
  }
  std::printf("\nKVMerger's threshold per layer: mean over samples +- largest distance from it\n");
  for (auto const& t : c.thresholds) {
    std::printf("keep %3.0f %%       ", 100 * t.ratio);
    for (std::size_t layer = 0; layer < t.theta.size(); ++layer) {
      double const mean = t.mean(layer);
      double apart = 0;
      for (double x : t.theta[layer]) apart = std::max(apart, std::abs(x - mean));
      std::printf("  %6.3f +- %.3f", mean, apart);
    }
    std::printf("\n");
  }
  double const least = o.shares.front();
  std::printf("\nDivergence in millibits if a head alone keeps %.0f %%\n", 100 * least);
  for (auto const& m : c.methods) {
    std::vector<double> cost;
    for (auto const& curve : m.curves) cost.push_back(1e3 * std::max(0.0, curve.cost.front()));
    print_row(m.method.c_str(), cost, heads, " %5.0f");
  }
  for (double ratio : o.ratios) {
    std::printf("\nPercent of its entries that each head keeps of a total of %.0f %%\n", 100 * ratio);
    for (auto const& m : c.methods) {
      auto share = kvmeld::calibrate::allot(m.curves, ratio, least);
      for (double& x : share) x *= 100;
      print_row(m.method.c_str(), share, heads, " %5.0f");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_calibrate", [&] {
    options o;
    if (tiny_llama::shows_help(parse(argc, argv, o))) return 0;
    check(o);
    calibration const c = measure(o);
    print(c, o);
    tiny_llama::save_calibration(c, o.out);
    std::cout << "\ncalibration: " << o.out << " (examples/plot.py draws it)\n";
    return 0;
  });
}
