// What compressions and attention move on an emulated device, over the bytes that must move at least: a bound
// on how near to a copy they can come on a real one, whose clock is all that is missing here.
//   kvmeld_cuda_traffic [entries] [preset | all] [most bytes moved, over the least] [most launches]
// With the last two, the program fails where a compression moves more or takes more launches.
// Sectors of 32 bytes count once a launch, as with a cache that holds whatever one launch touches and nothing
// of the last.
#include "bench.cuh"

#include "../../tests/emulator/figures.hpp"

#include <tiny_llama/program.hpp>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using namespace cuda_bench;
using element = __nv_bfloat16;

constexpr std::uint32_t heads = 4, group = 4, channels = 128;
constexpr double kept_share = 0.2;
constexpr std::uint32_t few = 512;
constexpr std::uint32_t shown = 16;  ///< queries

// Of a kernel that runs a phase, the phase: run_tiles<ns::phase<...>, ...>(...).
std::string short_name(std::string name) {
  constexpr char runner[] = "run_tiles<";
  if (std::size_t const at = name.find(runner); at != name.npos) name.erase(0, at + sizeof(runner) - 1);
  name = name.substr(0, name.find_first_of("<,("));
  std::size_t const scope = name.rfind("::");
  return scope == name.npos ? name : name.substr(scope + 2);
}

struct sums {
  double launches = 0, instructions = 0, asked = 0, moved = 0;
};
sums print_kernels(double least) {
  sums all;
  for (emulator::kernel_figures const& f : emulator::take_figures()) {
    double const moved = static_cast<double>(f.read + f.written);
    all.launches += static_cast<double>(f.launches);
    all.instructions += static_cast<double>(f.instructions);
    all.asked += static_cast<double>(f.asked);
    all.moved += moved;
    if (moved > 0.02 * least)
      std::printf("|   %s | %llu | %.2f | %.2f | %.0f | %llu |\n", short_name(f.name).c_str(),
                  static_cast<unsigned long long>(f.launches), moved / least,
                  static_cast<double>(f.asked) / least, static_cast<double>(f.instructions) * 1e-6,
                  static_cast<unsigned long long>(f.fewest_blocks));
  }
  return all;
}
void print_all(std::string const& what, double least, sums const& all) {
  std::printf("| **%s** | %.0f | **%.2f** | %.2f | %.0f | |\n", what.c_str(), all.launches, all.moved / least,
              all.asked / least, all.instructions * 1e-6);
}

/// What a compression may take at most, and whether all have kept to it.
struct bounds {
  double moved = 1e30, launches = 1e30;
  bool kept = true;
  bool asked = false;  ///< whether any preset was
} most;

/// To a share of the entries; 0: to few, however many there were, and nothing is written where they lay.
template <class Policy>
void run(char const* name, char const* wanted, Policy const& policy, std::uint32_t n, double kept) {
  if (wanted != nullptr && std::strcmp(wanted, "all") != 0 && std::strcmp(wanted, name) != 0) return;
  most.asked = true;
  kvmeld::shape const s{1, 1, heads, group, channels, channels, n};
  kvmeld::cache_options options{s};
  options.zero_emptied = kept != 0;
  bool const shares = kvmeld::shares_entries<typename Policy::merge_type>::value;
  std::uint32_t const share = kept == 0 ? kvmeld::min_of(few, n / 4) : kvmeld::floor_share(kept, n),
                      budget = shares ? kvmeld::min_of(768u, share) : share;
  if (shares) options.members = 3 * budget;
  std::size_t const count = s.slots() * channels;
  device_array<element> keys(count), values(count);
  fill(keys.data(), count, 1u, channels);
  fill(values.data(), count, 2u);
  device_array<float> probabilities(std::size_t{s.query_heads()} * n);
  fill(probabilities.data(), std::size_t{s.query_heads()} * n, 3u);
  std::size_t const query_floats = std::size_t{shown} * s.query_heads() * channels;
  device_array<element> queries(query_floats);
  fill(queries.data(), query_floats, 5u);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), policy,
                             kvmeld::kv{kvmeld::strided<element>(keys.data(), "LSHTC", s, channels),
                                        kvmeld::strided<element>(values.data(), "LSHTC", s, channels)},
                             options};
  cache.open(0, n);
  using score_type = typename Policy::score_type;
  if constexpr (kvmeld::detail::has_table<score_type> || kvmeld::detail::reads_rows<score_type>) {
    cache.observe({0, 0, shown},
                  kvmeld::rows_by_token<element const>(queries.data(), shown, s.query_heads(), channels),
                  kvmeld::rows_by_head<float const>(probabilities.data(), shown, s.query_heads(), 1));
  } else {
    cache.observe_rows({0, 0, 1},
                       kvmeld::rows_by_head<float const>(probabilities.data(), 1, s.query_heads(), n));
  }
  emulator::take_figures();
  cache.compress({0}, kvmeld::budget::entries(budget));
  double const least = bytes_to_move<element>(s, budget, options.zero_emptied);
  sums const all = print_kernels(least);
  print_all(std::string(name) + ", " + std::to_string(n) + " to " + std::to_string(budget), least, all);
  if (all.moved > most.moved * least || all.launches > most.launches) {
    std::printf("| more than %.2f, or more than %.0f launches |\n", most.moved, most.launches);
    most.kept = false;
  }
  if (kept == 0)
    std::printf("| %.1f bytes moved an entry of the budget |\n", all.moved / (1.0 * heads * budget));
  cache.sync_lengths(0);
  if (cache.longest(0) != budget) std::printf("| %u entries are left |\n", cache.longest(0));

  if constexpr (!decltype(cache)::shares) {
    std::uint32_t const parts = kvmeld::max_of(1u, 2 * multiprocessors() / heads);
    std::size_t const floats = kvmeld::attention::split_floats(s, parts, 1, 1);
    device_array<float> memory(floats);
    device_array<element> q(s.query_heads() * channels), out(s.query_heads() * channels);
    fill(q.data(), s.query_heads() * channels, 4u);
    emulator::take_figures();
    kvmeld::attention::attend(cache.executor(), {0, 0, 1},
                              kvmeld::rows_by_token<element const>(q.data(), 1, s.query_heads(), channels),
                              cache.ref(), kvmeld::rows_by_token(out.data(), 1, s.query_heads(), channels),
                              {}, {}, {parts, {memory.data(), floats}});
    double const read = double{heads} * budget * (2 * channels * sizeof(element) + 4);
    sums const step = print_kernels(read);
    print_all(std::string("attend after ") + name, read, step);
  }
}

