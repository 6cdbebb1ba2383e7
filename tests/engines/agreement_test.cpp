// The mini-engines on the demo's model, one against the other: three layouts, three ways to batch, one
// meaning.
#include "kjv.hpp"

#include <engines/paged/host_engine.hpp>
#include <engines/tiled/fast.hpp>
#include <engines/token_major/reader.hpp>

#include <demo/methods.hpp>
#include <tiny_llama/engine.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

struct strict {};  // without -ffast-math

struct life {
  std::uint32_t prompt = 130, generated = 16, trigger = 0, budget = 0;
  std::uint32_t capacity() const { return prompt + generated; }
};

// Logits of the last token of the prompt and of all that were generated, and the tokens chosen.
struct answer {
  std::vector<std::vector<float>> logits;
  std::vector<int> tokens;
};

int best(std::vector<float> const& row) {
  return static_cast<int>(std::max_element(row.begin(), row.end()) - row.begin());
}

std::vector<int> prompt_of(life const& l) { return engines_test::tokens(20000, l.prompt); }

// Token by token, merging wherever a head holds `trigger` entries.
template <class Reader> answer read_alone(Reader& r, life const& l) {
  auto const merge = [&] {
    if (l.trigger != 0 && r.length(0, 0) >= l.trigger) r.compress(l.budget);
  };
  answer out;
  std::vector<float> logits;
  for (int const token : prompt_of(l)) {
    logits = r.read(token);
    merge();
  }
  for (std::uint32_t i = 0; i < l.generated; ++i) {
    out.logits.push_back(logits);
    out.tokens.push_back(best(logits));
    if (i + 1 == l.generated) break;
    logits = r.read(out.tokens.back());
    merge();
  }
  return out;
}

answer of_token_major(life const& l, char const* policy) {
  token_major::reader r(engines_test::model(), l.capacity(), policy);
  return read_alone(r, l);
}
answer of_tiled(life const& l, std::string const& policy) {
  tiled_engine::reader<strict> r(engines_test::model(), l.capacity(), demo::policy_of(policy, {}));
  return read_alone(r, l);
}
answer of_fast(life const& l, std::string const& policy) {
  auto const r = tiled_engine::make_fast(engines_test::model(), l.capacity(), policy);
  return read_alone(*r, l);
}
answer of_paged(life const& l, std::string const& policy) {
  using namespace paged_engine;
  engine_options o;
  o.sizes.pages = 40;
  o.sizes.page_size = 7;
  o.sizes.slots = 3;
  o.sizes.capacity = l.capacity();
  o.batch_tokens = 90;
  o.chunk = 33;
  o.trigger = l.trigger;
  o.budget = l.budget;
  host_engine e(engines_test::model(), o, demo::policy_of(policy, {}));
  answer out;
  auto const vocab = static_cast<std::size_t>(engines_test::model().shape().vocab);
  e.watch([&](sequence const& s, float const* row) {
    if (s.asked.id == 1) out.logits.emplace_back(row, row + vocab);
  });
  // Neighbours before and behind it: what they do must not matter.
  e.submit({0, engines_test::tokens(50000, 100), 0, 30});
  e.submit({1, prompt_of(l), 0, l.generated});
  e.submit({2, engines_test::tokens(90000, 60), 0, 50});
  while (!e.idle()) {
    for (sequence const& s : e.step()) {
      if (s.asked.id == 1)
        out.tokens.assign(s.tokens.begin() + static_cast<std::ptrdiff_t>(l.prompt), s.tokens.end());
    }
    CHECK(e.page_problem() == "");
  }
  return out;
}
// The engine of the demo, whose attention is kvmeld's own.
answer of_demo(life const& l) {
  tiny_llama::engine<kvmeld::compose::composed> e(engines_test::model(), demo::policy_of("streaming_llm", {}),
                                                  l.capacity());
  auto const ignore = [](std::uint32_t, std::uint32_t, float const*, float const*) {};
  answer out;
  std::vector<float> logits;
  e.read(prompt_of(l), logits, ignore);
  std::size_t const vocab = static_cast<std::size_t>(engines_test::model().shape().vocab);
  logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(vocab));
  for (std::uint32_t i = 0; i < l.generated; ++i) {
    out.logits.push_back(logits);
    out.tokens.push_back(best(logits));
    if (i + 1 < l.generated) e.read({out.tokens.back()}, logits, ignore);
  }
  return out;
}

