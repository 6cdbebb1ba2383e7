// The example engine on a small random model: what it holds while it reads within a budget.
#include "engine.hpp"
#include "model_files.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace {

using policy = kvmeld::preset::streaming_llm::type;

tiny_llama::model small_model() {
  return {tiny_llama::parse_config("config.json", test::config_json(true).dump()),
          test::random_weights(true, 11)};
}

}  // namespace

TEST_CASE("an engine that reads within a budget keeps to it, and reads alike where it is wide enough") {
  tiny_llama::model model = small_model();
  policy const how = kvmeld::preset::streaming_llm::with_sinks(2);
  std::vector<int> tokens;
  for (int i = 0; i < 70; ++i) tokens.push_back((i * 7 + i / 5) % 16);
  std::vector<float> wanted, got;
  auto const quiet = [](auto&&...) {};
  tiny_llama::engine<policy> whole(model, how, 100);
  whole.read(tokens, wanted, quiet);
  whole.try_out({3}, wanted);
  for (std::size_t chunk : {1u, 16u, 70u, 200u}) {
    CAPTURE(chunk);
    tiny_llama::engine<policy> wide(model, how, 100);
    CHECK(wide.read_within(tokens, chunk, 100) >= 0);
    CHECK(wide.cache().longest(0) == 70);
    wide.try_out({3}, got);
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(wanted[i]).epsilon(1e-3));
    // 20 entries and a chunk are all that there is ever room for.
    auto const room = static_cast<std::uint32_t>(20 + (chunk < 70 ? chunk : 70));
    tiny_llama::engine<policy> tight(model, how, room);
    tight.read_within(tokens, chunk, 20);
    CHECK(tight.cache().longest(0) == 20);
    CHECK(tight.cache().tokens(0) == 70);
    auto const ref = tight.cache().ref();  // the sinks and the last 18
    for (kvmeld::slot_t s = 0; s < 20; ++s)
      CHECK(ref.position(ref.where(0, 0, 0), s) == static_cast<int>(s < 2 ? s : 50 + s));
  }
}

TEST_CASE("an engine that renumbers reads on where the model has no more positions") {
  tiny_llama::model model = small_model();
  std::vector<int> tokens;
  for (int i = 0; i < 300; ++i) tokens.push_back((i * 7 + i / 5) % 16);
  auto const quiet = [](auto&&...) {};
  std::vector<float> logits;
  tiny_llama::engine<policy> engine(model, kvmeld::preset::streaming_llm::with_sinks(2), 50);
  for (std::size_t first = 0; first < tokens.size(); first += 30) {
    auto const begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
    engine.read({begin, begin + 30}, logits, quiet, tiny_llama::every_token);
    CHECK(logits.size() == 30 * 16);
    engine.compress_to(20);
    engine.renumber();
    CHECK(engine.cache().tokens(0) == 20);
    auto const ref = engine.cache().ref();
    for (kvmeld::slot_t s = 0; s < 20; ++s) CHECK(ref.position(ref.where(1, 0, 1), s) == static_cast<int>(s));
  }
  // The first layer's keys depend on their tokens and positions alone: those of the two sinks have not
  // turned, those of the window are as in an engine that has read it behind them.
  tiny_llama::engine<policy> short_text(model, kvmeld::preset::streaming_llm::with_sinks(2), 50);
  auto const as_float = [](kvmeld::float16 x) {
    return kvmeld::element_traits<kvmeld::float16>::to_float(x);
  };
  std::vector<int> kept(tokens.begin(), tokens.begin() + 2);
  kept.insert(kept.end(), tokens.end() - 18, tokens.end());
  short_text.read(kept, logits, quiet);
  for (std::size_t i = 0; i < 20 * 8; ++i) {
    CHECK(as_float(engine.keys()[i]) == doctest::Approx(as_float(short_text.keys()[i])).epsilon(0.02));
  }
}
