// Files of tasks: what is read, and by which words bad lines are refused.
#include "task_file.hpp"

#include "files.hpp"
#include "model_files.hpp"

#include <doctest/doctest.h>

using tiny_llama::model_error;
using tiny_llama::parse_tasks;

namespace task_file_cases {

std::string line(std::string const& task, std::string const& context, std::string const& question,
                 std::string const& answer) {
  return nlohmann::json{{"task", task}, {"context", context}, {"question", question}, {"answer", answer}}
             .dump() +
         "\n";
}

std::string told(std::string const& text) {
  return test::refusal<model_error>([&] { parse_tasks("t.jsonl", text); });
}

TEST_CASE("tasks: lines of one context belong together") {
  std::string const text = line("had", "A\nB", "of A ", "x") + "\n  \r\n" +
                           line("had", "A\nB", "of B ", "y") + line("had", "C", "of C ", "z") +
                           line("dwelt", "C", "of C ", "u") + line("had", "A\nB", "of A ", "v");
  auto const found = parse_tasks("t.jsonl", text.substr(0, text.size() - 1));  // the last line needs no end
  REQUIRE(found.size() == 4);
  CHECK(found[0].task == "had");
  CHECK(found[0].context == "A\nB");
  REQUIRE(found[0].questions.size() == 2);
  CHECK(found[0].questions[1].question == "of B ");
  CHECK(found[0].questions[1].answer == "y");
  CHECK(found[1].questions.size() == 1);
  CHECK(found[2].task == "dwelt");
  CHECK(found[3].questions[0].answer == "v");
  CHECK(tiny_llama::task_names(found) == std::vector<std::string>{"had", "dwelt"});
  auto const first = tiny_llama::first_contexts(found, 2);
  REQUIRE(first.size() == 3);
  CHECK(first[1].context == "C");
  CHECK(first[2].task == "dwelt");
  test::temporary_folder const folder;
  CHECK(tiny_llama::load_tasks(folder.write("t.jsonl", text)).size() == 4);
}

TEST_CASE("tasks: a refusal names the line and the field") {
  std::string const good = line("had", "A", "of A ", "x");
  CHECK(told("") == "t.jsonl: has no questions; at least one line is needed");
  CHECK(told(" \n\n") == "t.jsonl: has no questions; at least one line is needed");
  CHECK(told(good + "\n[1]\n") == "t.jsonl: line 3 is a JSON array; an object is needed");
  CHECK(test::has(told(good + "{\n"), "t.jsonl: its line 2 is not valid JSON"));
  CHECK(test::has(told("{\"task\":\"a\",\"task\":\"b\"}"), "t.jsonl: its line 1 names 'task' twice"));
  for (char const* const field : {"task", "context", "question", "answer"}) {
    auto row = nlohmann::json::parse(good);
    std::string const needed = std::string(field) == "question" ? "; a text of at least 2 bytes is needed"
                                                                : "; a text that is not empty is needed";
    row.erase(field);
    CHECK(told(good + row.dump()) == "t.jsonl: line 2: " + std::string(field) + " is missing" + needed);
    row[field] = 5;
    CHECK(told(good + row.dump()) == "t.jsonl: line 2: " + std::string(field) + " is 5" + needed);
    row[field] = "";
    CHECK(told(good + row.dump()) == "t.jsonl: line 2: " + std::string(field) + " is ''" + needed);
  }
  CHECK(test::has(told(line("had", "A", "?", "x")), "question is '?'; a text of at least 2 bytes is needed"));
  CHECK(test::has(test::refusal<model_error>([] { tiny_llama::load_tasks("/nowhere/t.jsonl"); }),
                  "no such file"));
}

}  // namespace task_file_cases
