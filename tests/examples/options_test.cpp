// The demo's command line: what it takes, and the one sentence by which it refuses.
#include "command_line.hpp"
#include "options.hpp"

#include "files.hpp"
#include "model_files.hpp"

#include <doctest/doctest.h>

using tiny_llama::option_error;

namespace {

tiny_llama::parsed_options parse(std::vector<std::string> const& words) {
  std::vector<char const*> argv{"kvmeld_demo"};
  for (auto const& word : words) {
    argv.push_back(word.c_str());
  }
  return tiny_llama::parse_options(static_cast<int>(argv.size()), argv.data());
}

std::string told(std::vector<std::string> const& words) {
  return test::refusal<option_error>([&] { parse(words); });
}

}  // namespace

TEST_CASE("options: defaults") {
  auto const o = parse({}).chosen;
  auto all = tiny_llama::known_methods();
  CHECK(all.back() == "composed");
  all.pop_back();  // runs when it is asked for, or when a part is named
  CHECK(parse({"--method", "all"}).chosen.methods == all);
  CHECK(o.methods == std::vector<std::string>{"full", "snapkv", "compactor", "kvzip", "attention_matching",
                                              "chelsea", "leverage_dropkv"});
  CHECK(o.budgets == std::vector<double>{0.2, 0.06});
  CHECK(parse({"--context", "512"}).chosen.budgets == std::vector<double>{0.2, 0.08});
  CHECK(parse({"--context", "64", "--needles", "0"}).chosen.budgets == std::vector<double>{0.63});
  CHECK(o.context == 1024);
  CHECK(o.contexts == 12);
  CHECK(o.needles == 4);
  CHECK(o.seed == 1);
  CHECK(o.threads == 0);
  CHECK(o.chunk == 0);
  CHECK(o.text_path() == o.model + "/heldout.txt");
  CHECK(option_error::exit_code == 2);
}

TEST_CASE("options: values") {
  auto const o = parse({"--model",
                        "m",
                        "--text",
                        "t",
                        "--method",
                        "chelsea,full,chelsea",
                        "--budget",
                        "0.1,1,0.1",
                        "--context",
                        "512",
                        "--contexts=2",
                        "--needles",
                        "0",
                        "--seed",
                        "18446744073709551615",
                        "--json",
                        "j",
                        "--calibration",
                        "c.json",
                        "--budget-scope",
                        "layer",
                        "--chart",
                        "c",
                        "--threads",
                        "2"})
                     .chosen;
  CHECK(o.model == "m");
  CHECK(o.text_path() == "t");
  CHECK(o.methods == std::vector<std::string>{"full", "chelsea"});
  CHECK(o.budgets == std::vector<double>{1.0, 0.1});
  CHECK(o.context == 512);
  CHECK(o.contexts == 2);
  CHECK(o.needles == 0);
  CHECK(o.seed == 18446744073709551615u);
  CHECK(o.json == "j");
  CHECK(o.chart == "c");
  CHECK(o.calibration == "c.json");
  CHECK(o.budget_scope == "layer");
  CHECK(o.threads == 2);
  auto const composed = parse({"--score", "local", "--merge", "average"}).chosen;
  CHECK(composed.methods == std::vector<std::string>{"full", "composed"});
  CHECK((composed.score == "local" && composed.select == "top" && composed.merge == "average"));
  auto const beside = parse({"--method", "h2o", "--identify", "evict_rest"}).chosen;
  CHECK(beside.methods == std::vector<std::string>{"h2o", "composed"});
  CHECK(beside.identify == "evict_rest");
  CHECK(test::has(parse({"--help"}).help, "--budget"));
  CHECK(parse({}).help.empty());
  CHECK(parse({"--chunk", "64"}).chosen.chunk == 64);
}

