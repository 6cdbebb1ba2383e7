// A server's inner loop in small: requests of different length arrive and leave, prompts are read in chunks
// beside answers, system prompts share pages, drafts are verified, sequences are preempted, and merging gives
// their pages back.
#include "comparison.hpp"
#include "host_engine.hpp"
#include "options.hpp"
#include "serve.hpp"
#include "soak.hpp"

#include <tiny_llama/files.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/progress.hpp>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace paged_engine;

struct own_options : program_options {
  std::vector<double> shares;  ///< not empty: a comparison of them
  std::uint32_t answer = 24, soak = 0;
  std::string json;
};

int run_soak(own_options const& o) {
  tiny_llama::progress bar(std::cerr, static_cast<double>(o.soak));
  soak_result const r = soak(o.soak, o.seed, 40, 20, [&](soak_result const& so_far) {
    bar.update(static_cast<double>(so_far.requests), std::to_string(so_far.engines) + " engines");
  });
  bar.finish();
  std::cout << r.requests << " random requests on " << r.engines << " engines, " << r.sums.steps
            << " steps: " << r.sums.compressions << " compressions, " << r.sums.preemptions
            << " preemptions, " << r.sums.accepted << " of " << r.sums.drafts << " drafts kept, "
            << r.sums.prefix_tokens << " tokens in shared pages; " << r.compared
            << " answers compared with those given alone\n";
  if (r.problem.empty()) {
    std::cout << "no page leaked, none used twice, every compared answer the same\n";
    return 0;
  }
  std::cerr << "found: " << r.problem << "\n";
  return 1;
}

int run_comparison(tiny_llama::model& model, std::string const& text, own_options const& o) {
  auto const work = make_workload(text, o.requests, o.context, o.seed, o.answer, 0);
  std::vector<std::string> const policies = tiny_llama::split_at_commas(o.policy);
  tiny_llama::progress bar(std::cerr, 1.0 + static_cast<double>(policies.size() * o.shares.size()));
  double done = 0;
  comparison const c = compare(model, work, o.engine, policies, o.shares,
                               [&](std::string const& policy) { bar.update(done++, policy); });
  bar.finish();
  print_table(c, std::cout);
  if (o.json.empty()) return 0;
  write_json(c, o.json);
  std::cout << "figures: " << o.json << "\n";
  return 0;
}

void declare_own(tiny_llama::command_line& line, own_options& o) {
  declare(line, o, true);
  line.add("--compare", "SHARES",
           "instead, the same requests, all at once, without compression and with budgets of these shares of "
           "the mean prompt, separated by commas; a sequence is compressed when it has grown by --chunk",
           [&o](std::string const& v) {
             o.shares = tiny_llama::shares_above_zero("--compare", v);
             std::reverse(o.shares.begin(), o.shares.end());
           });
  add_count(line, "--answer", "tokens of the shortest answer; the longest has 39 more", o.answer, 5, 400);
  line.add("--json", "FILE", "write the figures of --compare as JSON",
           [&o](std::string const& v) { o.json = tiny_llama::some_path("--json", v); });
  line.add("--soak", "N", "instead, so many random requests on a random model, every page watched",
           [&o](std::string const& v) {
             o.soak = static_cast<std::uint32_t>(tiny_llama::small_number("--soak", v, 1, 1 << 30));
           });
}

/// Refuses options that contradict each other.
void check_options(own_options const& o) {
  using tiny_llama::refuse_option;
  if (o.shares.empty()) {
    if (!o.json.empty()) refuse_option("--json", o.json, "given with --compare");
    if (tiny_llama::split_at_commas(o.policy).size() != 1)
      refuse_option("--policy", o.policy, "one name without --compare");
    return;
  }
  auto const left_out = [](char const* name, std::uint32_t given, std::uint32_t usual) {
    if (given != usual) refuse_option(name, std::to_string(given), "given without --compare");
  };
  left_out("--budget", o.engine.budget, usual_budget);
  left_out("--trigger", o.engine.trigger, usual_trigger);
  left_out("--soak", o.soak, 0);
  if (!o.json.empty()) tiny_llama::expect_writable("--json", o.json);
}

int run(own_options const& o) {
  check_options(o);
  if (o.soak != 0) return run_soak(o);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  std::string const text = tiny_llama::read_file(o.model + "/heldout.txt", 1u << 30);
  if (!o.shares.empty()) return run_comparison(model, text, o);
  auto const work = make_workload(text, o.requests, o.context, o.seed, o.answer);
  host_engine e(model, o.engine, o.how());
  live_table table(std::cerr);
  served const r = serve(e, work, &table);
  print_summary(std::cout, e, r);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_paged", [&] {
    own_options o;
    tiny_llama::command_line line("Continuous batching over pages, with sequences that are merged in place");
    declare_own(line, o);
    return tiny_llama::shows_help(line.parse(argc, argv)) ? 0 : run(o);
  });
}
