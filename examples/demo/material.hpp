// What a context is made of: a context of a file of tasks, held-out text with planted numbers (byte models),
// or a stretch of token ids.
#pragma once

#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/random.hpp>
#include <tiny_llama/task_file.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace demo {

struct posed_question {
  std::vector<int> question, answer;
  std::size_t task = 0;  ///< its place among the names of tasks
  bool inside = true;    ///< also asked inside the prompt
};

struct material {
  std::vector<int> context;
  std::vector<int> continuation;  ///< empty: what follows is not known
  std::vector<posed_question> questions;
};

/// The contexts of a file of tasks, whose names are `tasks`. One question of each is asked inside the prompt,
/// since each costs a reading: the first one of the task that was asked so least often until then.
inline std::vector<material> task_materials(std::vector<tiny_llama::task_context> const& contexts,
                                            std::vector<std::string> const& tasks) {
  std::vector<material> out;
  std::vector<int> times(tasks.size());
  for (tiny_llama::task_context const& c : contexts) {
    material m{c.context, {}, {}};
    for (tiny_llama::task_question const& q : c.questions) {
      auto const task = std::find(tasks.begin(), tasks.end(), q.task) - tasks.begin();
      m.questions.push_back({q.question, q.answer, static_cast<std::size_t>(task), false});
    }
    auto const rarest = std::min_element(
        m.questions.begin(), m.questions.end(),
        [&](posed_question const& a, posed_question const& b) { return times[a.task] < times[b.task]; });
    rarest->inside = true;
    ++times[rarest->task];
    out.push_back(std::move(m));
  }
  return out;
}

inline material text_material(std::string_view text, tiny_llama::needle_request const& request) {
  tiny_llama::needle_task const task = tiny_llama::make_needle_task(text, request);
  material out{tiny_llama::byte_tokens(task.context), tiny_llama::byte_tokens(task.continuation), {}};
  for (tiny_llama::needle const& n : task.needles)
    out.questions.push_back({tiny_llama::byte_tokens(n.question), tiny_llama::byte_tokens(n.answer)});
  return out;
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
