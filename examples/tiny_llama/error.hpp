// What the engine throws about files, and how it quotes foreign text in messages.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tiny_llama {

/// A model, configuration or token file that cannot be used. The message names the file, the value and what
/// is allowed.
class model_error : public std::runtime_error {
public:
  model_error(std::string const& file, std::string const& what) : std::runtime_error(file + ": " + what) {}
};

/// Foreign text made safe for one line of a message: quoted, control and non-ASCII bytes as '?', cut after
/// `most` bytes.
inline std::string in_quotes(std::string_view text, std::size_t most = 80) {
  std::string out = "'";
  for (char const c : text.substr(0, most)) {
    out += (c >= ' ' && c <= '~') ? c : '?';
  }
  return out + (text.size() > most ? "...'" : "'");
}

}  // namespace tiny_llama
