#include "task_file.hpp"

#include "files.hpp"
#include "json_text.hpp"
#include "tokens.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

namespace tiny_llama {
namespace {

/// A line of the file, whose fields are refused by name.
class task_line {
public:
  task_line(std::string const& path, std::size_t number, std::string_view words, int vocab_size)
      : path_(path),
        line_("line " + std::to_string(number)),
        vocab_size_(vocab_size),
        row_(parse_json(path, line_, words)) {
    if (!row_.is_object())
      throw model_error(path, line_ + " is a JSON " + row_.type_name() + "; an object is needed");
  }

  std::string text(char const* name) const {
    std::string const needed = "a text that is not empty is needed";
    json const& value = field(name, needed);
    if (!value.is_string() || value.get_ref<std::string const&>().empty()) refuse(name, shown(value), needed);
    return value.get<std::string>();
  }

  /// At least `least` tokens.
  std::vector<int> tokens(char const* name, std::size_t least) const {
    bool const reads_bytes = is_byte_model(vocab_size_);
    std::string const needed = std::string(reads_bytes ? "a text or an array" : "an array") +
                               " of token numbers, at least " + std::to_string(least) + " long, is needed";
    json const& value = field(name, needed);
    if (!value.is_array() && !value.is_string()) refuse(name, shown(value), needed);
    if (value.is_string() && !reads_bytes) {
      refuse(name, shown(value),
             needed + ", since a vocab_size of " + std::to_string(vocab_size_) + " is not bytes");
    }
    std::vector<int> out = value.is_string()
                               ? byte_tokens(value.get_ref<std::string const&>())
                               : ids_of_array(path_, line_ + ": " + name + ": ", value, vocab_size_);
    if (out.size() < least) refuse(name, shown(value), needed);
    return out;
  }

  /// Texts and token numbers in one line would hardly be meant for one model.
  void refuse_mixture(std::vector<char const*> const& names) const {
    for (char const* name : names) {
      if (row_.at(name).type() == row_.at(names.front()).type()) continue;
      refuse(name, shown(row_.at(name)),
             std::string(names.front()) + " is " + shown(row_.at(names.front())) +
                 ", and both must be alike");
    }
  }

private:
  json const& field(char const* name, std::string const& needed) const {
    auto const at = row_.find(name);
    if (at == row_.end()) throw model_error(path_, line_ + ": " + name + " is missing; " + needed);
    return *at;
  }

  [[noreturn]] void refuse(char const* name, std::string const& value, std::string const& needed) const {
    throw model_error(path_, line_ + ": " + name + " is " + value + "; " + needed);
  }

  std::string const& path_;
  std::string line_;
  int vocab_size_;
  json row_;
};

}  // namespace

std::vector<task_context> parse_tasks(std::string const& path, std::string_view text, int vocab_size) {
  std::vector<task_context> out;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find('\n', at), text.size());
    std::string_view const words = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (words.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    task_line const line(path, number, words, vocab_size);
    std::string task = line.text("task");
    std::vector<int> context = line.tokens("context", 1);
    // The last token of a question is held back where the question is read before compression.
    task_question one{std::move(task), line.tokens("question", 2), line.tokens("answer", 1)};
    line.refuse_mixture({"context", "question", "answer"});
    if (out.empty() || out.back().context != context) out.push_back({std::move(context), {}});
    out.back().questions.push_back(std::move(one));
  }
  if (out.empty()) throw model_error(path, "has no questions; at least one line is needed");
  return out;
}

std::vector<task_context> load_tasks(std::string const& path, int vocab_size) {
  return parse_tasks(path, read_file(path, std::uint64_t{64} << 20), vocab_size);
}

std::vector<std::string> task_names(std::vector<task_context> const& contexts) {
  std::vector<std::string> out;
  for (task_context const& c : contexts) {
    for (task_question const& q : c.questions) {
      if (std::find(out.begin(), out.end(), q.task) == out.end()) out.push_back(q.task);
    }
  }
  return out;
}

std::vector<task_context> first_contexts(std::vector<task_context> const& contexts, int most) {
  std::vector<task_context> out;
  std::map<std::string, int> taken;
  for (task_context const& c : contexts) {
    task_context kept{c.context, {}};
    std::set<std::string> tasks;
    for (task_question const& q : c.questions) {
      if (taken[q.task] >= most) continue;
      kept.questions.push_back(q);
      tasks.insert(q.task);
    }
    for (std::string const& task : tasks) ++taken[task];
    if (!kept.questions.empty()) out.push_back(std::move(kept));
  }
  return out;
}

}  // namespace tiny_llama
