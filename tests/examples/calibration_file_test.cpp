// Calibrations as JSON: what is written is what is read, and what is damaged is refused by name.
#include <doctest/doctest.h>

#include <tiny_llama/calibration_file.hpp>
#include <tiny_llama/error.hpp>

#include <cstddef>
#include <cstdio>
#include <string>

namespace {

using kvmeld::calibrate::calibration;

calibration example() {
  calibration c;
  c.model = "toy";
  c.of = {2, 1, 2, 8, 4};
  c.tokens = 512;
  c.samples = 3;
  c.unmatched = {0.25, 0.1 + 0.2};
  c.thresholds = {{0.5, {{0.7, 0.75}, {-0.1, 1.0 / 3}}}};
  c.methods = {{"chelsea", {{{0.1, 1.0}, {1e-7, 0.0}}, {{0.05, 0.2, 1.0}, {2.5, 0.5, 0.0}}}}};
  return c;
}

std::string refusal(std::string const& text) {
  try {
    tiny_llama::parse_calibration("c.json", text);
  } catch (tiny_llama::model_error const& problem) {
    return problem.what();
  }
  return "none";
}

std::string replaced(std::string text, std::string const& from, std::string const& to) {
  std::size_t const at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a calibration comes back from its file to the last bit") {
  calibration const c = example();
  tiny_llama::save_calibration(c, "calibration_file_test.json");
  calibration const back = tiny_llama::load_calibration("calibration_file_test.json");
  std::remove("calibration_file_test.json");
  CHECK(back.model == c.model);
  CHECK(back.of == c.of);
  CHECK(back.tokens == c.tokens);
  CHECK(back.samples == c.samples);
  CHECK(back.unmatched == c.unmatched);
  REQUIRE(back.thresholds.size() == 1);
  CHECK(back.thresholds[0].ratio == 0.5);
  CHECK(back.thresholds[0].theta == c.thresholds[0].theta);
  REQUIRE(back.methods.size() == 1);
  CHECK(back.methods[0].method == "chelsea");
  for (std::size_t h = 0; h < 2; ++h) {
    CHECK(back.methods[0].curves[h].share == c.methods[0].curves[h].share);
    CHECK(back.methods[0].curves[h].cost == c.methods[0].curves[h].cost);
  }
}

TEST_CASE("a file that is no calibration, or contradicts itself, is refused by what is wrong") {
  std::string const good = tiny_llama::to_json(example());
  CHECK(refusal(good) == "none");
  CHECK(refusal(replaced(good, "\"kvmeld_calibration\": 1", "\"kvmeld_calibration\": 2")) ==
        "c.json: kvmeld_calibration is 2; it must be 1, the version of the format that is read");
  CHECK(refusal("{}") ==
        "c.json: kvmeld_calibration is missing; it must be 1, the version of the format that is read");
  CHECK(refusal("{\"version\": 99}") == "c.json: kvmeld_calibration is missing (version is 99); it must be "
                                        "1, the version of the format that is read");
  CHECK(refusal(replaced(good, "\"model\": \"toy\"", "\"model\": 7")) ==
        "c.json: model is 7; it must be a text");
  CHECK(refusal(replaced(good, "\"layers\": 2", "\"layers\": -2")) ==
        "c.json: layers is -2; it must be a whole number from 0 to 4294967295");
  CHECK(refusal(replaced(good, "\"ratio\": 0.5", "\"ratio\": \"half\"")) ==
        "c.json: thresholds[0].ratio is 'half'; it must be a number");
  CHECK(refusal(replaced(good, "2.5", "[2.5]")) ==
        "c.json: methods[0].heads[1].cost[0] is a JSON array of 1; it must be a number");
  CHECK(refusal(replaced(good, "\"method\": \"chelsea\"", "\"name\": \"chelsea\"")) ==
        "c.json: methods[0].method is missing");
  CHECK(refusal(replaced(good, "\"layers\": 2", "\"layers\": 3")) ==
        "c.json: calibration: number of shares of unmatched entries is 2; it must be 3, one per head");
  CHECK(refusal(good.substr(0, good.size() / 2)).find("is not valid JSON") != std::string::npos);
  // Cut anywhere, a file is refused, and nothing else happens.
  for (std::size_t n = 0; n + 2 < good.size(); n += 7) CHECK(refusal(good.substr(0, n)) != "none");
}
