// PTX as words and signs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace emulator {

struct token {
  std::string_view text;
  std::uint32_t line;
};

/// Comments left out; a string is one token, its quotes included.
std::vector<token> tokens_of(std::string_view text);

}  // namespace emulator
