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
  whole.try_out({3}, wanted, true);
  for (std::size_t chunk : {1u, 16u, 70u, 200u}) {
    CAPTURE(chunk);
    tiny_llama::engine<policy> wide(model, how, 100);
    CHECK(wide.read_within(tokens, chunk, 100) >= 0);
    CHECK(wide.cache().longest(0) == 70);
    wide.try_out({3}, got, true);
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
