// Contexts with questions that have one right answer, from a file with a JSON object a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tiny_llama {

struct task_question {
  std::string question, answer;
};

struct task_context {
  std::string task;     ///< the name of what is asked
  std::string context;  ///< bytes to read once
  std::vector<task_question> questions;
};

/// Reads lines such as {"task": "had", "context": "...", "question": "...", "answer": "..."}; other fields
/// are ignored, and so are empty lines. Lines that follow each other with the same task and context are one
/// context. Throws model_error, which names the line and the field.
std::vector<task_context> parse_tasks(std::string const& path, std::string_view text);

/// The same from a file of at most 64 MiB.
std::vector<task_context> load_tasks(std::string const& path);

/// The names of the tasks, in the order of the file.
std::vector<std::string> task_names(std::vector<task_context> const& contexts);

/// At most `most` contexts of each task, the first ones.
std::vector<task_context> first_contexts(std::vector<task_context> const& contexts, int most);

}  // namespace tiny_llama
