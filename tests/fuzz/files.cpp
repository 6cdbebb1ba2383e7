// Spoiled model folders and calibrations of the example engine: they load, or are refused by a message that
// names the file.
#include "choices.hpp"
#include "examples/spoiled_files.hpp"

#include <tiny_llama/calibration_file.hpp>
#include <tiny_llama/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace {

using fuzz::choices;

kvmeld::calibrate::calibration calibration() {
  kvmeld::calibrate::calibration c;
  c.model = "toy";
  c.of = {2, 1, 2, 8, 4};
  c.tokens = 512;
  c.samples = 3;
  c.unmatched = {0.25, 0.5};
  c.thresholds = {{0.5, {{0.7, 0.75}, {-0.1, 0.25}}}};
  c.methods = {{"chelsea", {{{0.1, 1.0}, {1e-7, 0.0}}, {{0.05, 0.2, 1.0}, {2.5, 0.5, 0.0}}}}};
  return c;
}

// Bytes flipped, inserted, removed or cut off.
std::string spoiled_text(std::string text, choices& c) {
  for (std::uint32_t edits = 1 + c.below(4); edits > 0 && !text.empty(); --edits) {
    // Headers are short beside the data: half of the edits stay at the beginning.
    auto const whole = static_cast<std::uint32_t>(text.size());
    std::size_t const at = c.below(c.chance(0.5) ? whole : std::min(whole, 2000u));
    switch (c.below(8)) {
    case 0: text.resize(at); break;
    case 1:
      text.insert(at, 1 + c.below(40), static_cast<char>(static_cast<unsigned char>(c.below(256))));
      break;
    case 2: text.erase(at, 1 + c.below(40)); break;
    case 3: text[at] = static_cast<char>(static_cast<unsigned char>(c.below(256))); break;
    case 4: text[at] = c.pick("0123456789-.eE[]{}\",:"); break;
    default: text = test::flip(std::move(text), at * 8 + c.below(8));
    }
  }
  return text;
}
std::string spoiled_json(nlohmann::json value, choices& c) {
  for (std::uint32_t edits = 1 + c.below(3); edits > 0; --edits) test::spoil(value, c);
  return value.dump();
}
// What is left of the input, as it is.
std::string rest(choices& c) {
  std::string out;
  while (!c.empty()) out += static_cast<char>(static_cast<unsigned char>(c.below(256)));
  return out;
}

// A calibration that is taken is written and read again as the same.
std::string try_calibration(std::string const& text) {
  try {
    auto const c = tiny_llama::parse_calibration("c.json", text);
    std::string const written = tiny_llama::to_json(c);
    bool const same = tiny_llama::to_json(tiny_llama::parse_calibration("c.json", written)) == written;
    return same ? "" : "a calibration that was read is written as another one";
  } catch (tiny_llama::model_error const& error) {
    return test::poor_message(error.what(), "c.json");
  }
}

std::string attempt(choices& c) {
  static test::spoiled_model files;
  static std::string const good_calibration = tiny_llama::to_json(calibration());
  std::uint32_t const what = c.below(9);
  if (what < 3) {
    if (what == 0) return try_calibration(spoiled_text(good_calibration, c));
    if (what == 1) return try_calibration(spoiled_json(nlohmann::json::parse(good_calibration), c));
    return try_calibration(rest(c));
  }
  files.restore();
  if (what == 3) return files.try_config(spoiled_text(files.good_config(), c));
  if (what == 4) return files.try_config(spoiled_json(test::config_json(true), c));
  if (what == 5) return files.try_config(rest(c));
  if (what == 6) return files.try_file(spoiled_text(files.good_file(), c));
  if (what == 7)
    return files.try_file(test::with_header(spoiled_json(files.packed().header, c), files.packed().data));
  return files.try_file(c.chance(0.5) ? rest(c) : test::with_header(rest(c), files.packed().data));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices c(data, size);
  std::string const problem = attempt(c);
  if (!problem.empty()) fuzz::fail(problem);
  return 0;
}
