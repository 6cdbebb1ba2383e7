// One method on one context at every budget.
#pragma once

#include "prompts.hpp"
#include "questions.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace demo {

/// What was predicted and answered of one task, or where there are none of the text.
struct task_tally {
  double bits = 0;
  std::size_t tokens = 0;
  recall_result after, inside;

  void operator+=(continuation_result const& read) {
    bits += read.bits;
    tokens += read.tokens;
  }
};

/// Sums over contexts; the report shows their means.
struct tally {
  explicit tally(std::size_t task_count) : tasks(task_count) {}

  std::vector<task_tally> tasks;
  double decode_seconds = 0, compress_seconds = 0, observe_seconds = 0, error = 0;
  std::uint64_t bytes = 0, context_tokens = 0;
  int contexts = 0;
  kvmeld::stats_sum live;  ///< of every context's tracks, after compression
  bool scored = false;     ///< the policy ranks by attention
};

/// Asks an engine whose cache has its final form everything that is asked after compression.
template <class Engine> void question(Engine& engine, context const& c, tally& t) {
  continuation_result const read = read_on(engine, c.source.continuation);
  t.tasks.front() += read;
  t.decode_seconds += read.seconds;
  t.error += output_error(engine, c.probe_queries);
  t.bytes += engine.kv_bytes();
  t.context_tokens += c.source.context.size();
  for (posed_question const& q : c.source.questions) {
    task_tally& of_task = t.tasks[q.task];
    of_task.after += ask(engine, q.question, q.answer);
    if (c.source.continuation.empty()) of_task += answer_bits(engine, q.question, q.answer);
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
      tallies[b].tasks[p.task].inside += ask(asked, p.rest, p.answer);
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
      tallies[b].tasks[p.task].inside += ask(engine, p.rest, p.answer);
    }
    done();
  }
}

}  // namespace demo
