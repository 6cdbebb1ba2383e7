// Which questions of a file the demo asks inside the prompt.
#include <demo/material.hpp>

#include <doctest/doctest.h>

namespace material_cases {

TEST_CASE("one question of each context is asked inside, of the task that was asked so least often") {
  tiny_llama::task_question const a{"a", {1, 2}, {3}}, b{"b", {4, 5}, {6}}, c{"c", {7, 8}, {9}};
  std::vector<demo::material> const got = demo::task_materials(
      {{{1}, {a, b, c, a}}, {{2}, {a, b, c}}, {{3}, {b, a}}, {{4}, {b, c, c}}}, {"a", "b", "c"});
  std::vector<std::vector<bool>> const wanted{
      {true, false, false, false}, {false, true, false}, {true, false}, {false, true, false}};
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].context == std::vector<int>{static_cast<int>(i) + 1});
    CHECK(got[i].continuation.empty());
    REQUIRE(got[i].questions.size() == wanted[i].size());
    for (std::size_t q = 0; q < wanted[i].size(); ++q) CHECK(got[i].questions[q].inside == wanted[i][q]);
  }
  CHECK(got[3].questions[1].task == 2);
  CHECK(got[3].questions[1].question == c.question);
  CHECK(got[3].questions[1].answer == c.answer);
}

}  // namespace material_cases
