// kvmeld_slot: shrinks a saved sequence of llama.cpp, see docs/engines/llama_cpp.md.
#include "shrink_slot.hpp"

#include <tiny_llama/command_line.hpp>
#include <tiny_llama/files.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#if defined(__unix__)
#include <unistd.h>
#endif

namespace {

struct options {
  std::string in, out, policy = "keydiff_merging";
  std::uint32_t kv_heads = 0, cells = 0, threads = 0;
  double budget = 0.25;
};

std::string parse(int argc, char** argv, options& o) {
  using namespace tiny_llama;
  constexpr int most = std::numeric_limits<int>::max();
  command_line line(
      "Shrinks a sequence that llama_state_seq_save_file or a llama-server's slot action \"save\" wrote. "
      "llama.cpp restores the shorter file like any other.");
  line.add("--in", "FILE", "the saved sequence", [&](auto const& v) { o.in = some_path("--in", v); });
  line.add("--out", "FILE", "file to write; without it the program tells what --in holds",
           [&](auto const& v) { o.out = some_path("--out", v); });
  line.add("--kv-heads", "N", "KV heads of the model, which llama.cpp prints as n_head_kv when it loads one",
           [&](auto const& v) {
             o.kv_heads = static_cast<std::uint32_t>(small_number("--kv-heads", v, 1, 1 << 16));
           });
  line.add("--budget", "SHARE", "share of the cells that stays [0.25]", [&](auto const& v) {
    o.budget = positive_number("--budget", v);
    if (o.budget > 1) refuse_option("--budget", v, "at most 1");
  });
  line.add("--cells", "N", "cells that stay, instead of --budget",
           [&](auto const& v) { o.cells = static_cast<std::uint32_t>(small_number("--cells", v, 1, most)); });
  line.add(
      "--policy", "NAME",
      "a policy that needs no attention: keydiff_merging, keydiff, knorm, lagkv, streaming_llm, leverage, "
      "leverage_merging, chelsea, or parts as in docs/c.md [keydiff_merging]",
      [&](auto const& v) { o.policy = v; });
  line.add("--threads", "N", "threads, 0 for as many as the machine has [0]", [&](auto const& v) {
    o.threads = static_cast<std::uint32_t>(small_number("--threads", v, 0, 1024));
  });
  std::string help = line.parse(argc, argv);
  if (!help.empty()) return help;
  if (o.in.empty()) throw option_error("--in is missing; it must be a saved sequence.");
  if (!o.out.empty()) {
    if (o.kv_heads == 0)
      throw option_error("--kv-heads is missing; it must be the number that llama.cpp prints as n_head_kv.");
    expect_writable("--out", o.out);
  }
  return {};
}

std::uint32_t channels_of(llama_cpp::sequence_state::tensor const& t) {
  llama_cpp::cell_type const& type = llama_cpp::cell_type_of(t.type);
  return static_cast<std::uint32_t>(t.row / type.bytes) * type.channels;
}

std::string kind(llama_cpp::sequence_state::tensor const& t, bool along_cells) {
  return std::to_string(channels_of(t)) + " channels of " + llama_cpp::cell_type_of(t.type).name +
         (along_cells ? ", transposed" : "");
}

llama_cpp::sequence_state read(std::string const& path, double& megabytes) {
  std::string const bytes = tiny_llama::read_file(path, std::numeric_limits<std::uint64_t>::max());
  megabytes = static_cast<double>(bytes.size()) / 1e6;
  return llama_cpp::read_slot({bytes.begin(), bytes.end()});
}

int run(options const& o) {
  double megabytes = 0;
  llama_cpp::sequence_state state = read(o.in, megabytes);
  std::uint32_t const entries = state.cells();
  std::printf("%s: %u cells, %u layers; keys %s; values %s; %.1f MB\n", o.in.c_str(), entries, state.layers(),
              kind(state.keys(0), false).c_str(), kind(state.values(0), state.transposed()).c_str(),
              megabytes);
  if (o.out.empty()) return 0;

  llama_cpp::shrinking how;
  how.policy = o.policy;
  how.kv_heads = o.kv_heads;
  how.threads = o.threads;
  how.cells = o.cells != 0 ? o.cells : kvmeld::floor_share(o.budget, entries);
  if (how.cells == 0)
    throw std::runtime_error("--budget leaves none of " + std::to_string(entries) +
                             " cells; it must leave at least one");
#if defined(__unix__)
  if (isatty(STDERR_FILENO) != 0) {
    how.progress = [&](std::uint32_t layer) {
      std::fprintf(stderr, "\rlayer %u of %u%s", layer + 1, state.layers(),
                   layer + 1 == state.layers() ? "\r\033[K" : "");
    };
  }
#endif
  auto const begin = std::chrono::steady_clock::now();
  std::vector<std::uint8_t> const bytes = llama_cpp::shrink_slot(state, how);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  tiny_llama::write_file(o.out, {bytes.begin(), bytes.end()});
  std::printf("%s: %u cells (%.1f%%) of %u KV heads of %u channels, %.1f MB, %s, %.2f s; the next token has "
              "position %d\n",
              o.out.c_str(), how.cells, 100.0 * how.cells / entries, o.kv_heads,
              channels_of(state.keys(0)) / o.kv_heads, static_cast<double>(bytes.size()) / 1e6,
              o.policy.c_str(), seconds,
              state.position(static_cast<std::uint32_t>(state.order().back())) + 1);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    options o;
    std::string const help = parse(argc, argv, o);
    if (!help.empty()) {
      std::fputs(help.c_str(), stdout);
      return 0;
    }
    return run(o);
  } catch (tiny_llama::option_error const& problem) {
    std::fprintf(stderr, "kvmeld_slot: %s\n", problem.what());
    return tiny_llama::option_error::exit_code;
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "kvmeld_slot: %s\n", problem.what());
    return 1;
  }
}
