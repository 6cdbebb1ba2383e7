// kvmeld_slot: shrinks a saved sequence of llama.cpp, see docs/engines/llama_cpp.md.
#include "gguf_model.hpp"
#include "shrink_slot.hpp"

#include <kvmeld/compose/policy_text.hpp>

#include <tiny_llama/command_line.hpp>
#include <tiny_llama/files.hpp>
#include <tiny_llama/learned_file.hpp>
#include <tiny_llama/output_file.hpp>
#include <tiny_llama/program.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace {

struct options {
  std::string in, out, gguf, learned, policy;
  std::uint32_t kv_heads = 0, cells = 0, threads = 0;
  std::optional<std::uint32_t> tail;
  double budget = 0.25;
};

std::string parse(int argc, char** argv, options& o) {
  using namespace tiny_llama;
  constexpr int most = std::numeric_limits<int>::max();
  auto const count = [](char const* name, std::string const& v, int least, int largest) {
    return static_cast<std::uint32_t>(small_number(name, v, least, largest));
  };
  command_line line(
      "Shrinks a sequence that llama_state_seq_save_file or a llama-server's slot action \"save\" wrote. "
      "llama.cpp restores the shorter file like any other.");
  line.add("--in", "FILE", "the saved sequence", [&](auto const& v) { o.in = some_path("--in", v); });
  line.add("--out", "FILE", "file to write; without it the program tells what --in holds",
           [&](auto const& v) { o.out = some_path("--out", v); });
  line.add("--gguf", "FILE",
           "the model, which tells KV heads and rotation, and whether its slots can be shrunk",
           [&](auto const& v) { o.gguf = some_path("--gguf", v); });
  line.add("--kv-heads", "N",
           "without --gguf: KV heads of the model, which llama.cpp prints as n_head_kv when it loads one",
           [&](auto const& v) { o.kv_heads = count("--kv-heads", v, 1, 1 << 16); });
  line.add("--budget", "SHARE", "share of the cells that stays [0.25]", [&](auto const& v) {
    o.budget = positive_number("--budget", v);
    if (o.budget > 1) refuse_option("--budget", v, "at most 1");
  });
  line.add("--cells", "N", "cells that stay, instead of --budget",
           [&](auto const& v) { o.cells = count("--cells", v, 1, most); });
  line.add(
      "--tail", "N",
      "of these, last tokens that stay as they are: a prompt that differs there goes on from the slot, one "
      "that differs before is computed anew [a quarter of the cells]",
      [&](auto const& v) { o.tail = count("--tail", v, 0, most); });
  line.add(
      "--policy", "NAME",
      "a policy that needs no attention: learned_leverage, learned, leverage, leverage_merging, keydiff, "
      "keydiff_merging, knorm, lagkv, streaming_llm, chelsea, or parts as in docs/c.md "
      "[learned_leverage with --learned, else leverage]",
      [&](auto const& v) { o.policy = v; });
  line.add("--learned", "FILE",
           "what python -m kvmeld.learn wrote of the model: by such scores a quarter of the cells keeps half "
           "as many facts again",
           [&](auto const& v) { o.learned = some_path("--learned", v); });
  line.add("--threads", "N", "threads, 0 for as many as the machine has [0]",
           [&](auto const& v) { o.threads = count("--threads", v, 0, 1024); });
  std::string help = line.parse(argc, argv);
  if (!help.empty()) return help;
  if (o.in.empty()) throw option_error("--in is missing; it must be a saved sequence.");
  if (o.policy.empty()) o.policy = o.learned.empty() ? "leverage" : "learned_leverage";
  if (!o.out.empty()) {
    if (o.kv_heads == 0 && o.gguf.empty()) {
      throw option_error(
          "--gguf is missing; it must be the model, or --kv-heads the number that llama.cpp prints as "
          "n_head_kv.");
    }
    if (!o.learned.empty() && o.gguf.empty()) {
      throw option_error("--learned is " + in_quotes(o.learned) +
                         "; it must come with --gguf, which says how keys rotate.");
    }
    kvmeld::compose::composed policy;
    std::vector<float> frequencies;
    read_policy(o.policy, policy, kvmeld::rope_params{}, &frequencies);
    if (needs_learned(policy) && o.learned.empty()) {
      throw option_error("--policy is " + in_quotes(o.policy) + "; it must come with --learned.");
    }
    if (!needs_learned(policy) && !o.learned.empty()) {
      throw option_error("--learned is " + in_quotes(o.learned) +
                         "; it must come with a policy that reads learned scores, and --policy is " +
                         in_quotes(o.policy) + ".");
    }
    expect_writable("--out", o.out);
  }
  return {};
}

std::string kind(llama_cpp::sequence_state::tensor const& t, bool along_cells) {
  return std::to_string(llama_cpp::channels_of(t)) + " channels of " + llama_cpp::cell_type_of(t.type).name +
         (along_cells ? ", transposed" : "");
}

llama_cpp::sequence_state read(std::string const& path, bool recurrent, double& megabytes) {
  std::string const bytes = tiny_llama::read_file(path, std::numeric_limits<std::uint64_t>::max());
  megabytes = static_cast<double>(bytes.size()) / 1e6;
  return llama_cpp::read_slot({bytes.begin(), bytes.end()}, recurrent);
}

