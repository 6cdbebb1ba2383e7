// A server's inner loop in small: requests of different length arrive and leave, prompts are read in chunks
// beside answers, system prompts share pages, drafts are verified, sequences are preempted, and merging gives
// their pages back.
#include "comparison.hpp"
#include "host_engine.hpp"
#include "options.hpp"
#include "serve.hpp"
#include "soak.hpp"

#include <tiny_llama/files.hpp>
#include <tiny_llama/progress.hpp>

#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

namespace {

using namespace paged_engine;

int run_soak(program_options const& o) {
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

int run_comparison(tiny_llama::model& model, std::string const& text, program_options const& o) {
  if (!o.json.empty()) tiny_llama::expect_writable("--json", o.json);
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

int run(program_options const& o) {
  if (o.soak != 0) return run_soak(o);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  std::string const text = tiny_llama::read_file(o.model + "/heldout.txt", 1u << 30);
  if (!o.shares.empty()) return run_comparison(model, text, o);
  if (tiny_llama::split_at_commas(o.policy).size() != 1)
    tiny_llama::refuse_option("--policy", o.policy, "one name without --compare");
  auto const work = make_workload(text, o.requests, o.context, o.seed, o.answer);
  host_engine e(model, o.engine, o.how());
  live_table table(std::cerr);
  served const r = serve(e, work, o.quiet ? nullptr : &table);
  print_summary(std::cout, e, r);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  program_options o;
  CLI::App app("Continuous batching over pages, with sequences that are merged in place");
  declare(app, o);
  app.add_option("--soak", o.soak, "instead, so many random requests on a random model, every page watched")
      ->excludes(app.get_option("--compare"));
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (std::exception const& problem) {
    std::cerr << "kvmeld_paged: " << problem.what() << "\n";
    return 1;
  }
}