TEST_CASE("options: refusals") {
  CHECK(told({"--method", "h2o,foo"}) ==
        "--method is 'h2o,foo'; it must be full, streaming_llm, h2o, scissorhands, snapkv, tova, chunkkv, "
        "criticalkv, "
        "knorm, lagkv, keydiff, leverage, expected_attention, triattention, rkv, dropkv, compactor, kvzip, "
        "kvzip_centroids, "
        "kvzip_plus, learned, learned_centroids, learned_leverage, "
        "attention_matching, leverage_fitted, d2o, cam, "
        "keepkv, kvmerger, ems, ems_collapsed, chelsea, chelsea_flat, leverage_dropkv, keydiff_merging, "
        "leverage_merging, triattention_merging, rkv_merging, dropkv_merging, composed, several of "
        "them separated by "
        "commas, or all.");
  CHECK(told({"--select", ""}) == "--select is ''; it must be a name.");
  for (char const* bad :
       {"0", "-0.5", "1.01", "nan", "inf", "1e999", "0.5,", ",", "0.5 ", " 0.5", "0.5;0.2", "50%"}) {
    CHECK(told({std::string("--budget=") + bad}) ==
          "--budget is '" + std::string(bad) +
              "'; it must be shares above 0 and up to 1, separated by commas.");
  }
  CHECK(test::has(told({"--budget", ""}), "--budget is ''; it must be shares above 0"));
  CHECK(told({"--context", "63"}) == "--context is '63'; it must be a whole number from 64 to 1048576.");
  CHECK(test::has(told({"--context", "1e3"}), "--context is '1e3'"));
  CHECK(told({"--context", "100"}) == "--context is '100'; it must be at least 292 with --needles 4.");
  CHECK(told({"--context", "512", "--budget", "0.5,0.06"}) ==
        "--budget is 0.06, which keeps 30 of --context 512 entries; it must be a share that keeps at least "
        "40.");
  CHECK(told({"--contexts", "0"}) == "--contexts is '0'; it must be a whole number from 1 to 10000.");
  CHECK(told({"--needles", "33"}) == "--needles is '33'; it must be a whole number from 0 to 32.");
  CHECK(test::has(told({"--needles=-1"}), "--needles is '-1'"));
  CHECK(test::has(told({"--seed", "18446744073709551616"}),
                  "--seed is '18446744073709551616'; it must be a whole number from 0 to"));
  CHECK(test::has(told({"--threads", "2000"}),
                  "--threads is '2000'; it must be a whole number from 0 to 1024"));
  for (char const* path : {"--model", "--text", "--json", "--chart", "--calibration"}) {
    CHECK(told({path, ""}) == std::string(path) + " is ''; it must be a path.");
  }
  for (char const* bad : {"0", "-1", "1e", "", "nan"}) {
    CHECK(test::refusal<option_error>([&] { tiny_llama::positive_number("--apart", bad); }) ==
          "--apart is '" + std::string(bad) + "'; it must be a number above 0 and below 1e30.");
  }
  CHECK(told({"--chunk", "0"}) == "--chunk is '0'; it must be a whole number from 1 to 1048576.");
  CHECK(told({"--chunk", "8", "--calibration", "c.json"}) ==
        "--chunk is '8'; it must be given without --calibration, whose shares are of a whole context.");
  CHECK(told({"--budget-scope", "rank"}) ==
        "--budget-scope is 'rank'; it must be head, layer or all_layers.");
  for (char const* bad : {"-1", "", "+1", "1e3", "0x1"}) {
    CHECK(told({"--seed", bad}) ==
          "--seed is '" + std::string(bad) + "'; it must be a whole number from 0 to 18446744073709551615.");
  }
  CHECK(told({"--foo"}) == "'--foo' is unknown; it must be an option that --help lists.");
  CHECK(told({"--foo=3", "--seed", "1"}) == "'--foo=3' is unknown; it must be an option that --help lists.");
  CHECK(told({"stray"}) == "'stray' is unknown; it must be an option that --help lists.");
  CHECK(told({"--context"}) == "--context has no value; it must have one.");
  CHECK(told({"--seed", "1", "--seed", "2"}) == "--seed is given 2 times; it must be given at most once.");
}

TEST_CASE("options: files to write are tried before, and left as they are") {
  test::temporary_folder folder;
  auto const told_of = [](std::string const& path) {
    return test::refusal<option_error>([&] { tiny_llama::expect_writable("--json", path); });
  };
  CHECK(
      told_of(folder / "no/report.json") ==
      "--json is " + tiny_llama::in_quotes(folder / "no/report.json") +
          "; it must be a file in a folder that exists and that can be written (No such file or directory).");
  CHECK(test::has(told_of(folder.path()), "--json is "));
  std::string const there = folder.write("there.json", "old");
  tiny_llama::expect_writable("--json", there);
  CHECK(tiny_llama::read_file(there, 10) == "old");
  tiny_llama::expect_writable("--json", folder / "new.json");
  std::size_t files = 0;
  for (auto const& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.path().empty() ? 0 : 1;
  }
  CHECK(files == 1);  // nothing is left of the trial
}

