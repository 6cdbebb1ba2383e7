// Contexts with questions that have one right answer, from a file with a JSON object a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tiny_llama {

/// In tokens of the model.
struct task_question {
  std::string task;  ///< the name of what is asked
  std::vector<int> question, answer;
};

struct task_context {
  std::vector<int> context;  ///< tokens to read once
  std::vector<task_question> questions;
};

/// Reads lines such as {"task": "had", "context": "...", "question": "...", "answer": "..."}, whose last
/// three fields are texts (byte models only) or arrays of token numbers below `vocab_size`, all three alike.
/// Other fields are ignored, and so are empty lines. Lines that follow each other with the same context are
/// one context. Throws model_error, which names the line and the field.
std::vector<task_context> parse_tasks(std::string const& path, std::string_view text, int vocab_size);

/// The same from a file of at most 64 MiB.
std::vector<task_context> load_tasks(std::string const& path, int vocab_size);

/// The names of the tasks, in the order of the file.
std::vector<std::string> task_names(std::vector<task_context> const& contexts);

/// Of each task the questions of at most `most` contexts, the first ones.
std::vector<task_context> first_contexts(std::vector<task_context> const& contexts, int most);

}  // namespace tiny_llama
