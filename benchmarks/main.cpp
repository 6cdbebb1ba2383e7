// Times kvmeld's stages and presets on this machine and compares them with memcpy, plain reads and OpenBLAS.
#include "features.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "options.hpp"
#include "presets.hpp"
#include "report.hpp"
#include "session.hpp"
#include "stages.hpp"
#include "tensors.hpp"
#include "yardstick.hpp"

#include <tiny_llama/output_file.hpp>
#include <tiny_llama/program.hpp>

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/element.hpp>

#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace kvmeld_bench;

template <class T> void run_all(session& s, std::uint32_t n, char const* dtype) {
  tensors<T> x(n, s.threads(), dtype);
  if (n <= 262144) run_stages(s, x);
  run_presets(s, x);
  if constexpr (std::is_same_v<T, kvmeld::bfloat16>) run_features(s, x);
}

int run(options const& o) {
  if (!o.json.empty()) {  // a path that cannot be written is worth no run
    if (std::string const problem = tiny_llama::output_problem(o.json); !problem.empty())
      throw bad_arguments("The file '" + o.json + "' cannot be written (" + problem + ").");
  }
  session s(o, kvmeld::host_executor(o.threads).workers());
  std::vector<std::uint32_t> const lengths =
      o.quick ? std::vector<std::uint32_t>{1024, 4096}
              : std::vector<std::uint32_t>{4096, 16384, 65536, 262144, 1048576};
  for (std::uint32_t n : lengths) {
    run_all<float>(s, n, "f32");
    run_all<kvmeld::bfloat16>(s, n, "bf16");
  }
  if (s.rows().empty()) {
    std::string all;
    for (std::string const& filter : o.filters) all += " '" + filter + "'";
    throw bad_arguments("No row matches --filter" + all + ".");
  }
  remember_workspace(s);
  report const figures{describe_machine(s.threads()), s.rows(), s.memory()};
  figures.print(std::cout);
  if (!o.json.empty()) {
    std::ostringstream json;
    figures.write_json(json);
    tiny_llama::write_file(o.json, json.str());
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  return tiny_llama::run_program("kvmeld_bench", [&] {
    options const o = parse_options(count, arguments);
    if (o.help) {
      std::cout << usage();
      return 0;
    }
    restart_for_blas(arguments);
    return run(o);
  });
}
