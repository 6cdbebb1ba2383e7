// The paged engine with its pages, its tables, its attention kernel and kvmeld on a device; compared with the host's.
#include "device_kv.cuh"
#include "engine.hpp"
#include "host_kv.hpp"
#include "serve.hpp"

#include <tiny_llama/files.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

namespace {

using namespace paged_engine;

int run(std::string const& folder) {
  tiny_llama::model model = tiny_llama::model::load(folder);
  std::string const text = tiny_llama::read_file(folder + "/heldout.txt", 1u << 30);
  auto const work = make_workload(text, 8, 200, 1);
  engine_options o;
  o.sizes.pages = 80;
  o.sizes.slots = 4;
  o.sizes.capacity = 512;
  o.trigger = 256;
  o.budget = 128;
  auto const pins = [](std::uint32_t n, double share) { return kvmeld::quantity::at_most(n, share); };
  auto const policy = kvmeld::preset::chelsea::with_schedule({}, pins(16, 0.25), pins(64, 1.0 / 3));

  engine<device_kv<kvmeld::preset::chelsea::type>> device(model, o, policy);
  served const there = serve(device, work, nullptr);
  print_summary(std::cout, device, there);
  engine<host_kv<kvmeld::preset::chelsea::type>> host(model, o, policy);
  served const here = serve(host, work, nullptr);
  std::size_t same = 0;
  for (auto const& [id, tokens] : here.tokens) same += tokens == there.tokens.at(id) ? 1 : 0;
  std::cout << same << " of " << here.tokens.size()
            << " answers are those of the host, whose sums are rounded in another order\n";
  return 2 * same >= here.tokens.size() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cout << "SKIPPED: there is no CUDA device here\n";
    return 77;
  }
  try {
    return run(argc > 1 ? argv[1] : "examples/data/tiny-kjv");
  } catch (std::exception const& problem) {
    std::cerr << "kvmeld_paged_device: " << problem.what() << "\n";
    return 1;
  }
}
