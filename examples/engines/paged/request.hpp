// What is asked of the engine, and what becomes of it.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paged_engine {

struct request {
  std::uint32_t id = 0;
  std::vector<int> prompt;
  std::uint32_t shared_tokens = 0;  ///< so many at the beginning may be others' too (a system prompt)
  std::uint32_t max_new = 0;
};

/// A request on its way. Its K and V are of the first `done` tokens; the others are still to be read, one at
/// least.
struct sequence {
  request asked;
  std::vector<int> tokens;  ///< prompt and answer
  std::uint32_t done = 0;
  std::vector<std::uint32_t> pages;
  std::uint32_t slot = 0;
  std::uint32_t arrival = 0;  ///< the smaller, the earlier: the latest is preempted first

  // While it waits: what a preemption by saving left.
  std::vector<std::byte> ledger;
  std::vector<kvmeld::float16> rows;
  std::uint32_t saved_pages = 0;

  std::uint32_t preemptions = 0, compressions = 0, drafts = 0, accepted = 0;

  bool reads_prompt() const { return done < asked.prompt.size(); }
  std::uint32_t answered() const { return static_cast<std::uint32_t>(tokens.size() - asked.prompt.size()); }
  bool finished() const { return answered() >= asked.max_new; }
};

}  // namespace paged_engine
