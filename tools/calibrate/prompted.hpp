// What a compressed cache is asked while calibrating: text that goes on, and planted numbers, answers given
// (teacher forced), so that a whole question is one pass of the model.
#pragma once

#include <demo/prompts.hpp>
#include <demo/questions.hpp>

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/tokens.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace calibrating {

/// Tokens to read at once, and which of their predictions count: those of rows [first, tokens.size()).
struct prompt {
  std::vector<int> tokens;
  std::size_t first = 0;
  std::vector<float> whole;  ///< log-probabilities with the full cache, [rows that count][vocab]
};

/// A sample of text, read once with the full cache, and what is asked of it.
struct sample {
  demo::context context;
  std::vector<prompt> prompts;
};

inline void to_log_probabilities(float* row, std::size_t vocab) {
  auto const norm = static_cast<float>(demo::log_sum(row, vocab));
  for (std::size_t i = 0; i < vocab; ++i) row[i] -= norm;
}

/// Log-probabilities of the rows that count.
template <class Engine> std::vector<float> predictions(Engine& engine, prompt const& p, std::size_t vocab) {
  std::vector<float> logits;
  engine.try_out(p.tokens, logits, p.tokens.size() - p.first);
  engine.forget();
  for (std::size_t at = 0; at < logits.size(); at += vocab) to_log_probabilities(logits.data() + at, vocab);
  return logits;
}

/// KL divergence of `got` from `full`, in bits, mean over rows.
inline double divergence(std::vector<float> const& full, std::vector<float> const& got, std::size_t vocab) {
  double sum = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    auto const p = static_cast<double>(full[i]);
    sum += std::exp(p) * (p - static_cast<double>(got[i]));
  }
  return sum / std::log(2.0) / static_cast<double>(full.size() / vocab);
}

/// What a cache has lost on a sample, in bits: the mean over its prompts, text and each question alike, of
/// the mean divergence of their predictions from those of the full cache.
template <class Engine> double divergence_of(Engine& engine, sample const& s, std::size_t vocab) {
  double sum = 0;
  for (prompt const& p : s.prompts) sum += divergence(p.whole, predictions(engine, p, vocab), vocab);
  return sum / static_cast<double>(s.prompts.size());
}

/// Reads a sample, and asks the full cache everything.
inline sample read_sample(tiny_llama::model& model, demo::material source, std::uint32_t capacity,
                          bool replays) {
  sample out;
  std::vector<int> const text = source.continuation;
  auto const vocab = static_cast<std::size_t>(model.shape().vocab);
  std::vector<demo::posed_question> questions;
  std::swap(questions, source.questions);  // asked here, not inside prompts of their own
  out.context = demo::read_context(model, std::move(source), capacity, 1, replays);
  out.prompts.push_back({text, 0, {}});
  for (demo::posed_question const& q : questions) {
    prompt p;
    p.tokens = q.question;
    p.first = p.tokens.size() - 1;
    p.tokens.insert(p.tokens.end(), q.answer.begin(), q.answer.end() - 1);
    out.prompts.push_back(std::move(p));
  }
  tiny_llama::engine<demo::full_policy> full(model, demo::policy_of_full(), capacity, out.context.plain);
  for (prompt& p : out.prompts) p.whole = predictions(full, p, vocab);
  return out;
}

}  // namespace calibrating
