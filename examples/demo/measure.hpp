// One method on one context at every budget.
#pragma once

#include "prompts.hpp"
#include "questions.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace demo {

/// Sums over contexts; the report shows their means.
struct tally {
  double bits = 0, decode_seconds = 0, compress_seconds = 0, observe_seconds = 0, error = 0;
  std::size_t tokens = 0;
  recall_result after, inside;
  std::uint64_t bytes = 0, context_tokens = 0;
  int contexts = 0;
  kvmeld::stats_sum live;  ///< of every context's tracks, after compression
  bool scored = false;     ///< the policy ranks by attention

  void operator+=(tally const& other) {
    bits += other.bits;
    decode_seconds += other.decode_seconds;
    compress_seconds += other.compress_seconds;
    observe_seconds += other.observe_seconds;
    error += other.error;
    tokens += other.tokens;
    after += other.after;
    inside += other.inside;
    bytes += other.bytes;
    context_tokens += other.context_tokens;
    contexts += other.contexts;
    live += other.live;
    scored = scored || other.scored;
  }
};

/// Asks an engine whose cache has its final form everything that is asked after compression.
template <class Engine> void question(Engine& engine, context const& c, tally& t) {
  continuation_result const read = read_on(engine, c.source.continuation);
  t.bits += read.bits;
  t.decode_seconds += read.seconds;
  t.tokens += read.tokens;
  t.error += output_error(engine, c.probe_queries);
  t.bytes += engine.kv_bytes();
  t.context_tokens += c.source.context.size();
  for (tiny_llama::needle const& n : c.source.needles) {
    std::vector<int> const asked = tiny_llama::byte_tokens(n.question);
    t.after += ask(engine, asked, n.answer);
    if (!c.source.continuation.empty()) continue;
    continuation_result const answered = answer_bits(engine, asked, tiny_llama::byte_tokens(n.answer));
    t.bits += answered.bits;
    t.tokens += answered.tokens;
  }
  ++t.contexts;
}

/// What a cache is compressed to: nothing (the full cache), a share, or a share per head.
struct target {
  double share = 1.0;
  std::vector<double> heads;
  bool compresses = true;

  template <class Engine> void apply(Engine& engine) const {
    if (!compresses) return;
    if (heads.empty()) return engine.compress(share);
    engine.compress(heads);
  }
};

/// Reads a context `chunk` tokens at a time, compressing to each target's share of the context, and asks.
template <class Policy>
void measure_in_chunks(tiny_llama::model& model, Policy const& policy, context const& c,
                       std::uint32_t capacity, std::size_t chunk, std::vector<target> const& targets,
                       tiny_llama::reading how, std::vector<tally>& tallies,
                       std::function<void()> const& done) {
  for (std::size_t b = 0; b < targets.size(); ++b) {
    std::size_t const whole = c.source.context.size();
    auto const entries = kvmeld::floor_share(targets[b].share, static_cast<std::uint32_t>(whole));
    auto const read = [&](tiny_llama::engine<Policy>& engine, std::vector<int> const& question) {
      std::vector<int> all = c.source.context;
      all.insert(all.end(), question.begin(), question.end());
      if (targets[b].compresses) return engine.read_within(all, chunk, entries);
      return engine.read_within(all, all.size(), capacity);
    };
    tiny_llama::engine<Policy> engine(model, policy, capacity, how);
    tallies[b].compress_seconds += read(engine, {});
    tallies[b].live += engine.figures();
    tallies[b].scored = bool(engine.cache().needs_observation());
    question(engine, c, tallies[b]);
    done();
    for (asked_prompt const& p : c.with_question) {
      tiny_llama::engine<Policy> asked(model, policy, capacity, how);
      read(asked, p.question);
      tallies[b].inside += ask(asked, p.rest, p.answer);
    }
  }
  for (std::size_t i = 0; i < c.with_question.size(); ++i) done();
}

/// Compresses copies of the prompt to every target and asks. `done` is told after each step.
template <class Policy>
void measure(tiny_llama::model& model, Policy const& policy, context const& c, std::uint32_t capacity,
             std::vector<target> const& targets, tiny_llama::reading how, std::vector<tally>& tallies,
             std::function<void()> const& done) {
  auto const begin = clock::now();
  tiny_llama::engine<Policy> const observed(model, policy, capacity, c.plain, how);
  double const observing = seconds_since(begin);
  for (std::size_t b = 0; b < targets.size(); ++b) {
    tiny_llama::engine<Policy> engine(observed);
    auto const start = clock::now();
    targets[b].apply(engine);
    tallies[b].compress_seconds += seconds_since(start);
    tallies[b].observe_seconds += observing;
    tallies[b].live += engine.figures();
    tallies[b].scored = bool(engine.cache().needs_observation());
    question(engine, c, tallies[b]);
    done();
  }
  for (asked_prompt const& p : c.with_question) {
    tiny_llama::engine<Policy> const asked(model, policy, capacity, p.state, how);
    for (std::size_t b = 0; b < targets.size(); ++b) {
      tiny_llama::engine<Policy> engine(asked);
      targets[b].apply(engine);
      tallies[b].inside += ask(engine, p.rest, p.answer);
    }
    done();
  }
}

}  // namespace demo
