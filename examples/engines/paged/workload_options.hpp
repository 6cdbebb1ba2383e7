// The options that all of the paged engine's programs have: what arrives, and what the engine is built for.
#pragma once

#include "engine_options.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace paged_engine {

struct workload_options {
  engine_options engine;
  std::string model = "examples/data/tiny-kjv";
  std::uint32_t requests = 16, context = 320;
  std::uint64_t seed = 1;
};

/// Declares the options, the values they have now as defaults; CLI11 refuses what is out of range by name,
/// value and what is allowed.
inline void declare_workload(CLI::App& app, workload_options& o) {
  auto const at_least_one = CLI::Range(1u, 1u << 20);
  app.add_option("--model", o.model, "folder with config.json, model.safetensors and heldout.txt")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--requests", o.requests, "how many arrive")->check(at_least_one)->capture_default_str();
  app.add_option("--context", o.context, "tokens of the shortest prompt; the longest is twice that")
      ->check(CLI::Range(128u, 800u))
      ->capture_default_str();
  app.add_option("--trigger", o.engine.trigger, "entries at which a sequence is merged; 0: never")
      ->check(CLI::Range(0u, 1u << 20))
      ->capture_default_str();
  app.add_option("--budget", o.engine.budget, "entries it is merged to")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--pages", o.engine.sizes.pages, "pages of the pool")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--page-size", o.engine.sizes.page_size, "tokens of a page")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  app.add_option("--slots", o.engine.sizes.slots, "sequences at a time")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  app.add_option("--chunk", o.engine.chunk, "tokens of a prompt read in one step")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--drafts", o.engine.drafts, "tokens guessed per step; 0: none")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--preemption",
         [&o](std::string const& how) {
           o.engine.preempted = how == "save" ? preemption::save : preemption::recompute;
         },
         "what becomes of a sequence whose pages are taken: save or recompute")
      ->check(CLI::IsMember({"save", "recompute"}));
  app.add_option("--seed", o.seed, "of the requests")->capture_default_str();
}

}  // namespace paged_engine
