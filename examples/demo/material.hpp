// What a context is made of: held-out text with planted numbers for byte models, a stretch of token ids for
// others.
#pragma once

#include <tiny_llama/needle_task.hpp>
#include <tiny_llama/random.hpp>
#include <tiny_llama/tokens.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace demo {

struct material {
  std::vector<int> context, continuation;
  std::vector<tiny_llama::needle> needles;
};

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
