// Learns, once per model, which entries a second reading of a prompt would look at, from their keys alone
// (kvmeld::calibrate::learned_fit), and writes it to a file for methods with the score "learned".
#include <demo/prompts.hpp>

#include <tiny_llama/command_line.hpp>
#include <tiny_llama/engine.hpp>
#include <tiny_llama/error.hpp>
#include <tiny_llama/learned_file.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/progress.hpp>
#include <tiny_llama/random.hpp>
#include <tiny_llama/threads.hpp>
#include <tiny_llama/tokens.hpp>

#include <kvmeld/calibrate/learned_fit.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

struct options {
  std::string model = "examples/data/tiny-kjv", text, out = "learned.safetensors";
  int passages = 24, tokens = 1024, threads = 0;
  std::uint64_t seed = 1;
};

constexpr int held_out = 5;  // every fifth passage chooses the ridge

/// Returns the text of --help where it was asked for.
std::string parse(int argc, char** argv, options& o) {
  using namespace tiny_llama;
  command_line line(
      "Learns which entries of a model's cache a second reading of a prompt would look at, from their keys "
      "alone, and writes it to a file for kvmeld_demo --learned, kvmeld_slot and Python.");
  line.add("--model", "DIR", "folder with config.json and model.safetensors [examples/data/tiny-kjv]",
           [&](auto const& v) { o.model = some_path("--model", v); });
  line.add(
      "--text", "FILE",
      "text like those that the model is to read, or its token numbers where the model does not read bytes",
      [&](auto const& v) { o.text = some_path("--text", v); });
  line.add("--passages", "N", "passages to read twice; every fifth one says how well the weights fit [24]",
           [&](auto const& v) { o.passages = small_number("--passages", v, held_out, 1 << 20); });
  line.add("--tokens", "N", "tokens of a passage [1024]",
           [&](auto const& v) { o.tokens = small_number("--tokens", v, 64, 1 << 20); });
  line.add("--seed", "N", "seed of the places of passages in the text [1]",
           [&](auto const& v) { o.seed = seed_number("--seed", v); });
  line.add("--out", "FILE", "file to write [learned.safetensors]",
           [&](auto const& v) { o.out = some_path("--out", v); });
  line.add("--threads", "N", "threads, 0 for as many as the machine has [0]",
           [&](auto const& v) { o.threads = small_number("--threads", v, 0, 1024); });
  std::string help = line.parse(argc, argv);
  if (!help.empty()) return help;
  if (o.text.empty()) throw option_error("--text is missing; it must be a text for the model to learn from.");
  expect_writable("--out", o.out);
  return help;
}

/// Adds a passage, read twice, to what is learned from.
void add_passage(kvmeld::calibrate::learned_fit& fit, tiny_llama::model& model,
                 std::vector<int> const& tokens, std::uint32_t capacity, bool is_held_out) {
  tiny_llama::prompt_state state;
  std::vector<float> logits;
  tiny_llama::engine<demo::full_policy> once(model, demo::policy_of_full(), capacity);
  once.read(tokens, logits, [](auto&&...) {});
  demo::copy_entries(once, state);
  demo::replay(model, once, tokens, state);
  tiny_llama::engine<kvmeld::preset::kvzip::type> const scored(model, kvmeld::preset::kvzip::for_budget(),
                                                               capacity, state);
  kvmeld::shape const extent = tiny_llama::extent_of(model.shape(), capacity);
  kvmeld::strided<kvmeld::float16> const keys(state.keys.data(), "LSTHC", extent, extent.key_dim);
  fit.add(scored.cache(), 0, keys, is_held_out);
}

/// The keys of the token by which a model is known: [layers][kv_heads][head_dim].
std::vector<float> keys_of_token(tiny_llama::model& model) {
  if (model.shape().vocab <= tiny_llama::token_of_keys) return {};
  tiny_llama::engine<demo::full_policy, float> alone(model, demo::policy_of_full(), 1);
  std::vector<float> logits;
  alone.read({tiny_llama::token_of_keys}, logits, [](auto&&...) {});
  return alone.keys();
}

void learn(options const& o) {
  tiny_llama::use_threads(o.threads);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  auto const& m = model.shape();
  std::vector<int> const ids = tiny_llama::read_tokens(o.text, m.vocab);
  auto const wanted = static_cast<std::size_t>(o.tokens);
  if (ids.size() < wanted) {
    throw tiny_llama::option_error(kvmeld::message(
        "--text holds ", ids.size(), " tokens; it must hold at least ", wanted, " (--tokens)."));
  }
  int const most = (m.max_positions - 8) / 2;
  if (o.tokens > most) {
    throw tiny_llama::option_error(kvmeld::message("--tokens is ", o.tokens, "; it must be at most ", most,
                                                   ", because the model has ", m.max_positions,
                                                   " positions and reads a passage twice."));
  }
  kvmeld::rope_params const rope = tiny_llama::rope_of(m);
  auto const capacity = static_cast<std::uint32_t>(2 * o.tokens + 16);
  kvmeld::calibrate::learned_fit fit(tiny_llama::extent_of(m, capacity), rope);
  tiny_llama::progress bar(std::cerr, o.passages);
  tiny_llama::splitmix64 random(o.seed);
  for (int i = 0; i < o.passages; ++i) {
    bar.update(i, "passage " + std::to_string(i + 1) + " of " + std::to_string(o.passages));
    // Far from each other, for any number of passages.
    double const share =
        std::fmod(i * 0.6180339887 + static_cast<double>(random.below(1000)) / 1000 / o.passages, 1.0);
    auto const begin =
        ids.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(ids.size() - wanted));
    add_passage(fit, model, {begin, begin + o.tokens}, capacity, i % held_out == held_out - 1);
  }
  bar.finish();
  kvmeld::calibrate::learned_result const found = fit.fit();

  tiny_llama::learned_scores scores;
  scores.floats = found.weights;
  scores.layers = static_cast<std::uint32_t>(m.layers);
  scores.kv_heads = static_cast<std::uint32_t>(m.kv_heads);
  scores.key_dim = static_cast<std::uint32_t>(m.head_dim);
  scores.pairing = rope.pairing;
  for (std::uint32_t i = 0; i < rope.pairs(scores.key_dim); ++i) {
    constexpr double turn = 6.28318530717958647693;
    scores.frequencies.push_back(static_cast<float>(turn * kvmeld::rope_turns(rope, i, scores.key_dim)));
  }
  double mean = 0;
  for (double const r2 : found.r2) mean += r2 / static_cast<double>(found.r2.size());
  char report[200];
  std::snprintf(report, sizeof report,
                "ridge %g, %llu tokens; on passages that were not learned from: R2 %.2f (heads %.2f to %.2f)",
                found.ridge, static_cast<unsigned long long>(found.entries), mean,
                *std::min_element(found.r2.begin(), found.r2.end()),
                *std::max_element(found.r2.begin(), found.r2.end()));
  std::map<std::string, std::string> const about{{"model", model.name()},
                                                 {"passages", std::to_string(o.passages)},
                                                 {"fit", report},
                                                 {"seed", std::to_string(o.seed)}};
  tiny_llama::save_learned(scores, keys_of_token(model), about, o.out);
  std::printf("%s: %s\nwritten to %s\n", model.name().c_str(), report, o.out.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_learn", [&] {
    options o;
    if (!tiny_llama::shows_help(parse(argc, argv, o))) learn(o);
    return 0;
  });
}
