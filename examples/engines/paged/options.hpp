// The command line of the paged engine's programs on hosts, which choose a policy.
#pragma once

#include "workload_options.hpp"

#include <demo/methods.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace paged_engine {

struct program_options : workload_options {
  std::string policy = "chelsea";
  std::uint64_t soak = 0;
  bool quiet = false;

  kvmeld::compose::composed how() const { return demo::policy_of(policy, {}); }
};

/// As declare_workload, and how sequences shrink.
inline void declare(CLI::App& app, program_options& o) {
  o.engine.sizes.pages = 160;
  o.engine.sizes.slots = 6;
  o.engine.trigger = 384;
  o.engine.budget = 192;
  declare_workload(app, o);
  app.add_option("--policy", o.policy, "how sequences shrink")
      ->check(CLI::IsMember({"chelsea", "kvmerger", "d2o", "keepkv", "ems_collapsed", "cam", "h2o",
                             "scissorhands", "snapkv", "streaming_llm"}))
      ->capture_default_str();
  app.add_flag("--quiet", o.quiet, "no table of what is running");
}

}  // namespace paged_engine
