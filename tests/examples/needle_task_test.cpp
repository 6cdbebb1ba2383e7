// Properties of the planted-number task, over many requests.
#include "needle_task.hpp"

#include "model_files.hpp"

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>

using tiny_llama::make_needle_task;
using tiny_llama::needle_request;

namespace {

// Lines of letters that no needle contains, so that the text can be told from what was planted.
std::string text_of(std::size_t size) {
  tiny_llama::splitmix64 random(9);
  std::string out;
  while (out.size() < size) {
    out += random.below(60) == 0 ? '\n' : static_cast<char>('A' + random.below(26));
  }
  return out;
}

}  // namespace

TEST_CASE("needles lie whole, apart and spread in a context of the exact length") {
  auto const text = text_of(20000);
  for (int const needles : {0, 1, 4, 7, 32}) {
    for (int const context :
         {tiny_llama::min_context(needles), tiny_llama::min_context(needles) + 1, 2100, 4096}) {
      for (std::uint64_t index = 0; index < 25; ++index) {
        needle_request const request{context, needles, 100, 7, index};
        auto const task = make_needle_task(text, request);
        REQUIRE(task.context.size() == static_cast<std::size_t>(context));
        REQUIRE(task.continuation.size() == 100);
        REQUIRE(task.needles.size() == static_cast<std::size_t>(needles));

        std::string rest = task.context;
        std::set<std::string> names;
        int before = 0;
        for (auto const& fact : task.needles) {
          auto const begin = static_cast<std::size_t>(fact.begin), end = static_cast<std::size_t>(fact.end);
          REQUIRE(fact.begin >= before);
          REQUIRE(fact.end <= context - tiny_llama::needle_free_end);
          REQUIRE(task.context.substr(begin, end - begin) ==
                  "\nThe secret number of " + fact.name + " is " + fact.answer + ".\n");
          REQUIRE(fact.question == tiny_llama::needle_question(fact.name));
          REQUIRE(fact.answer.size() == 5);
          REQUIRE(fact.answer.find_first_not_of("0123456789") == std::string::npos);
          names.insert(fact.name);
          before = fact.end + 16;
        }
        REQUIRE(names.size() == task.needles.size());
        for (auto fact = task.needles.rbegin(); fact != task.needles.rend(); ++fact) {
          rest.erase(static_cast<std::size_t>(fact->begin),
                     static_cast<std::size_t>(fact->end - fact->begin));
        }
        // What is left is one piece of the text, and the continuation follows it there.
        REQUIRE(test::has(text, rest + task.continuation));
        if (context == 4096 && needles == 4) {
          CHECK(task.needles.front().begin < context / 3);
          CHECK(task.needles.back().begin > context / 2);
        }
      }
    }
  }
}

TEST_CASE("equal requests give equal tasks, other seeds and indices others") {
  auto const text = text_of(20000);
  std::set<std::string> contexts;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (std::uint64_t index = 0; index < 8; ++index) {
      needle_request const request{512, 4, 64, seed, index};
      auto const task = make_needle_task(text, request);
      CHECK(task.context == make_needle_task(text, request).context);
      contexts.insert(task.context);
    }
  }
  CHECK(contexts.size() == 64);
  // Pinned, since figures in reports are compared across machines.
  tiny_llama::splitmix64 random(1234567);
  CHECK(random() == 6457827717110365317u);
  CHECK(random() == 3203168211198807973u);
}

TEST_CASE("a text without line ends still takes needles") {
  auto const task = make_needle_task(std::string(3000, 'x'), needle_request{1024, 4, 10, 1, 0});
  CHECK(task.context.size() == 1024);
  CHECK(test::has(task.context, task.needles[3].question + task.needles[3].answer + ".\n"));
}

TEST_CASE("requests that do not fit are refused") {
  auto const text = text_of(2000);
  auto const told = [&](needle_request const& request) {
    return test::refusal<std::invalid_argument>([&] { make_needle_task(text, request); });
  };
  CHECK(test::has(told({1024, 33, 10, 1, 0}), "needles is 33; 0 to 32 are allowed"));
  CHECK(test::has(told({1024, -1, 10, 1, 0}), "needles is -1"));
  CHECK(test::has(told({100, 4, 10, 1, 0}), "context is 100; 4 needles need at least 292 bytes"));
  CHECK(test::has(told({1024, 4, -1, 1, 0}), "continuation is -1"));
  CHECK(test::has(told({1024, 4, 977, 1, 0}),
                  "the text is 2000 bytes long; context and continuation need 2001"));
  CHECK(told({1024, 4, 976, 1, 0}).empty());
}
