// Reads a context once with the full cache and keeps what every method starts from.
#pragma once

#include "material.hpp"
#include "questions.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>

#include <kvmeld/compose/composed.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace demo {

/// The policy of the full cache: it is never asked to compress.
using full_policy = kvmeld::compose::composed;

/// A prompt, and the question whose answer it holds (the last token is held back, so that even the first
/// digit of an answer is read from the compressed cache).
struct asked_prompt {
  tiny_llama::prompt_state state;
  std::vector<int> rest;
  std::string answer;
};

struct context {
  material source;
  tiny_llama::prompt_state plain;           ///< the text alone
  std::vector<asked_prompt> with_question;  ///< the text and one question each
  probe probe_queries;
};

/// Appends what a layer shows of new tokens to a prompt's record.
inline void record(tiny_llama::prompt_state& state, std::uint32_t layer, std::size_t row, std::size_t heads,
                   std::uint32_t n, float const* q, float const* lse) {
  if (state.queries.size() <= layer) {
    state.queries.resize(layer + 1);
    state.lse.resize(layer + 1);
  }
  state.queries[layer].insert(state.queries[layer].end(), q, q + n * row);
  state.lse[layer].insert(state.lse[layer].end(), lse, lse + n * heads);
}

inline context read_context(tiny_llama::model& model, material source, std::uint32_t capacity, int probes) {
  context out;
  out.source = std::move(source);
  std::vector<int> const& continuation = out.source.continuation;
  auto const heads = static_cast<std::size_t>(model.shape().heads);
  std::size_t const row = heads * static_cast<std::size_t>(model.shape().head_dim);

  std::vector<float> logits;
  tiny_llama::engine<full_policy> engine(
      model, kvmeld::compose::composed_of(kvmeld::preset::streaming_llm::with_sinks()), capacity);
  auto const reader = [&](tiny_llama::prompt_state& state) {
    return [&state, row, heads](std::uint32_t layer, std::uint32_t n, float const* q, float const* lse) {
      record(state, layer, row, heads, n, q, lse);
    };
  };
  engine.read(out.source.context, logits, reader(out.plain));
  out.plain.keys = engine.keys();
  out.plain.values = engine.values();
  out.plain.tokens = engine.cache().tokens(0);

  // The queries of the text that follows, as the full cache sees it.
  tiny_llama::prompt_state after;
  {
    tiny_llama::engine<full_policy> ahead(engine);
    std::vector<int> const next(continuation.begin(), continuation.begin() + probes);
    ahead.read(next, logits, reader(after));
  }
  out.probe_queries.queries = static_cast<std::size_t>(probes);
  out.probe_queries.query = after.queries;
  for (std::size_t layer = 0; layer < after.queries.size(); ++layer) {
    std::vector<float> answer(after.queries[layer].size());
    engine.attend_all(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(probes),
                      after.queries[layer].data(), answer.data());
    out.probe_queries.output.push_back(answer);
  }

  for (tiny_llama::needle const& needle : out.source.needles) {
    asked_prompt asked;
    std::vector<int> question = tiny_llama::byte_tokens(needle.question);
    asked.rest = {question.back()};
    question.pop_back();
    asked.answer = needle.answer;
    asked.state = out.plain;
    tiny_llama::engine<full_policy> ahead(engine);
    ahead.read(question, logits, reader(asked.state));
    asked.state.keys = ahead.keys();
    asked.state.values = ahead.values();
    asked.state.tokens = ahead.cache().tokens(0);
    out.with_question.push_back(std::move(asked));
  }
  return out;
}

}  // namespace demo
