// What an engine is built for, what it refuses, and what it counts.
#pragma once

#include "batch.hpp"
#include "request.hpp"

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace paged_engine {

/// What becomes of a sequence whose pages another one needs.
enum class preemption {
  recompute,  ///< its tokens are read again later
  save,       ///< rows and ledger wait in other memory
};

struct engine_options {
  kv_sizes sizes;
  std::uint32_t batch_tokens = 256;  ///< of one step, at most
  std::uint32_t chunk = 128;         ///< of one prompt in a step, at most
  std::uint32_t trigger = 0,
                budget = 0;  ///< at so many entries a sequence is merged down to so many; 0: never
  std::uint32_t drafts = 3, draft_words = 3;  ///< guesses per step, and how many words have to match
  preemption preempted = preemption::save;
};

struct totals {
  std::uint64_t steps = 0, tokens = 0, read_again = 0, prefix_tokens = 0, preemptions = 0, compressions = 0,
                drafts = 0, accepted = 0, pages_returned = 0;

  totals& operator+=(totals const& o) {
    steps += o.steps;
    tokens += o.tokens;
    read_again += o.read_again;
    prefix_tokens += o.prefix_tokens;
    preemptions += o.preemptions;
    compressions += o.compressions;
    drafts += o.drafts;
    accepted += o.accepted;
    pages_returned += o.pages_returned;
    return *this;
  }
};

/// Why an engine cannot be built so; empty if it can.
inline std::string options_problem(engine_options const& o) {
  if (o.trigger != 0 && (o.budget == 0 || o.budget >= o.trigger)) {
    return "engine: budget is " + std::to_string(o.budget) + "; it must be at least 1 and below " +
           std::to_string(o.trigger) + ", the trigger";
  }
  return {};
}

/// Why a request could never run; empty if it can.
inline std::string request_problem(request const& r, engine_options const& o, std::uint32_t max_positions) {
  auto const last = static_cast<std::uint32_t>(r.prompt.size()) + r.max_new;
  std::uint32_t const most = o.trigger == 0 ? last : std::min(last, o.trigger);
  std::uint32_t const pages = kvmeld::ceil_div(most, o.sizes.page_size);
  if (r.prompt.empty() || r.max_new == 0) return "the prompt is empty or nothing new is asked for";
  if (last > max_positions) {
    return std::to_string(last) + " tokens; the model allows " + std::to_string(max_positions);
  }
  if (most > o.sizes.capacity)
    return std::to_string(most) + " entries; the capacity is " + std::to_string(o.sizes.capacity);
  if (pages > o.sizes.pages)
    return std::to_string(pages) + " pages; the pool has " + std::to_string(o.sizes.pages);
  if (o.trigger != 0 && r.shared_tokens > o.budget / 2) {
    return "shared_tokens is " + std::to_string(r.shared_tokens) + "; it must be at most " +
           std::to_string(o.budget / 2) +
           ", half the budget, because they stay whole and policies pin recent "
           "entries too";
  }
  return {};
}

}  // namespace paged_engine
