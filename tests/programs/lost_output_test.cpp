// Every program of this build ends with a failure if its output was lost.
#include "run_program.hpp"

#include <map>

using test::standard_output;

namespace {

/// Arguments with which a program prints and soon ends: --help, or for those without options what is short.
std::vector<std::string> brief(std::string const& name) {
  static std::map<std::string, std::vector<std::string>> const others{{"kvmeld_c_overhead", {"1"}},
                                                                      {"example_choose_at_run_time", {}},
                                                                      {"example_kokkos_llama3_bulk", {"512"}},
                                                                      {"kvmeld_kokkos_bench", {"512"}}};
  auto const found = others.find(name);
  return found != others.end() ? found->second : std::vector<std::string>{"--help"};
}

}  // namespace

TEST_CASE("programs: output that was lost is a failure") {
  REQUIRE(test::all_programs().size() > 10);
  for (std::string const& program : test::all_programs()) {
    std::string const name = test::name_of(program);
    if (name == "kvmeld_kept_sets") continue;  // it prints nothing
    INFO(name);
    std::vector<std::string> const arguments = brief(name);
    test::ended const full = test::run(program, arguments, standard_output::full);
    CHECK(full.status == 1);
    if (name != "example_in_c")  // which includes nothing of ours
      CHECK(full.err.find("stdout: not all of the output could be written\n") != std::string::npos);
    CHECK(test::run(program, arguments, standard_output::closed).status == 1);
    int const without = test::run(program, arguments, standard_output::without_reader).status;
    CHECK((without == 1 || without == 128 + SIGPIPE));
    if (arguments == std::vector<std::string>{"--help"}) CHECK(test::run(program, arguments).status == 0);
  }
}
