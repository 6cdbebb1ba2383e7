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

constexpr int bytes = 256, tokens = 300;

std::string told(std::string const& text, int vocab_size = bytes) {
  return test::refusal<model_error>([&] { parse_tasks("t.jsonl", text, vocab_size); });
}

std::string numbers(std::string const& task, std::vector<int> const& context,
                    std::vector<int> const& question, std::vector<int> const& answer) {
  return nlohmann::json{{"task", task}, {"context", context}, {"question", question}, {"answer", answer}}
             .dump() +
         "\n";
}

using ids = std::vector<int>;

TEST_CASE("tasks: lines of one context belong together") {
  std::string const text = line("had", "A\nB", "of A ", "x") + "\n  \r\n" +
                           line("had", "A\nB", "of B ", "y") + line("had", "C", "of C ", "z") +
                           line("dwelt", "C", "of C ", "u") + line("had", "A\nB", "of A ", "v\xc3\xa9");
  auto const found =
      parse_tasks("t.jsonl", text.substr(0, text.size() - 1), bytes);  // the last line needs no end
  REQUIRE(found.size() == 3);
  CHECK(found[0].context == ids{'A', '\n', 'B'});
  REQUIRE(found[0].questions.size() == 2);
  CHECK(found[0].questions[0].task == "had");
  CHECK(found[0].questions[1].question == ids{'o', 'f', ' ', 'B', ' '});
  CHECK(found[0].questions[1].answer == ids{'y'});
  REQUIRE(found[1].questions.size() == 2);  // two tasks of one context, which is read once
  CHECK(found[1].questions[1].task == "dwelt");
  CHECK(found[2].questions[0].answer == ids{'v', 0xc3, 0xa9});
  CHECK(tiny_llama::task_names(found) == std::vector<std::string>{"had", "dwelt"});
  test::temporary_folder const folder;
  CHECK(tiny_llama::load_tasks(folder.write("t.jsonl", text), bytes).size() == 3);
}

TEST_CASE("tasks: the first contexts of each task") {
  std::string const text = line("a", "1", "??", "x") + line("b", "1", "??", "x") + line("a", "1", "??", "y") +
                           line("a", "2", "??", "x") + line("b", "2", "??", "x") + line("b", "3", "??", "x") +
                           line("c", "3", "??", "x");
  auto const found = parse_tasks("t.jsonl", text, bytes);
  auto const one = tiny_llama::first_contexts(found, 1);
  REQUIRE(one.size() == 2);
  CHECK(one[0].questions.size() == 3);
  REQUIRE(one[1].questions.size() == 1);  // of context 3, whose "b" is the third
  CHECK(one[1].questions[0].task == "c");
  auto const two = tiny_llama::first_contexts(found, 2);
  REQUIRE(two.size() == 3);
  CHECK(two[1].questions.size() == 2);
  CHECK(two[2].questions.size() == 1);
  CHECK(tiny_llama::first_contexts(found, 3)[2].questions.size() == 2);
}

TEST_CASE("tasks: token numbers, of models of tokens and of bytes") {
  std::string const text = numbers("a", {0, 255, 7}, {1, 2}, {3}) + numbers("b", {0, 255, 7}, {4, 5}, {6, 7});
  for (int const vocab_size : {bytes, tokens}) {
    auto const found = parse_tasks("t.jsonl", text, vocab_size);
    REQUIRE(found.size() == 1);
    CHECK(found[0].context == ids{0, 255, 7});
    REQUIRE(found[0].questions.size() == 2);
    CHECK(found[0].questions[1].task == "b");
    CHECK(found[0].questions[1].question == ids{4, 5});
    CHECK(found[0].questions[1].answer == ids{6, 7});
  }
  CHECK(parse_tasks("t.jsonl", numbers("a", {299}, {0, 0}, {299}), tokens)[0].context == ids{299});
  // A text and the same bytes as numbers are one context.
  CHECK(parse_tasks("t.jsonl", line("a", "AB", "??", "x") + numbers("a", {65, 66}, {1, 2}, {3}), bytes)
            .size() == 1);
}

