// The demo's model and text for the tests of the mini-engines; loaded once.
#pragma once

#include <tiny_llama/files.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/tokens.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace engines_test {

inline tiny_llama::model& model() {
  static tiny_llama::model once = tiny_llama::model::load(KVMELD_MODEL_DIR);
  return once;
}
/// A stretch of the held-out text.
inline std::vector<int> tokens(std::size_t first, std::size_t count) {
  static std::string const text = tiny_llama::read_file(KVMELD_MODEL_DIR "/heldout.txt", 1u << 30);
  return tiny_llama::byte_tokens(text.substr(first, count));
}

}  // namespace engines_test