/// The policy of a text, told how the model rotates keys. `frequencies` outlives it.
kvmeld::compose::composed policy_of(options const& o, std::optional<llama_cpp::gguf_model> const& m,
                                    llama_cpp::sequence_state const& state, std::vector<float>& frequencies) {
  using namespace kvmeld::compose;
  bool const known = m && m->rope_known;
  kvmeld::rope_params const rotation = known ? m->rotation() : kvmeld::rope_params{};
  composed policy;
  read_policy(o.policy, policy, rotation, &frequencies);
  if (!needs_rope(policy) && !rope_of(policy).active()) return policy;
  if (!known && !says_rope(o.policy)) {
    throw tiny_llama::option_error(
        "--policy is " + kvmeld::in_quotes(o.policy) +
        ", which turns keys back; it must say rope= and rope_base= of this model, " +
        (m ? "because its GGUF does not" : "or --gguf must be given") + ".");
  }
  if (!known) read_policy(o.policy, policy, nullptr, &frequencies);  // refuses words that do not say it all
  if (std::uint32_t const matrix = state.key_rotation(); matrix != 0) {
    throw tiny_llama::option_error(
        "--policy is " + kvmeld::in_quotes(o.policy) +
        ", which turns keys back; it must be another one, because llama.cpp rotated these by a matrix of " +
        std::to_string(matrix) + " channels (--cache-type-k f16 does not).");
  }
  return policy;
}

/// What was learned of the model, as llama.cpp keeps its keys.
tiny_llama::learned_scores scores_of(std::string const& path, llama_cpp::gguf_model const& m,
                                     std::uint32_t layers, kvmeld::rope_params const& rotation) {
  tiny_llama::learned_scores out = tiny_llama::load_learned(path);
  // Weights are learned of a model of transformers, where pairs of Llama's channels are halves of a key.
  if (rotation.pairing == kvmeld::rope_pairing::interleaved) out.put_pairs_side_by_side();
  expect_of(out, path, {m.name, layers, m.kv_heads, m.key_dim, rotation});
  return out;
}

int run(options const& o) {
  std::optional<llama_cpp::gguf_model> model;
  if (!o.gguf.empty()) model = llama_cpp::read_gguf(o.gguf);
  double megabytes = 0;
  llama_cpp::sequence_state state = read(o.in, model && model->recurrent, megabytes);
  if (model) llama_cpp::expect_model(state, *model, o.kv_heads);
  std::uint32_t const entries = state.cells();
  std::printf("%s: %u cells, %u layers; keys %s; values %s; %.1f MB\n", o.in.c_str(), entries, state.layers(),
              kind(state.keys(0), false).c_str(), kind(state.values(0), state.transposed()).c_str(),
              megabytes);
  if (state.window_layers() != 0)
    std::printf("%u more layers have a window, with %u cells\n", state.window_layers(), state.window_cells());
  if (state.checkpoints() != 0) std::printf("checkpoints of the server: %zu\n", state.checkpoints());
  if (o.out.empty()) return 0;
  if (!model && state.window_layers() != 0) {
    throw std::runtime_error("--gguf is missing; it must be the model, which says how long the window is");
  }
  if (!model) {
    std::fprintf(stderr,
                 "kvmeld_slot: without --gguf nothing checks that the model has %u KV heads; a wrong number "
                 "spoils the file\n",
                 o.kv_heads);
  }

  llama_cpp::shrinking how;
  std::vector<float> frequencies;
  how.policy = policy_of(o, model, state, frequencies);
  tiny_llama::learned_scores scores;
  if (!o.learned.empty()) {
    scores = scores_of(o.learned, *model, state.layers(), rope_of(how.policy));
    set_learned(how.policy, scores.weights());
  }
  how.kv_heads = model ? model->kv_heads : o.kv_heads;
  how.threads = o.threads;
  how.window = model ? model->window : 0;
  how.cells = o.cells != 0 ? o.cells : kvmeld::floor_share(o.budget, entries);
  how.tail = o.tail.value_or(how.cells / 4);
  if (how.cells == 0)
    throw std::runtime_error("--budget leaves none of " + std::to_string(entries) +
                             " cells; it must leave at least one");
  auto const begin = std::chrono::steady_clock::now();
  std::vector<std::uint8_t> const bytes = llama_cpp::shrink_slot(state, how);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tiny_llama::write_file(o.out, {bytes.begin(), bytes.end()});
  std::printf("%s: %u cells (%.1f%%) of %u KV heads of %u channels, %.1f MB, %s, %.2f s; the next token has "
              "position %d, and the last %u tokens are as they were\n",
              o.out.c_str(), how.cells, 100.0 * how.cells / entries, how.kv_heads,
              llama_cpp::channels_of(state.keys(0)) / how.kv_heads, static_cast<double>(bytes.size()) / 1e6,
              o.policy.c_str(), seconds, state.position(static_cast<std::uint32_t>(state.order().back())) + 1,
              how.tail);
  if (model && (model->window != 0 || model->recurrent)) {
    std::size_t const left = llama_cpp::read_slot(bytes, model->recurrent).checkpoints();
    std::printf("checkpoints of the server that end in the tail: %zu\n", left);
    if (left == 0) {
      std::fprintf(
          stderr,
          "kvmeld_slot: without one a server computes the whole prompt again; a longer --tail may hold "
          "one\n");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_slot", [&] {
    options o;
    return tiny_llama::shows_help(parse(argc, argv, o)) ? 0 : run(o);
  });
}
