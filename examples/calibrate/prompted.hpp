// What a compressed cache is asked while calibrating: text that goes on, and planted numbers, answers given (teacher forced),
// so that a whole question is one pass of the model.
#pragma once

#include <demo/prompts.hpp>
#include <demo/questions.hpp>

#include <tiny_llama/engine.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace calibrating {

/// Tokens to read at once, and which of their predictions count: those of rows [first, tokens.size()).
struct prompt {
  std::vector<int> tokens;
  std::size_t first = 0;
  std::vector<int> answer;   ///< what follows each row that counts; empty for text
  std::vector<float> whole;  ///< log-probabilities with the full cache, [rows that count][vocab]
};

/// A sample of text, read once with the full cache, and what is asked of it.
struct sample {
  demo::context context;
  std::vector<prompt> prompts;
};

/// What compression cost a sample, over its prompts: 0 is as good as the full cache.
struct loss {
  double divergence =
      0;  ///< bits: mean over prompts of the mean KL divergence of the predictions from the full cache's
  double recall = 0;  ///< share of the digits that the full cache gets right and this one does not
  double output = 0;  ///< relative error of the attention output on probe queries
  loss& operator+=(loss const& x) {
    divergence += x.divergence;
    recall += x.recall;
    output += x.output;
    return *this;
  }
};

inline void to_log_probabilities(float* row, std::size_t vocab) {
  float const high = *std::max_element(row, row + vocab);
  double sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i] - high));
  auto const norm = static_cast<float>(high + std::log(sum));
  for (std::size_t i = 0; i < vocab; ++i) row[i] -= norm;
}

/// Log-probabilities of the rows that count.
template <class Engine> std::vector<float> predictions(Engine& engine, prompt const& p, std::size_t vocab) {
  std::vector<float> logits;
  engine.try_out(p.tokens, logits, false);
  engine.forget();
  logits.erase(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(p.first * vocab));
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

inline int best_of(float const* row, std::size_t vocab) {
  return static_cast<int>(std::max_element(row, row + vocab) - row);
}

template <class Engine> loss loss_of(Engine& engine, sample const& s, std::size_t vocab) {
  loss out;
  double right = 0, lost = 0;
  for (prompt const& p : s.prompts) {
    std::vector<float> const got = predictions(engine, p, vocab);
    out.divergence += divergence(p.whole, got, vocab) / static_cast<double>(s.prompts.size());
    for (std::size_t r = 0; r < p.answer.size(); ++r) {
      if (best_of(p.whole.data() + r * vocab, vocab) != p.answer[r]) continue;
      right += 1;
      lost += best_of(got.data() + r * vocab, vocab) != p.answer[r] ? 1 : 0;
    }
  }
  if (right > 0) out.recall = lost / right;
  out.output = demo::output_error(engine, s.context.probe_queries);
  return out;
}

/// Reads a sample, and asks the full cache everything.
inline sample read_sample(tiny_llama::model& model, demo::material source, std::uint32_t capacity) {
  sample out;
  std::vector<int> const text = source.continuation;
  auto const vocab = static_cast<std::size_t>(model.shape().vocab);
  std::vector<tiny_llama::needle> needles;
  std::swap(needles, source.needles);  // asked here, not inside prompts of their own
  out.context = demo::read_context(model, std::move(source), capacity, 32);
  out.prompts.push_back({text, 0, {}, {}});
  for (tiny_llama::needle const& n : needles) {
    prompt p;
    p.tokens = tiny_llama::byte_tokens(n.question);
    p.first = p.tokens.size() - 1;
    p.answer = tiny_llama::byte_tokens(n.answer);
    p.tokens.insert(p.tokens.end(), p.answer.begin(), p.answer.end() - 1);
    out.prompts.push_back(std::move(p));
  }
  tiny_llama::engine<demo::full_policy> full(
      model, kvmeld::compose::composed_of(kvmeld::preset::streaming_llm::with_sinks()), capacity,
      out.context.plain);
  for (prompt& p : out.prompts) p.whole = predictions(full, p, vocab);
  return out;
}

}  // namespace calibrating
