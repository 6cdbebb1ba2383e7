// The engine in C and its loop: restarts, steps back, texts that are longer than the cache.
#include "kjv.hpp"

#include <engines/token_major/reader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using token_major::reader;

std::vector<float> const& read_all(reader& r, std::vector<int> const& text) {
  std::vector<float> const* logits = nullptr;
  for (std::size_t i = 0; i < text.size(); ++i) logits = &r.forward(text[i], static_cast<std::uint32_t>(i));
  return *logits;
}

}  // namespace

TEST_CASE("the loop of an engine in C: merging off and on, and again from position 0") {
  std::vector<int> const prompt = engines_test::tokens(20000, 60);
  reader off(engines_test::model(), 160, nullptr), unmerged(engines_test::model(), 160, "leverage_dropkv");
  std::vector<int> const first = off.generate(prompt, 90);
  CHECK(std::equal(prompt.begin() + 1, prompt.end(), first.begin()));
  CHECK(off.generate(prompt, 90) == first);
  CHECK(unmerged.generate(prompt, 90) == first);
  unmerged.compress(40);
  CHECK(unmerged.length(0, 0) == 40);
  CHECK(unmerged.generate(prompt, 90) == first);  // nothing of the merged text is left
  CHECK(unmerged.length(0, 0) == 90);
}

TEST_CASE("an earlier position goes back to it, and tokens that were merged cannot be had again") {
  std::vector<int> const text = engines_test::tokens(20000, 80);
  for (char const* const policy : {static_cast<char const*>(nullptr), "h2o"}) {
    reader r(engines_test::model(), 100, policy);
    read_all(r, text);
    std::vector<float> const before = r.forward(text[0], 80);
    r.forward(text[3], 50);  // another text from there on
    for (std::uint32_t i = 50; i < 80; ++i) r.forward(text[i], i);
    CHECK(r.forward(text[0], 80) == before);
    CHECK(r.tokens() == 81);
  }
  reader r(engines_test::model(), 100, "chelsea");
  read_all(r, text);
  r.compress(40);
  r.forward(text[0], 80);
  r.forward(text[1], 81);
  std::vector<float> const merged = r.forward(text[2], 82);
  r.forward(text[1], 81);
  CHECK(r.forward(text[2], 82) == merged);
  CHECK_THROWS_WITH(r.forward(text[0], 79), doctest::Contains("truncate"));
  CHECK_THROWS_WITH(r.forward(text[0], 85), doctest::Contains("truncate"));
  CHECK(r.forward(text[3], 83).size() == merged.size());  // a refused call changed nothing
  CHECK(r.length(0, 0) == 44);
}

TEST_CASE("a text longer than the cache: it shrinks when it is full, as if by hand") {
  std::vector<int> const text = engines_test::tokens(20000, 180);
  for (char const* const policy :
       {"leverage_dropkv", "chelsea", "kvmerger", "h2o", "snapkv", "streaming_llm"}) {
    CAPTURE(std::string(policy));
    reader full(engines_test::model(), 96, policy, {48, 0.0, KVMELD_HEAD, 0.0, 0}),
        by_hand(engines_test::model(), 96, policy);
    for (std::uint32_t i = 0; i < 180; ++i) {
      if (by_hand.length(0, 0) == 96) by_hand.compress(48);
      std::vector<float> const expected = by_hand.forward(text[i], i);
      REQUIRE(full.forward(text[i], i) == expected);
    }
    CHECK(full.tokens() == 180);
    CHECK(full.length(0, 0) == 84);
  }
  reader share(engines_test::model(), 100, "h2o");
  read_all(share, engines_test::tokens(20000, 100));
  share.compress(kvmeld_budget{0, 0.25, KVMELD_HEAD, 0.0, 0});
  CHECK(share.length(0, 0) == 25);
}
