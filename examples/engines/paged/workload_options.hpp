// The options that all of the paged engine's programs have: what arrives, and what the engine is built for.
#pragma once

#include "engine_options.hpp"

#include <tiny_llama/command_line.hpp>

#include <cstdint>
#include <string>

namespace paged_engine {

struct workload_options {
  engine_options engine;
  std::string model = "examples/data/tiny-kjv";
  std::uint32_t requests = 16, context = 320;
  std::uint64_t seed = 1;
};

/// Adds an option that is a whole number from `least` to `most`; the value it has now is its default.
inline void add_count(tiny_llama::command_line& line, char const* name, std::string const& help,
                      std::uint32_t& count, int least, int most) {
  line.add(name, "N", help + " [" + std::to_string(count) + "]", [=, &count](std::string const& v) {
    count = static_cast<std::uint32_t>(tiny_llama::small_number(name, v, least, most));
  });
}

/// Declares the options, the values they have now as defaults.
inline void declare_workload(tiny_llama::command_line& line, workload_options& o) {
  constexpr int many = 1 << 20;
  line.add("--model", "DIR", "folder with config.json, model.safetensors and heldout.txt [" + o.model + "]",
           [&o](std::string const& v) { o.model = tiny_llama::some_path("--model", v); });
  add_count(line, "--requests", "how many arrive", o.requests, 1, many);
  add_count(line, "--context", "tokens of the shortest prompt; the longest is twice that", o.context, 128,
            800);
  add_count(line, "--trigger", "entries at which a sequence is merged; 0: never", o.engine.trigger, 0, many);
  add_count(line, "--budget", "entries it is merged to", o.engine.budget, 1, many);
  add_count(line, "--pages", "pages of the pool", o.engine.sizes.pages, 1, many);
  add_count(line, "--page-size", "tokens of a page", o.engine.sizes.page_size, 1, 256);
  add_count(line, "--slots", "sequences at a time", o.engine.sizes.slots, 1, 256);
  add_count(line, "--chunk", "tokens of a prompt read in one step", o.engine.chunk, 1, many);
  add_count(line, "--drafts", "tokens guessed per step; 0: none", o.engine.drafts, 0, 64);
  line.add("--preemption", "NAME",
           "what becomes of a sequence whose pages are taken: save or recompute [save]",
           [&o](std::string const& v) {
             if (v != "save" && v != "recompute")
               tiny_llama::refuse_option("--preemption", v, "save or recompute");
             o.engine.preempted = v == "save" ? preemption::save : preemption::recompute;
           });
  line.add("--seed", "N", "of the requests [" + std::to_string(o.seed) + "]",
           [&o](std::string const& v) { o.seed = tiny_llama::seed_number("--seed", v); });
}

}  // namespace paged_engine