TEST_CASE("tasks: a refusal names the line and the field") {
  std::string const good = line("had", "A", "of A ", "x");
  CHECK(told("") == "t.jsonl: has no questions; at least one line is needed");
  CHECK(told(" \n\n") == "t.jsonl: has no questions; at least one line is needed");
  CHECK(told(good + "\n[1]\n") == "t.jsonl: line 3 is a JSON array; an object is needed");
  CHECK(test::has(told(good + "{\n"), "t.jsonl: its line 2 is not valid JSON"));
  CHECK(test::has(told("{\"task\":\"a\",\"task\":\"b\"}"), "t.jsonl: its line 1 names 'task' twice"));
  for (std::string const field : {"task", "context", "question", "answer"}) {
    std::string const least = field == "question" ? "2" : "1";
    for (int const vocab_size : {bytes, tokens}) {
      CAPTURE(vocab_size);
      std::string const fine = vocab_size == bytes ? good : numbers("had", {1}, {1, 2}, {3});
      std::string const array = vocab_size == bytes ? "a text or an array" : "an array";
      std::string const needed =
          field == "task" ? "; a text that is not empty is needed"
                          : "; " + array + " of token numbers, at least " + least + " long, is needed";
      auto row = nlohmann::json::parse(fine);
      row.erase(field);
      CHECK(told(fine + row.dump(), vocab_size) == "t.jsonl: line 2: " + field + " is missing" + needed);
      row[field] = 5;
      CHECK(told(fine + row.dump(), vocab_size) == "t.jsonl: line 2: " + field + " is 5" + needed);
      row[field] = nlohmann::json::array();
      CHECK(told(fine + row.dump(), vocab_size) ==
            "t.jsonl: line 2: " + field + " is a JSON array of 0" + needed);
      row[field] = "";
      CHECK(test::has(told(fine + row.dump(), vocab_size), "t.jsonl: line 2: " + field + " is ''" + needed));
    }
  }
  CHECK(test::has(told(line("had", "A", "?", "x")), "question is '?'; a text or an array"));
  CHECK(test::has(told(numbers("had", {1}, {1}, {1})), "question is a JSON array of 1; a text or an array"));
  CHECK(test::has(test::refusal<model_error>([] { tiny_llama::load_tasks("/nowhere/t.jsonl", bytes); }),
                  "no such file"));
}

TEST_CASE("tasks: token numbers that the model does not have are refused") {
  std::string const good = numbers("had", {1, 2, 3}, {1, 2}, {3});
  for (std::string const field : {"context", "question", "answer"}) {
    for (auto const& [value, words] : std::initializer_list<std::pair<nlohmann::json, std::string>>{
             {300, "300"}, {-1, "-1"}, {2.0, "2.0"}, {"2", "'2'"}, {nullptr, "null"}, {true, "true"}}) {
      auto row = nlohmann::json::parse(good);
      row[field] = {7, value, 8};
      CHECK(told(good + row.dump(), tokens) == "t.jsonl: line 2: " + field + ": token 1 is " + words +
                                                   "; whole numbers from 0 to 299 are allowed (vocab_size)");
    }
  }
  CHECK(test::has(told(numbers("had", {1}, {1, 2}, {256})),
                  "answer: token 0 is 256; whole numbers from 0 to 255"));
}

TEST_CASE("tasks: texts are for models of bytes, and do not mix with numbers") {
  CHECK(told(line("had", "A", "of A ", "x"), tokens) ==
        "t.jsonl: line 1: context is 'A'; an array of token numbers, at least 1 long, is needed, since a "
        "vocab_size "
        "of 300 is not bytes");
  for (char const* const field : {"question", "answer"}) {
    auto row = nlohmann::json::parse(line("had", "A", "of A ", "x"));
    row[field] = {1, 2};
    CHECK(told(row.dump()) == "t.jsonl: line 1: " + std::string(field) +
                                  " is a JSON array of 2; context is 'A', and both must be alike");
  }
  auto row = nlohmann::json::parse(numbers("had", {1}, {2, 3}, {4}));
  row["answer"] = "x";
  CHECK(told(row.dump()) ==
        "t.jsonl: line 1: answer is 'x'; context is a JSON array of 1, and both must be alike");
}

}  // namespace task_file_cases
