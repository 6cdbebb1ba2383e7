#include "tokens.hpp"

#include <algorithm>
#include <cctype>

namespace emulator {
namespace {

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

}  // namespace

std::vector<token> tokens_of(std::string_view s) {
  std::vector<token> out;
  std::uint32_t line = 1;
  for (std::size_t i = 0; i < s.size() && s[i] != '\0';) {
    if (s[i] == '\n')
      ++line, ++i;
    else if (std::isspace(static_cast<unsigned char>(s[i])))
      ++i;
    else if (s.substr(i, 2) == "//")
      i = std::min(s.find('\n', i), s.size());
    else if (s.substr(i, 2) == "/*")
      i = s.find("*/", i) + 2;
    else if (s[i] == '"') {
      std::size_t const end = s.find('"', i + 1);
      out.push_back({s.substr(i, end + 1 - i), line});
      i = end + 1;
    } else if (in_word(s[i])) {
      std::size_t end = i;
      while (end < s.size() && (in_word(s[end]) || s.substr(end, 2) == "::")) end += s[end] == ':' ? 2 : 1;
      out.push_back({s.substr(i, end - i), line});
      i = end;
    } else {
      out.push_back({s.substr(i, 1), line});
      ++i;
    }
  }
  return out;
}

}  // namespace emulator