/// A bound on the command line.
double bound(char const* text) {
  char* end = nullptr;
  double const x = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(x > 0))
    throw tiny_llama::option_error("a bound is '" + std::string(text) + "'; it must be a number above 0");
  return x;
}

}  // namespace

int main(int count, char** arguments) {
  return tiny_llama::run_program("kvmeld_cuda_traffic", [&] {
    std::uint32_t const n = count_argument(count, arguments, 1, 4096, 64, 1u << 20);
    char const* const wanted = count > 2 ? arguments[2] : nullptr;
    if (count > 3) most.moved = bound(arguments[3]);
    if (count > 4) most.launches = bound(arguments[4]);
    std::printf("bfloat16, 1 layer, %u heads of %u channels. `moved`: bytes of sectors over those that must "
                "move at least; `asked`: bytes\n"
                "that loads and stores ask for, over the same; millions of instructions of all threads; "
                "blocks of the "
                "smallest launch.\n\n",
                heads, channels);
    std::printf("| kernel | launches | moved | asked | instructions | blocks |\n|---|---|---|---|---|---|\n");
    run("streaming_llm", wanted, kvmeld::preset::streaming_llm::with_sinks(), n, kept_share);
    run("h2o", wanted, kvmeld::preset::h2o::defaults(), n, kept_share);
    run("kvmerger", wanted, kvmeld::preset::kvmerger::for_budget(), n, kept_share);
    run("chelsea", wanted, kvmeld::preset::chelsea::llama3(), n, kept_share);
    run("chelsea_round", wanted, kvmeld::preset::chelsea::llama3(), n, 0.97);
    run("h2o_to_few", wanted, kvmeld::preset::h2o::defaults(), n, 0);
    run("cam", wanted, kvmeld::preset::cam::over_streaming_llm(), n, kept_share);
    run("ems", wanted, kvmeld::preset::ems::shared(), n, kept_share);
    if (wanted == nullptr) return most.kept ? 0 : 1;  // these compute much, and take minutes for 4096 entries
    kvmeld::rope_params const rope{kvmeld::rope_pairing::half_split};
    auto const snapkv = kvmeld::preset::snapkv::with_window();
    run("leverage", wanted, kvmeld::preset::leverage::with_rope(rope), n, kept_share);
    run("compactor", wanted, kvmeld::preset::compactor::with_rope(rope), n, kept_share);
    run("expected_attention", wanted, kvmeld::preset::expected_attention::with_rope(rope), n, kept_share);
    run("triattention", wanted, kvmeld::preset::triattention::with_rope(rope), n, kept_share);
    run("rkv", wanted, kvmeld::preset::rkv::for_budget(), n, kept_share);
    run("dropkv", wanted, kvmeld::preset::dropkv::with_window(), n, kept_share);
    run("criticalkv", wanted, kvmeld::preset::criticalkv::over(snapkv), n, kept_share);
    run("kvzip", wanted, kvmeld::preset::kvzip::for_budget(), n, kept_share);
    run("attention_matching", wanted, kvmeld::preset::attention_matching::for_budget(), n, kept_share);
    if (!most.asked)
      throw tiny_llama::option_error("preset is '" + std::string(wanted) +
                                     "'; it must be one of the table's, or all");
    return most.kept ? 0 : 1;
  });
}
