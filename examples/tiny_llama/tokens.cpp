#include "tokens.hpp"

#include "files.hpp"
#include "json_text.hpp"

#include <algorithm>

namespace tiny_llama {
namespace {

constexpr std::uint64_t max_token_file = 1u << 30;

std::string allowed(int vocab_size) {
  return "; whole numbers from 0 to " + std::to_string(vocab_size - 1) + " are allowed (vocab_size)";
}

[[noreturn]] void refuse(std::string const& path, std::string const& place, std::size_t index,
                         std::string const& value, int vocab_size) {
  throw model_error(path, place + "token " + std::to_string(index) + " is " + value + allowed(vocab_size));
}

std::vector<int> ids_from_json(std::string const& path, std::string const& text, int vocab_size) {
  auto const list = parse_json(path, "text", text);
  if (!list.is_array()) {
    throw model_error(path, "is a JSON object; an array of token ids is needed");
  }
  return ids_of_array(path, "", list, vocab_size);
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::vector<int> ids_from_words(std::string const& path, std::string const& text, int vocab_size) {
  std::vector<int> ids;
  auto at = text.begin();
  while (true) {
    at = std::find_if_not(at, text.end(), is_space);
    if (at == text.end()) {
      return ids;
    }
    auto const end = std::find_if(at, text.end(), is_space);
    std::int64_t value = 0;
    bool good = true;
    for (auto c = at; c != end && good; ++c) {
      value = value * 10 + (*c - '0');
      good = *c >= '0' && *c <= '9' && value < vocab_size;  // stops long before 64 bits are full
    }
    if (!good) {
      refuse(path, "", ids.size(), in_quotes(std::string(at, end)), vocab_size);
    }
    ids.push_back(static_cast<int>(value));
    at = end;
  }
}

}  // namespace

std::vector<int> byte_tokens(std::string_view text) {
  std::vector<int> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(),
                 [](char c) { return static_cast<int>(static_cast<unsigned char>(c)); });
  return ids;
}

std::vector<int> ids_of_array(std::string const& file, std::string const& place, json const& array,
                              int vocab_size) {
  std::vector<int> ids;
  ids.reserve(array.size());
  for (auto const& item : array) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
      refuse(file, place, ids.size(), shown(item), vocab_size);
    }
    ids.push_back(item.get<int>());
  }
  return ids;
}

std::vector<int> read_token_ids(std::string const& path, int vocab_size) {
  auto const text = read_file(path, max_token_file);
  bool const is_json = path.size() >= 5 && path.compare(path.size() - 5, 5, ".json") == 0;
  auto ids = is_json ? ids_from_json(path, text, vocab_size) : ids_from_words(path, text, vocab_size);
  if (ids.empty()) {
    throw model_error(path, "holds no tokens; at least one is needed");
  }
  return ids;
}

std::vector<int> read_tokens(std::string const& path, int vocab_size) {
  if (!is_byte_model(vocab_size)) {
    return read_token_ids(path, vocab_size);
  }
  auto ids = byte_tokens(read_file(path, max_token_file));
  if (ids.empty()) {
    throw model_error(path, "is empty; at least one byte is needed");
  }
  return ids;
}

}  // namespace tiny_llama
