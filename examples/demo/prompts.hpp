// Reads a context once with the full cache and keeps what every method starts from.
#pragma once

#include "material.hpp"
#include "questions.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>

#include <kvmeld/compose/composed.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace demo {

/// The policy of the full cache: it is never asked to compress.
using full_policy = kvmeld::compose::composed;
inline full_policy policy_of_full() {
  return kvmeld::compose::composed_of(kvmeld::preset::streaming_llm::with_sinks());
}

/// Copies an engine's entries to what other engines start from.
inline void copy_entries(tiny_llama::engine<full_policy> const& engine, tiny_llama::prompt_state& to) {
  to.keys = engine.keys();
  to.values = engine.values();
  to.tokens = engine.cache().tokens(0);
}

/// A prompt, and the question whose answer it holds (the last token is held back, so that even the first
/// token of an answer comes from the compressed cache).
struct asked_prompt {
  tiny_llama::prompt_state state;
  std::vector<int> question;  ///< without its last token
  std::vector<int> rest;
  std::vector<int> answer;
  std::size_t task = 0;
};

struct context {
  material source;
  tiny_llama::prompt_state plain;           ///< the text alone
  std::vector<asked_prompt> with_question;  ///< the text and one question each
  probe probe_queries;
};

/// Appends what layers show of new tokens to a record: reader(layer, n, queries, log-sum-exps). `weights`, if
/// wanted, gets 1 / |x| of each row x that queries were made from.
inline auto recorder(tiny_llama::model const& model, std::vector<std::vector<float>>& queries,
                     std::vector<std::vector<float>>& lse,
                     std::vector<std::vector<float>>* weights = nullptr) {
  auto const heads = static_cast<std::size_t>(model.shape().heads);
  std::size_t const row = heads * static_cast<std::size_t>(model.shape().head_dim);
  return [&model, &queries, &lse, weights, heads, row](std::uint32_t layer, std::uint32_t n, float const* q,
                                                       float const* sums) {
    if (queries.size() <= layer) {
      queries.resize(layer + 1);
      lse.resize(layer + 1);
    }
    queries[layer].insert(queries[layer].end(), q, q + n * row);
    lse[layer].insert(lse[layer].end(), sums, sums + n * heads);
    if (weights == nullptr) return;
    if (weights->size() <= layer) weights->resize(layer + 1);
    auto const hidden = static_cast<std::size_t>(model.shape().hidden);
    for (std::uint32_t i = 0; i < n; ++i) {
      double squares = 0;
      float const* const x = model.attention_input() + i * hidden;
      for (std::size_t c = 0; c < hidden; ++c)
        squares += static_cast<double>(x[c]) * static_cast<double>(x[c]);
      (*weights)[layer].push_back(static_cast<float>(1 / std::sqrt(squares)));
    }
  };
}

/// What an engine that has read `tokens` sees of them when it reads them once more, for policies that want to
/// be shown that (KVzip). Its capacity has to hold them twice. The second reading stands behind the first. If
/// the model has no positions for all of it, it is read in parts, each behind the last words of the part
/// before.
inline void replay(tiny_llama::model const& model, tiny_llama::engine<full_policy> const& engine,
                   std::vector<int> const& tokens, tiny_llama::prompt_state& state) {
  constexpr std::ptrdiff_t lead = 8;
  auto const count = static_cast<std::ptrdiff_t>(tokens.size());
  std::ptrdiff_t const room = model.shape().max_positions - count - lead;
  if (room < 1) {
    throw std::invalid_argument("reading " + std::to_string(count) +
                                " tokens a second time needs more than the " +
                                std::to_string(model.shape().max_positions) + " positions of the model");
  }
  std::vector<float> logits;
  for (std::ptrdiff_t first = 0; first < count; first += room) {
    auto const begin = tokens.begin() + first, end = begin + std::min(room, count - first);
    tiny_llama::engine<full_policy> again(engine);
    if (first != 0) again.read({begin - lead, begin}, logits, [](auto&&...) {});
    again.read({begin, end}, logits,
               recorder(model, state.replay_queries, state.replay_lse, &state.replay_weights));
  }
}

/// `replays`: policies want to be shown a second reading.
inline context read_context(tiny_llama::model& model, material source, std::uint32_t capacity, int probes,
                            bool replays = false) {
  context out;
  out.source = std::move(source);
  bool const reads_on = !out.source.continuation.empty();
  std::vector<int> const continuation =
      reads_on ? out.source.continuation : out.source.questions.at(0).question;
  probes = std::min(probes, static_cast<int>(continuation.size()));

  std::vector<float> logits;
  tiny_llama::engine<full_policy> engine(model, policy_of_full(), capacity);
  engine.read(out.source.context, logits, recorder(model, out.plain.queries, out.plain.lse));
  copy_entries(engine, out.plain);
  if (replays) replay(model, engine, out.source.context, out.plain);

  // The queries of the text that follows, or of a question, as the full cache sees it.
  tiny_llama::prompt_state after;
  {
    tiny_llama::engine<full_policy> ahead(engine);
    std::vector<int> const next(continuation.begin(), continuation.begin() + probes);
    ahead.read(next, logits, recorder(model, after.queries, after.lse));
  }
  out.probe_queries.queries = static_cast<std::size_t>(probes);
  out.probe_queries.query = after.queries;
  for (std::size_t layer = 0; layer < after.queries.size(); ++layer) {
    std::vector<float> answer(after.queries[layer].size());
    engine.attend_all(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(probes),
                      after.queries[layer].data(), answer.data());
    out.probe_queries.output.push_back(answer);
  }

  for (posed_question const& posed : out.source.questions) {
    if (!posed.inside) continue;
    asked_prompt asked;
    std::vector<int> question = posed.question;
    asked.rest = {question.back()};
    question.pop_back();
    asked.question = question;
    asked.answer = posed.answer;
    asked.task = posed.task;
    asked.state = out.plain;
    tiny_llama::engine<full_policy> ahead(engine);
    ahead.read(question, logits, recorder(model, asked.state.queries, asked.state.lse));
    if (replays) {
      std::vector<int> all = out.source.context;
      all.insert(all.end(), question.begin(), question.end());
      asked.state.replay_queries.clear();
      asked.state.replay_lse.clear();
      asked.state.replay_weights.clear();
      replay(model, ahead, all, asked.state);
    }
    copy_entries(ahead, asked.state);
    out.with_question.push_back(std::move(asked));
  }
  return out;
}

}  // namespace demo
