// Requests as a server gets them: system prompts that many share, a text with a number in it, and the
// question for it.
#pragma once

#include "request.hpp"

#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/random.hpp>
#include <tiny_llama/tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paged_engine {

struct workload_item {
  request asked;
  std::string answer;         ///< five digits
  std::uint32_t arrives = 0;  ///< before this step
};

/// `count` requests on held-out text, `context` to twice as many tokens long, two of which arrive every
/// `every` steps. Answers have `answer` to `answer` + 39 tokens.
inline std::vector<workload_item> make_workload(std::string_view text, std::uint32_t count,
                                                std::uint32_t context, std::uint64_t seed,
                                                std::uint32_t answer = 24, std::uint32_t every = 8) {
  constexpr std::uint32_t system_tokens = 64;
  tiny_llama::splitmix64 random(seed);
  std::vector<workload_item> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    tiny_llama::needle_request wanted;
    wanted.context = static_cast<int>(context + random.below(context));
    wanted.needles = 1;
    wanted.continuation = 1;
    wanted.seed = seed;
    wanted.index = i;
    tiny_llama::needle_task const task = tiny_llama::make_needle_task(text, wanted);
    workload_item item;
    item.asked.id = i;
    std::size_t const system = 1000 + 5000 * random.below(2);
    item.asked.prompt = tiny_llama::byte_tokens(std::string(text.substr(system, system_tokens)) +
                                                task.context + task.needles[0].question);
    item.asked.shared_tokens = system_tokens;
    item.asked.max_new = answer + static_cast<std::uint32_t>(random.below(40));
    item.answer = task.needles[0].answer;
    item.arrives = i / 2 * every;
    out.push_back(std::move(item));
  }
  return out;
}

/// How many digits of the answer are right.
inline int right_digits(sequence const& s, std::string const& answer) {
  int right = 0;
  for (std::size_t i = 0; i < answer.size() && i < s.answered(); ++i) {
    right += s.tokens[s.asked.prompt.size() + i] == static_cast<unsigned char>(answer[i]) ? 1 : 0;
  }
  return right;
}

}  // namespace paged_engine
