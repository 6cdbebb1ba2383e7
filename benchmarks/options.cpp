#include "options.hpp"

#include <string>

namespace kvmeld_bench {

char const* usage() {
  return "kvmeld_bench [--quick] [--json PATH] [--filter TEXT] [--threads N]\n"
         "  Times every stage of a compression, whole compressions by every preset, and attention.\n"
         "  --quick        1024 and 4096 entries only, fewer repetitions\n"
         "  --json PATH    also write the figures to PATH\n"
         "  --filter TEXT  only rows whose \"name entries dtype\" contains TEXT, such as compress/chelsea or "
         "bf16;\n"
         "                 given several times: rows that contain any of the texts\n"
         "  --threads N    threads of the library, the copy and the BLAS alike; default: all\n"
         "  --help         this text\n";
}

namespace {

std::uint32_t parse_threads(std::string const& text) {
  bool const digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  unsigned long const n = digits && text.size() <= 4 ? std::stoul(text) : 0;
  if (n < 1 || n > 1024) throw bad_arguments("--threads is '" + text + "'; allowed are 1 to 1024.");
  return static_cast<std::uint32_t>(n);
}

}  // namespace

options parse_options(int count, char const* const* arguments) {
  options o;
  for (int i = 1; i < count; ++i) {
    std::string const name = arguments[i];
    auto const value = [&]() -> std::string {
      if (i + 1 == count || arguments[i + 1][0] == '\0') {
        throw bad_arguments(name + " needs a value after it; see --help.");
      }
      return arguments[++i];
    };
    if (name == "--help" || name == "-h") {
      o.help = true;
    } else if (name == "--quick") {
      o.quick = true;
    } else if (name == "--json") {
      o.json = value();
    } else if (name == "--filter") {
      o.filters.push_back(value());
    } else if (name == "--threads") {
      o.threads = parse_threads(value());
    } else {
      throw bad_arguments("There is no argument '" + name + "'; see --help.");
    }
  }
  return o;
}

}  // namespace kvmeld_bench
