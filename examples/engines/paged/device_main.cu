// The paged engine with its pages, its tables, its attention kernel and kvmeld on a device; compared with the
// host's.
#include "device_kv.cuh"
#include "engine.hpp"
#include "host_kv.hpp"
#include "serve.hpp"
#include "workload_options.hpp"

#include <tiny_llama/files.hpp>
#include <tiny_llama/program.hpp>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace paged_engine;

struct device_options : workload_options {
  std::uint32_t same = 0;  ///< answers that have to be the host's; 0: half of them
  float apart = 0.02f;     ///< and by how much a logit of these may differ
};

/// The logits that each answer was made from, by request.
using all_logits = std::map<std::uint32_t, std::vector<float>>;

template <class Engine> void keep_logits(Engine& e, int vocabulary, all_logits& out) {
  e.watch([&out, vocabulary](sequence const& s, float const* logits) {
    std::vector<float>& all = out[s.asked.id];
    all.insert(all.end(), logits, logits + vocabulary);
  });
}

/// The largest difference of two logits; none where there are not as many.
float farthest(std::vector<float> const& a, std::vector<float> const& b) {
  float most = a.size() == b.size() ? 0.0f : FLT_MAX;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

int run(device_options const& o) {
  tiny_llama::model model = tiny_llama::model::load(o.model);
  std::string const text = tiny_llama::read_file(o.model + "/heldout.txt", 1u << 30);
  auto const work = make_workload(text, o.requests, o.context, o.seed);
  auto const pins = [](std::uint32_t n, double share) { return kvmeld::quantity::at_most(n, share); };
  auto const policy =
      kvmeld::preset::chelsea::with_schedule({0.25, 0.0, 0, 0.25}, pins(16, 0.25), pins(64, 1.0 / 3));

  engine<device_kv<kvmeld::preset::chelsea::type>> device(model, o.engine, policy);
  all_logits far_logits, logits;
  keep_logits(device, model.shape().vocab, far_logits);
  served const there = serve(device, work, nullptr);
  print_summary(std::cout, device, there);
  engine<host_kv<kvmeld::preset::chelsea::type>> host(model, o.engine, policy);
  keep_logits(host, model.shape().vocab, logits);
  served const here = serve(host, work, nullptr);
  std::size_t same = 0;
  float off = 0.0f;
  for (auto const& [id, tokens] : here.tokens) {
    if (tokens != there.tokens.at(id)) continue;
    float const apart = farthest(logits[id], far_logits[id]);
    off = std::max(off, apart);
    same += apart <= o.apart ? 1 : 0;
  }
  std::cout << same << " of " << here.tokens.size()
            << " answers are those of the host, whose sums are rounded in another order; logits of the same "
               "tokens differ by "
            << off << " at most\n";
  if (device.sums().compressions == 0) {
    std::cerr << "kvmeld_paged_device: nothing was merged; give a smaller --trigger\n";
    return 1;
  }
  return o.same != 0 ? same < o.same : 2 * same < here.tokens.size();
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_paged_device", [&] {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      std::cout << "SKIPPED: there is no CUDA device here\n";
      return 77;
    }
    device_options o;
    o.requests = 8;
    o.context = 200;
    o.engine.sizes.pages = 80;
    o.engine.sizes.slots = 4;
    o.engine.sizes.capacity = 512;
    o.engine.trigger = 256;
    o.engine.budget = 128;
    tiny_llama::command_line line(
        "The paged engine with its pages and kvmeld on a device, beside the same on the host");
    declare_workload(line, o);
    add_count(line, "--same", "answers that have to be the host's; 0: half of them", o.same, 0, 1 << 20);
    line.add("--apart", "X", "by how much a logit of these may differ [0.02]", [&o](std::string const& v) {
      o.apart = static_cast<float>(tiny_llama::positive_number("--apart", v));
    });
    return tiny_llama::shows_help(line.parse(argc, argv)) ? 0 : run(o);
  });
}
