#include "task_file.hpp"

#include "files.hpp"
#include "json_text.hpp"

#include <algorithm>
#include <cstddef>

namespace tiny_llama {
namespace {

std::string text_field(std::string const& path, std::string const& line, json const& row, char const* name,
                       std::size_t least) {
  std::string const needed = least > 1 ? "a text of at least " + std::to_string(least) + " bytes is needed"
                                       : "a text that is not empty is needed";
  auto const at = row.find(name);
  if (at == row.end()) throw model_error(path, line + ": " + name + " is missing; " + needed);
  if (!at->is_string() || at->get_ref<std::string const&>().size() < least) {
    throw model_error(path, line + ": " + name + " is " + shown(*at) + "; " + needed);
  }
  return at->get<std::string>();
}

}  // namespace

std::vector<task_context> parse_tasks(std::string const& path, std::string_view text) {
  std::vector<task_context> out;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find('\n', at), text.size());
    std::string_view const words = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (words.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string const line = "line " + std::to_string(number);
    json const row = parse_json(path, line, words);
    if (!row.is_object()) {
      throw model_error(path, line + " is a JSON " + row.type_name() + "; an object is needed");
    }
    task_context one{text_field(path, line, row, "task", 1), text_field(path, line, row, "context", 1), {}};
    // The last byte of a question is held back where the question is read before compression.
    one.questions.push_back(
        {text_field(path, line, row, "question", 2), text_field(path, line, row, "answer", 1)});
    if (!out.empty() && out.back().task == one.task && out.back().context == one.context) {
      out.back().questions.push_back(one.questions.front());
    } else {
      out.push_back(std::move(one));
    }
  }
  if (out.empty()) throw model_error(path, "has no questions; at least one line is needed");
  return out;
}

std::vector<task_context> load_tasks(std::string const& path) {
  return parse_tasks(path, read_file(path, std::uint64_t{64} << 20));
}

std::vector<std::string> task_names(std::vector<task_context> const& contexts) {
  std::vector<std::string> out;
  for (task_context const& c : contexts) {
    if (std::find(out.begin(), out.end(), c.task) == out.end()) out.push_back(c.task);
  }
  return out;
}

std::vector<task_context> first_contexts(std::vector<task_context> const& contexts, int most) {
  std::vector<task_context> out;
  for (task_context const& c : contexts) {
    auto const same = [&](task_context const& other) { return other.task == c.task; };
    if (std::count_if(out.begin(), out.end(), same) < most) out.push_back(c);
  }
  return out;
}

}  // namespace tiny_llama