std::size_t rows_that_differ(answer const& a, answer const& b) {
  if (a.logits.size() != b.logits.size()) return a.logits.size() + b.logits.size();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    bool const same =
        a.logits[i].size() == b.logits[i].size() &&
        std::memcmp(a.logits[i].data(), b.logits[i].data(), a.logits[i].size() * sizeof(float)) == 0;
    wrong += same ? 0 : 1;
  }
  return wrong;
}
double furthest(answer const& a, answer const& b) {
  REQUIRE(a.logits.size() == b.logits.size());
  double most = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    for (std::size_t j = 0; j < a.logits[i].size(); ++j)
      most = std::max(most,
                      std::fabs(static_cast<double>(a.logits[i][j]) - static_cast<double>(b.logits[i][j])));
  }
  return most;
}

}  // namespace

TEST_CASE("merging off: every engine gives the logits of the engine that does not know kvmeld, bit for bit") {
  life const l;
  answer const before = of_token_major(l, nullptr);
  REQUIRE(before.logits.size() == l.generated);
  CHECK(rows_that_differ(of_token_major(l, "chelsea"), before) == 0);
  CHECK(rows_that_differ(of_tiled(l, "chelsea"), before) == 0);
  answer const paged = of_paged(l, "chelsea");
  CHECK(rows_that_differ(paged, before) == 0);
  CHECK(paged.tokens == before.tokens);
  // Other orders of summation: -ffast-math, and the demo's, whose rows are summed by kvmeld's kernels.
  answer const fast = of_fast(l, "chelsea"), demo = of_demo(l);
  CHECK(fast.tokens == before.tokens);
  CHECK(furthest(fast, before) < 2e-3);
  CHECK(demo.tokens == before.tokens);
  CHECK(furthest(demo, before) < 2e-3);
}

TEST_CASE("merging on: the same result in every layout and batch, bit for bit") {
  life l;
  l.trigger = 96;
  l.budget = 48;
  answer const whole = of_token_major({}, nullptr);
  for (char const* const policy : {"chelsea", "kvmerger", "streaming_llm", "h2o"}) {
    CAPTURE(std::string(policy));
    answer const first = of_token_major(l, policy);
    CHECK(rows_that_differ(first, whole) == l.generated);  // it is another cache
    CHECK(rows_that_differ(of_tiled(l, policy), first) == 0);
    answer const paged = of_paged(l, policy);
    // Scores of attention are sums, which are rounded token by token there and block by block here.
    if (std::string(policy) == "h2o") {
      CHECK(furthest(paged, first) < 2e-3);
    } else {
      CHECK(rows_that_differ(paged, first) == 0);
    }
    CHECK(paged.tokens == first.tokens);
  }
}

TEST_CASE("merging on under -ffast-math: the same tokens") {
  life l;
  l.trigger = 96;
  l.budget = 48;
  for (char const* const policy : {"chelsea", "streaming_llm"}) {
    CAPTURE(std::string(policy));
    answer const first = of_token_major(l, policy), fast = of_fast(l, policy);
    CHECK(fast.tokens == first.tokens);
    CHECK(furthest(fast, first) < 0.25);  // a near tie may fall the other way
  }
}

TEST_CASE("the engine in C says why it refuses") {
  CHECK_THROWS_WITH(
      token_major::reader(engines_test::model(), 64, "slim"),
      doctest::Contains("token_major: policy: name is \"slim\"; it must be one of streaming_llm, h2o, "));
  token_major::reader r(engines_test::model(), 2, "chelsea");
  r.read(65);
  r.read(66);
  CHECK_THROWS_WITH(r.read(67),
                    doctest::Contains("counts[0] is 1; it must be at most 0, the free entries of "));
  token_major::reader plain(engines_test::model(), 1, nullptr);
  plain.read(65);
  CHECK_THROWS_WITH(plain.compress(1), doctest::Contains("token_major: "));
}
