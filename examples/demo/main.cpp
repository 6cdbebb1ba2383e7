// The demo: a real language model reads a long text, its KV cache is merged or evicted down to a budget, and
// it answers from what is left.
#include "material.hpp"
#include "measure.hpp"
#include "methods.hpp"
#include "prompts.hpp"
#include "variants.hpp"

#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>
#include <tiny_llama/progress.hpp>
#include <tiny_llama/report.hpp>
#include <tiny_llama/threads.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using tiny_llama::options;
using tiny_llama::report_row;

constexpr int continuation_tokens = 129;  // 128 are predicted
constexpr int probe_tokens = 32;

report_row summarise(std::string const& method, std::string const& kind, double budget, demo::tally const& t,
                     std::uint64_t full_bytes) {
  report_row row;
  row.method = method;
  row.kind = kind;
  row.budget = budget;
  row.bits_per_byte = t.bits / static_cast<double>(t.tokens);
  auto const share = [](int part, int whole) {
    return whole == 0 ? -1.0 : static_cast<double>(part) / whole;
  };
  row.needle_accuracy = share(t.after.right, t.after.digits);
  row.needle_exact = share(t.after.exact, t.after.numbers);
  row.needle_accuracy_inside = share(t.inside.right, t.inside.digits);
  row.needle_exact_inside = share(t.inside.exact, t.inside.numbers);
  row.output_error = t.error / t.contexts;
  row.kv_bytes_full = full_bytes;
  row.kv_bytes = t.bytes / static_cast<std::uint64_t>(t.contexts);
  row.compress_ms = 1e3 * t.compress_seconds / t.contexts;
  row.observe_ms = 1e3 * t.observe_seconds / t.contexts;
  row.decode_tokens_per_s = static_cast<double>(t.tokens) / t.decode_seconds;
  auto const of = [](std::uint64_t part, std::uint64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(whole, 1));
  };
  if (t.scored) row.mass_retained = t.live.mass_retained();
  row.merged = of(t.live.merged_in_all, t.live.tokens);
  row.dropped = of(t.live.dropped_in_all, t.live.tokens);
  for (std::uint64_t n : t.live.degrees) row.degrees.push_back(of(n, t.live.held));
  return row;
}

tiny_llama::report run(options o) {
  tiny_llama::use_threads(o.threads);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  o.rope_base = model.shape().rope_base;
  bool const bytes = tiny_llama::is_byte_model(model.shape().vocab);
  std::vector<int> const ids = tiny_llama::read_tokens(o.text_path(), model.shape().vocab);
  std::string text;  // planting and asking for numbers takes bytes
  if (bytes) text.assign(ids.begin(), ids.end());
  int const needles = bytes ? o.needles : 0;
  if (needles != o.needles)
    std::cerr << "token ids: what they mean is not known, so no numbers are planted\n";
  bool const replays = std::any_of(o.methods.begin(), o.methods.end(),
                                   [&](std::string const& m) { return demo::wants_replay(m, o); });
  // The context, the longest question or the continuation, and an answer; for a second reading the first two
  // again.
  auto const capacity =
      static_cast<std::uint32_t>((o.context + std::max(continuation_tokens, 64)) * (replays ? 2 : 1) + 64);

  kvmeld::calibrate::calibration calibration;
  if (!o.calibration.empty()) calibration = demo::calibration_for(model, o.calibration);
  std::vector<demo::variant> const variants =
      demo::variants_of(o, o.calibration.empty() ? nullptr : &calibration);
  double steps = 0;
  for (demo::variant const& v : variants) steps += demo::steps_of(v, needles);
  tiny_llama::progress bar(std::cerr, (steps + 4) * o.contexts);

  std::vector<std::vector<demo::tally>> tallies(variants.size());
  double done = 0;
  for (int index = 0; index < o.contexts; ++index) {
    std::string const name =
        "context " + std::to_string(index + 1) + " of " + std::to_string(o.contexts) + ": ";
    bar.update(done, name + "reading");
    tiny_llama::needle_request request;
    request.context = o.context;
    request.needles = needles;
    request.continuation = continuation_tokens;
    request.seed = o.seed;
    request.index = static_cast<std::uint64_t>(index);
    demo::context const context = demo::read_context(
        model, bytes ? demo::text_material(text, request) : demo::id_material(ids, request), capacity,
        probe_tokens, replays);
    done += 4;
    for (std::size_t n = 0; n < variants.size(); ++n) {
      demo::variant const& v = variants[n];
      tallies[n].resize(v.targets.size());
      bar.update(done, name + v.name);
      demo::with_policy(v, o, [&](auto const& policy) {
        demo::measure(model, policy, context, capacity, v.targets, demo::reading_of(v.method, o), tallies[n],
                      [&] { bar.update(++done, name + v.name); });
      });
    }
  }
  bar.finish();

  tiny_llama::report results;
  results.model = model.name();
  results.context = o.context;
  results.contexts = o.contexts;
  results.needles = needles;
  results.seed = o.seed;
  auto const& c = model.shape();
  std::uint64_t const full_bytes =
      static_cast<std::uint64_t>(o.context) * static_cast<std::uint64_t>(c.layers) *
      static_cast<std::uint64_t>(c.kv_heads * c.head_dim) * 2 * sizeof(kvmeld::float16);
  for (std::size_t n = 0; n < variants.size(); ++n) {
    demo::variant const& v = variants[n];
    for (std::size_t b = 0; b < v.targets.size(); ++b) {
      results.rows.push_back(
          summarise(v.name, demo::kind_of(v.method, o), v.targets[b].share, tallies[n][b], full_bytes));
    }
  }
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    tiny_llama::parsed_options const parsed = tiny_llama::parse_options(argc, argv);
    if (!parsed.help.empty()) {
      std::cout << parsed.help;
      return 0;
    }
    options const& chosen = parsed.chosen;
    for (auto const& [name, path] : {std::pair{"--json", chosen.json}, {"--chart", chosen.chart}}) {
      if (!path.empty()) tiny_llama::expect_writable(name, path);
    }
    bool const composes =
        std::find(chosen.methods.begin(), chosen.methods.end(), "composed") != chosen.methods.end();
    if (composes) {
      std::string const name = kvmeld::name_of_policy(demo::composition(chosen));  // refuses before it prints
      std::cout << "composed: " << name << "\n";
    }
    tiny_llama::report const results = run(chosen);
    tiny_llama::print_table(results, std::cout);
    if (!parsed.chosen.json.empty()) {
      tiny_llama::write_json(results, parsed.chosen.json);
      std::cout << "figures: " << parsed.chosen.json << "\n";
    }
    if (!parsed.chosen.chart.empty()) {
      tiny_llama::write_chart(results, parsed.chosen.chart);
      std::cout << "chart:   " << parsed.chosen.chart << "\n";
    }
    return 0;
  } catch (tiny_llama::option_error const& problem) {
    std::cerr << "kvmeld_demo: " << problem.what() << "\n";
    return tiny_llama::option_error::exit_code;
  } catch (std::exception const& problem) {
    std::cerr << "kvmeld_demo: " << problem.what() << "\n";
    return 1;
  }
}
