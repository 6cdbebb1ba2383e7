// The command line of the paged engine's programs on hosts, which choose a policy.
#pragma once

#include "workload_options.hpp"

#include <demo/methods.hpp>
#include <tiny_llama/command_line.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace paged_engine {

constexpr std::uint32_t usual_trigger = 384, usual_budget = 192;

struct program_options : workload_options {
  std::string policy = "chelsea";

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
                                              "leverage_dropkv",
                                              "streaming_llm",
                                              "keydiff_merging",
                                              "leverage_merging"};
  return names;
}

/// As declare_workload, and how sequences shrink; `several`: by names between commas.
inline void declare(tiny_llama::command_line& line, program_options& o, bool several = false) {
  o.engine.sizes.pages = 160;
  o.engine.sizes.slots = 6;
  o.engine.trigger = usual_trigger;
  o.engine.budget = usual_budget;
  declare_workload(line, o);
  line.add("--policy", "NAMES",
           "how sequences shrink" +
               std::string(several ? "; with --compare, one or several, separated by commas" : "") + " [" +
               o.policy + "]",
           [&o, several](std::string const& v) {
             auto const& known = serving_policies();
             for (std::string const& name : several ? tiny_llama::split_at_commas(v) : std::vector{v}) {
               if (std::find(known.begin(), known.end(), name) != known.end()) continue;
               std::string all;
               for (std::string const& one : known) all += (all.empty() ? "" : ", ") + one;
               tiny_llama::refuse_option("--policy", v, (several ? "one or several of " : "one of ") + all);
             }
             o.policy = v;
           });
}

}  // namespace paged_engine
