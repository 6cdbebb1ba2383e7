// Many random requests to engines of random sizes, on a model small enough that what is tested is everything
// else.
#pragma once

#include "host_engine.hpp"

#include <tiny_llama/model.hpp>
#include <tiny_llama/random.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace paged_engine {

/// One layer or two, random weights, 16 tokens.
inline tiny_llama::model random_model(tiny_llama::splitmix64& random, int layers) {
  tiny_llama::config c;
  c.hidden = 16;
  c.intermediate = 16;
  c.layers = layers;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.vocab = 16;
  c.max_positions = 512;
  c.tied_embeddings = true;
  auto const draw = [&](int count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = static_cast<float>(random.unit() * 1.6 - 0.8);
    return out;
  };
  tiny_llama::model_weights w;
  w.embedding = draw(16 * 16);
  for (int i = 0; i < layers; ++i) {
    w.layers.push_back({draw(16), draw(32 * 16), draw(16 * 16), draw(16 * 16), draw(16 * 32), draw(16),
                        draw(16 * 16), draw(16 * 16), draw(16 * 16)});
  }
  w.norm = draw(16);
  return tiny_llama::model(c, std::move(w), "random");
}

struct soak_result {
  std::uint64_t requests = 0, engines = 0, compared = 0;
  totals sums;
  std::string problem;  ///< empty: none found
};

namespace soak_detail {

inline engine_options random_options(tiny_llama::splitmix64& random) {
  auto const between = [&](std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(random.below(high - low + 1));
  };
  engine_options o;
  o.sizes.page_size = between(1, 19);
  o.sizes.slots = between(1, 6);
  o.sizes.capacity = 160;
  o.trigger = random.below(4) == 0 ? 0 : between(24, 60);
  o.budget = o.trigger == 0 ? 0 : between(12, o.trigger - 4);
  std::uint32_t const longest = o.trigger == 0 ? 130 : o.trigger;
  std::uint32_t const least = kvmeld::ceil_div(longest, o.sizes.page_size) + 1;
  o.sizes.pages = between(least, 3 * least);
  o.batch_tokens = between(1, 64);
  o.chunk = between(1, 40);
  o.drafts = between(0, 4);
  o.draft_words = between(1, 3);
  o.preempted = random.below(2) == 0 ? preemption::save : preemption::recompute;
  return o;
}

/// Half of the prompts begin like others.
inline request random_request(tiny_llama::splitmix64& random, std::uint32_t id, engine_options const& o) {
  request r;
  r.id = id;
  std::uint32_t const shared =
      static_cast<std::uint32_t>(random.below(o.trigger == 0 ? 40 : o.budget / 2 + 1));
  if (random.below(2) == 0) {
    auto const which = static_cast<int>(random.below(3));
    for (std::uint32_t i = 0; i < shared; ++i)
      r.prompt.push_back((which + static_cast<int>(i) * (which + 3)) % 16);
    r.shared_tokens = shared;
  }
  for (std::uint64_t n = 1 + random.below(50); n != 0; --n)
    r.prompt.push_back(static_cast<int>(random.below(16)));
  r.max_new = 1 + static_cast<std::uint32_t>(random.below(30));
  return r;
}

/// The answer of an engine that has nothing else to do, with room for all, no drafts and whole prompts at
/// once.
inline std::vector<int> alone(tiny_llama::model& m, engine_options o, kvmeld::compose::composed const& p,
                              request const& r) {
  o.sizes.pages = 400;
  o.sizes.slots = 1;
  o.batch_tokens = o.chunk = 512;
  o.drafts = 0;
  host_engine e(m, o, p);
  e.submit(r);
  for (;;) {
    std::vector<sequence> done = e.step();
    if (!done.empty()) return done.front().tokens;
  }
}

}  // namespace soak_detail

/// Runs `requests` random requests, `per_engine` of them on each engine. Looks after each step whether a page
/// is leaked or used twice, at the end of each engine whether all pages came back, and of one request in
/// `compare` whether its answer is the one it gets alone. `tell` is given what was done so far.
inline soak_result soak(std::uint64_t requests, std::uint64_t seed, std::uint32_t per_engine,
                        std::uint32_t compare, std::function<void(soak_result const&)> const& tell = {}) {
  using namespace soak_detail;
  soak_result out;
  tiny_llama::splitmix64 random(seed);
  auto const fail = [&](std::string const& what) {
    out.problem = what + " (seed " + std::to_string(seed) + ", engine " + std::to_string(out.engines) + ")";
    return out;
  };
  while (out.requests < requests) {
    tiny_llama::model m = random_model(random, 1 + static_cast<int>(random.below(2)));
    engine_options const o = random_options(random);
    auto const pins = kvmeld::quantity::at_most(4, 0.25);
    kvmeld::compose::composed const policies[] = {
        kvmeld::compose::composed_of(kvmeld::preset::chelsea::with_schedule({}, pins, pins)),
        kvmeld::compose::composed_of(kvmeld::preset::streaming_llm::with_sinks(2)),
        kvmeld::compose::composed_of(kvmeld::preset::h2o::defaults())};
    std::size_t const which = random.below(3);
    kvmeld::compose::composed const& policy = policies[which];
    bool const comparable = !kvmeld::need_of(policy);
    ++out.engines;
    host_engine e(m, o, policy);
    std::map<std::uint32_t, std::vector<int>> expected;
    std::uint32_t const count =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(per_engine, requests - out.requests));
    std::uint32_t submitted = 0, finished = 0;
    while (submitted < count || !e.idle()) {
      while (submitted < count && random.below(3) == 0) {
        request const r = random_request(random, submitted++, o);
        if (comparable && random.below(compare) == 0) expected[r.id] = alone(m, o, policy, r);
        e.submit(r);
      }
      if (e.idle()) continue;
      for (sequence const& s : e.step()) {
        ++finished;
        if (s.answered() != s.asked.max_new) return fail("an answer has the wrong length");
        auto const found = expected.find(s.asked.id);
        if (found == expected.end()) continue;
        ++out.compared;
        if (found->second != s.tokens) {
          return fail("request " + std::to_string(s.asked.id) + " got another answer than alone");
        }
      }
      if (std::string const problem = e.page_problem(); !problem.empty()) return fail(problem);
    }
    if (finished != count) return fail("a request was lost");
    e.forget_prefixes();
    if (e.pool().used() != 0) return fail(std::to_string(e.pool().used()) + " pages did not come back");
    out.requests += count;
    out.sums += e.sums();
    if (tell) tell(out);
  }
  return out;
}

}  // namespace paged_engine
