// Command lines that cannot be right: each ends with one sentence about it, and with no run.
#include "run_program.hpp"

#include <algorithm>
#include <sstream>

namespace {

std::string const nowhere = "/nowhere/at/all";

struct option {
  std::string name, type;
};

/// The options that a program's --help lists, with the type of their value: none, a number, or text.
std::vector<option> options_of(std::string const& program) {
  std::istringstream lines(test::run(program, {"--help"}).out);
  std::vector<option> out;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  --", 0) != 0) continue;
    std::istringstream words(line);
    option o;
    words >> o.name >> o.type;
    o.type = o.type.substr(0, o.type.find_first_of(":="));
    out.push_back(o);
  }
  return out;
}

bool is_number(std::string const& type) {
  for (char const* known : {"N", "X", "SHARE", "SHARES", "RATIOS"})
    if (type == known) return true;
  return false;
}

/// A failure in words: at least one line on stderr, nothing of the C++ runtime, no signal.
void ends_with_a_sentence(test::ended const& e) {
  CHECK(e.status > 0);
  CHECK(e.status < 126);
  CHECK(std::count(e.err.begin(), e.err.end(), '\n') >= 1);
  CHECK(e.err.find("terminate called") == std::string::npos);
  CHECK(e.err.find("std::") == std::string::npos);
}

char const* const with_options[] = {"kvmeld_demo",  "kvmeld_calibrate", "kvmeld_token_major",
                                    "kvmeld_tiled", "kvmeld_paged",     "kvmeld_slot"};

/// What makes an option's own value the first thing that can be wrong, or the last.
std::vector<std::string> beside(std::string const& program, std::string const& option) {
  if (program == "kvmeld_slot") {
    if (option == "--in") return {};
    return {"--in", nowhere};
  }
  if (option == "--model" || program == "kvmeld_paged" || program == "kvmeld_tiled" ||
      program == "kvmeld_token_major")
    return {};
  return {"--model", nowhere};
}

}  // namespace

TEST_CASE("command lines: numbers that are none, or out of range") {
  int tried = 0;
  for (std::string const name : with_options) {
    std::string const program = test::program_called(name);
    std::vector<option> const options = options_of(program);
    REQUIRE(options.size() >= 5);
    for (option const& o : options) {
      if (!is_number(o.type)) continue;
      for (std::string const value : {"-1", "nan", "inf", "-inf", "1e400", "-0.5", "99999999999999999999999",
                                      "", " ", "text", "1 2", "--seed"}) {
        if (o.type == "X" && value[0] == '9') continue;  // a number like any other
        INFO(name << " " << o.name << " '" << value << "'");
        std::vector<std::string> words = beside(name, o.name);
        words.insert(words.end(), {o.name, value});
        test::ended const e = test::run(program, words);
        ends_with_a_sentence(e);
        CHECK(e.status == 2);
        CHECK(e.err.find(o.name) != std::string::npos);
        CHECK(e.out.empty());
        ++tried;
      }
    }
  }
  CHECK(tried > 250);
}

TEST_CASE("command lines: options without a value, given twice, and unknown words") {
  for (std::string const name : with_options) {
    std::string const program = test::program_called(name);
    for (option const& o : options_of(program)) {
      INFO(name << " " << o.name);
      test::ended const e = test::run(program, {o.name});
      ends_with_a_sentence(e);
      CHECK(e.status == 2);
      CHECK(e.err.find(o.name) != std::string::npos);
    }
    for (std::string const word : {"--nothing", "word", "-z"}) {
      INFO(name << " " << word);
      std::vector<std::string> words = beside(name, "");
      words.emplace_back(word);
      ends_with_a_sentence(test::run(program, words));
    }
  }
}

TEST_CASE("command lines: files to read that are none") {
  std::string const model = KVMELD_MODEL_DIR;
  for (std::string const& path :
       {nowhere, std::string("/"), std::string("/dev/null"), std::string("/dev/full"), std::string(),
        std::string(5000, 'x'), model + "/config.json", std::string("/proc/self/mem")}) {
    for (std::string const name : with_options) {
      bool const slot = name == "kvmeld_slot";
      INFO(name << " '" << path << "'");
      ends_with_a_sentence(test::run(test::program_called(name), {slot ? "--in" : "--model", path}));
    }
    INFO("'" << path << "'");
    for (std::string const option : {"--text", "--tasks", "--calibration"}) {
      INFO(option);
      if (option == "--text" && path == model + "/config.json") continue;  // bytes like any other
      ends_with_a_sentence(test::run(test::program_called("kvmeld_demo"), {"--contexts", "1", option, path}));
    }
  }
}

TEST_CASE("command lines: files to write that are none") {
  struct {
    char const *program, *option;
    std::vector<std::string> beside;
  } const cases[] = {{"kvmeld_demo", "--json", {}},
                     {"kvmeld_demo", "--chart", {}},
                     {"kvmeld_calibrate", "--out", {}},
                     {"kvmeld_slot", "--out", {"--in", nowhere, "--kv-heads", "1"}},
                     {"kvmeld_paged", "--json", {"--model", KVMELD_MODEL_DIR, "--compare", "0.5"}}};
  for (auto const& c : cases) {
    for (std::string const& path : {std::string("-"), std::string("/dev/stdout"), std::string("/dev/full"),
                                    std::string("/"), std::string("."), nowhere, std::string(5000, 'x')}) {
      INFO(std::string(c.program) << " " << std::string(c.option) << " '" << path << "'");
      std::vector<std::string> words = c.beside;
      words.insert(words.end(), {c.option, path});
      test::ended const e = test::run(test::program_called(c.program), words);
      ends_with_a_sentence(e);
      CHECK(e.status == 2);
      CHECK(e.err.find(c.option) != std::string::npos);
      CHECK(e.out.empty());
    }
  }
}