TEST_CASE("options: tasks of a file, or planted numbers") {
  test::temporary_folder const folder;
  CHECK(parse({"--model", folder.path()}).chosen.tasks_path().empty());
  std::string const beside = folder.write("tasks.jsonl", "");
  CHECK(parse({"--model", folder.path()}).chosen.tasks_path() == beside);
  CHECK(parse({"--model", folder.path(), "--tasks", "t"}).chosen.tasks_path() == "t");
  for (std::string const option : {"--text", "--context", "--needles"}) {
    std::string const value = option == "--text" ? "t" : option == "--needles" ? "1" : "512";
    CHECK(parse({"--model", folder.path(), option, value}).chosen.tasks_path().empty());
    CHECK(told({"--tasks", "t", option, value}) == "--tasks is 't'; it must be given without --text, "
                                                   "--context and --needles: it has contexts of its own.");
  }
  auto const o =
      parse({"--tasks", "t", "--budget", "0.01"}).chosen;  // how long contexts are is not known yet
  CHECK(
      test::refusal<option_error>([&] { tiny_llama::check_budgets(o, 100, "t's shortest context's 100"); }) ==
      "--budget is 0.01, which keeps 1 of t's shortest context's 100 entries; it must be a share that keeps "
      "at least 40.");
}

TEST_CASE("options: texts that go on") {
  CHECK(!parse({}).chosen.goes_on());
  auto const turns = parse({"--turns", "10"}).chosen;
  CHECK(turns.goes_on());
  CHECK((turns.turns == 10 && turns.length() == 1536 && turns.contexts == 12 && turns.chunk == 0));
  CHECK(turns.methods == std::vector<std::string>{"full", "streaming_llm", "snapkv", "chelsea",
                                                  "leverage_dropkv", "leverage_merging"});
  CHECK(turns.budgets == std::vector<double>{0.2});
  CHECK(turns.tasks_path().empty());
  CHECK(parse({"--turns", "4", "--context", "800", "--chunk", "32"}).chosen.length() == 800);
  for (std::string const mode : {"--generate", "--read"}) {
    auto const o = parse({mode, "5000"}).chosen;
    CHECK((mode == "--read" ? o.read : o.generate) == 5000);
    CHECK((o.length() == 5000 && o.contexts == 1 && o.chunk == 64 && o.positions.empty()));
    auto const more = parse({mode, "600", "--contexts", "3", "--chunk", "16", "--positions", "renumbered",
                             "--method", "h2o", "--budget", "0.5"})
                          .chosen;
    CHECK((more.contexts == 3 && more.chunk == 16 && more.positions == "renumbered"));
    CHECK(more.methods == std::vector<std::string>{"h2o"});
    CHECK(more.budgets == std::vector<double>{0.5});
    CHECK(told({mode, "511"}) == mode + " is '511'; it must be a whole number from 512 to 1048576.");
    CHECK(told({mode, "600", "--context", "512"}) ==
          "--context is '512'; it must be given without " + mode + ".");
  }
  CHECK(parse({"--turns", "3", "--score", "local"}).chosen.methods ==
        std::vector<std::string>{"full", "composed"});
  CHECK(told({"--turns", "1"}) == "--turns is '1'; it must be a whole number from 2 to 32.");
  CHECK(told({"--turns", "20", "--context", "500"}) ==
        "--context is '500'; it must be at least 1204 with --turns 20.");
  CHECK(told({"--turns", "2", "--read", "600"}) == "--read is '600'; it must be given without --turns.");
  CHECK(told({"--positions", "kept"}) ==
        "--positions is 'kept'; it must be given with --turns, --generate or --read.");
  CHECK(parse({"--turns", "10", "--shared", "4"}).chosen.shared == 4);
  CHECK(told({"--shared", "4"}) == "--shared is '4'; it must be given with --turns.");
  CHECK(told({"--turns", "4", "--shared", "4"}) ==
        "--shared is '4'; it must be less than --turns, which is 4.");
  CHECK(told({"--turns", "20", "--shared", "7"}) == "--shared is '7'; it must be at least 8 with --turns 20, "
                                                    "because there are 32 names to tell numbers of.");
  CHECK(told({"--turns", "10", "--shared", "4", "--positions", "renumbered"}) ==
        "--shared is '4'; it must be given without --positions renumbered, since what is shared is frozen.");
  CHECK(told({"--turns", "3", "--positions", "turned"}) ==
        "--positions is 'turned'; it must be kept or renumbered.");
  for (std::string const option : {"--needles", "--tasks", "--chart", "--calibration"}) {
    CHECK(told({"--turns", "3", option, "1"}) == option + " is '1'; it must be given without --turns.");
  }
}
