// The command line of the paged engine's programs on hosts, which choose a policy.
#pragma once

#include "workload_options.hpp"

#include <demo/methods.hpp>
#include <tiny_llama/command_line.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace paged_engine {

struct program_options : workload_options {
  std::string policy = "chelsea";
  std::vector<double> shares;  ///< not empty: a comparison of them
  std::uint32_t answer = 24;
  std::string json;
  std::uint64_t soak = 0;
  bool quiet = false;

  kvmeld::compose::composed how() const { return demo::policy_of(policy, {}); }
};

/// Policies that read a prompt once and keep no entries that several tokens share.
inline std::vector<std::string> const& serving_policies() {
  static std::vector<std::string> const names{"chelsea",
                                              "kvmerger",
                                              "d2o",
                                              "keepkv",
                                              "ems_collapsed",
                                              "cam",
                                              "h2o",
                                              "scissorhands",
                                              "snapkv",
                                              "keydiff",
                                              "lagkv",
                                              "leverage",
                                              "expected_attention",
                                              "recommended",
                                              "streaming_llm",
                                              "keydiff_merging",
                                              "leverage_merging"};
  return names;
}

/// As declare_workload, and how sequences shrink.
inline void declare(CLI::App& app, program_options& o) {
  o.engine.sizes.pages = 160;
  o.engine.sizes.slots = 6;
  o.engine.trigger = 384;
  o.engine.budget = 192;
  declare_workload(app, o);
  app.add_option("--policy", o.policy,
                 "how sequences shrink; with --compare, one or several, separated by commas")
      ->check([](std::string const& names) {
        for (std::string const& name : tiny_llama::split_at_commas(names)) {
          auto const& known = serving_policies();
          if (std::find(known.begin(), known.end(), name) == known.end())
            return "'" + names + "'; it must be one or several of " + CLI::detail::join(known, ", ");
        }
        return std::string();
      })
      ->capture_default_str();
  CLI::Option* const compares =
      app.add_option(
             "--compare", o.shares,
             "instead, the same requests, all at once, without compression and with budgets of these "
             "shares of the "
             "mean prompt, separated by commas; a sequence is compressed when it has grown by --chunk")
          ->delimiter(',')
          ->check(CLI::Range(0.01, 1.0));
  app.add_option("--answer", o.answer, "tokens of the shortest answer; the longest has 39 more")
      ->check(CLI::Range(5u, 400u))
      ->capture_default_str();
  app.add_option("--json", o.json, "write the figures of --compare as JSON")->needs(compares);
  for (char const* other : {"--budget", "--trigger"}) compares->excludes(app.get_option(other));
  app.add_flag("--quiet", o.quiet, "no table of what is running");
}

}  // namespace paged_engine
