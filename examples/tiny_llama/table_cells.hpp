// Cells of tables for the terminal.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

namespace tiny_llama {
namespace table_cells {

inline std::string formatted(char const* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// At the right end of `width` columns, or wider.
inline std::string right(std::string const& text, int width) {
  auto const wanted = static_cast<std::size_t>(width);
  return text.size() >= wanted ? text : std::string(wanted - text.size(), ' ') + text;
}

/// At the left end of `width` columns, cut off there.
inline std::string left(std::string text, int width) {
  text.resize(static_cast<std::size_t>(width), ' ');
  return text;
}

}  // namespace table_cells
}  // namespace tiny_llama
