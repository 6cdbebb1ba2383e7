// What a context is made of: held-out text with planted numbers for byte models, or a context of a file of
// tasks; a stretch of token ids for others.
#pragma once

#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/random.hpp>
#include <tiny_llama/task_file.hpp>
#include <tiny_llama/tokens.hpp>

#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace demo {

struct material {
  std::vector<int> context;
  std::vector<int> continuation;                                 ///< empty: what follows is not known
  std::vector<tiny_llama::needle> needles;                       ///< questions and answers
  std::size_t inside = std::numeric_limits<std::size_t>::max();  ///< so many of them, at most, are also asked
                                                                 ///< inside the prompt
};

/// A context of a file of tasks. One question of it is asked inside the prompt, since each costs a reading.
inline material task_material(tiny_llama::task_context const& c) {
  material out{tiny_llama::byte_tokens(c.context), {}, {}, 1};
  for (tiny_llama::task_question const& q : c.questions) {
    out.needles.push_back({c.task, q.question, q.answer, 0, 0});
  }
  return out;
}

inline material text_material(std::string_view text, tiny_llama::needle_request const& request) {
  tiny_llama::needle_task task = tiny_llama::make_needle_task(text, request);
  return {tiny_llama::byte_tokens(task.context), tiny_llama::byte_tokens(task.continuation),
          std::move(task.needles)};
}

/// A stretch of the file that seed and index choose. Nothing is planted: what ids mean is not known.
inline material id_material(std::vector<int> const& ids, tiny_llama::needle_request const& request) {
  auto const wanted = static_cast<std::size_t>(request.context + request.continuation);
  if (ids.size() < wanted) {
    throw std::invalid_argument("the token file holds " + std::to_string(ids.size()) + " tokens; at least " +
                                std::to_string(wanted) + " are needed (--context and what follows it)");
  }
  tiny_llama::splitmix64 random(request.seed ^ tiny_llama::splitmix64(request.index)());
  auto const begin = ids.begin() + static_cast<std::ptrdiff_t>(random.below(ids.size() - wanted + 1));
  auto const middle = begin + request.context;
  return {{begin, middle}, {middle, middle + request.continuation}, {}};
}

}  // namespace demo
