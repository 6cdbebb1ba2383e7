// What is asked of a compressed cache: continuation, planted numbers, attention output.
#pragma once

#include <tiny_llama/engine.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

namespace demo {

using clock = std::chrono::steady_clock;

inline double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

struct continuation_result {
  double bits = 0, seconds = 0;
  std::size_t tokens = 0;
};

/// Natural log of the sum of the exponentials of a row of logits.
inline double log_sum(float const* logits, std::size_t vocab) {
  float const high = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i] - high));
  return static_cast<double>(high) + std::log(sum);
}

/// -log2 of the probability that a row of logits gives a token.
inline double bits_of(float const* logits, std::size_t vocab, int token) {
  return (log_sum(logits, vocab) - static_cast<double>(logits[token])) / std::log(2.0);
}

/// Decodes the true continuation token by token. The first token follows from the prompt and is not counted.
template <class Engine> continuation_result read_on(Engine& engine, std::vector<int> const& tokens) {
  continuation_result result;
  std::vector<float> logits;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    auto const begin = clock::now();
    engine.try_out({tokens[i]}, logits);
    result.seconds += seconds_since(begin);
    result.bits += bits_of(logits.data(), logits.size(), tokens[i + 1]);
    ++result.tokens;
  }
  engine.forget();
  return result;
}

/// The bits of an answer behind a question, each token given those before it. Their time is not taken.
template <class Engine>
continuation_result answer_bits(Engine& engine, std::vector<int> const& question,
                                std::vector<int> const& answer) {
  continuation_result result;
  std::vector<int> tokens = question;
  tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
  std::vector<float> logits;
  engine.try_out(tokens, logits, answer.size());
  engine.forget();
  std::size_t const vocab = logits.size() / answer.size();
  for (int const token : answer) result.bits += bits_of(&logits[result.tokens++ * vocab], vocab, token);
  return result;
}

/// Of tokens (a byte model's are the digits of numbers), and of answers.
struct recall_result {
  int digits = 0, right = 0, numbers = 0, exact = 0;
  void operator+=(recall_result const& other) {
    digits += other.digits;
    right += other.right;
    numbers += other.numbers;
    exact += other.exact;
  }
};

/// Gives the rest of a question and lets the model answer greedily, token by token.
template <class Engine>
recall_result ask(Engine& engine, std::vector<int> const& question, std::vector<int> const& answer) {
  recall_result result;
  std::vector<float> logits;
  std::vector<int> next = question;
  for (int const expected : answer) {
    engine.try_out(next, logits);
    auto const best = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    result.right += best == expected ? 1 : 0;
    ++result.digits;
    next = {best};
  }
  engine.forget();
  ++result.numbers;
  result.exact += result.right == result.digits ? 1 : 0;
  return result;
}

/// Queries of the tokens behind the prompt, and what the full cache answers them, per layer.
struct probe {
  std::size_t queries = 0;
  std::vector<std::vector<float>> query, output;
};

/// ||o - o_full|| / ||o_full|| of the attention output, averaged over layers.
template <class Engine> double output_error(Engine& engine, probe const& p) {
  double sum = 0;
  std::vector<float> out;
  for (std::size_t layer = 0; layer < p.query.size(); ++layer) {
    out.resize(p.query[layer].size());
    engine.attend_all(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(p.queries),
                      p.query[layer].data(), out.data());
    double difference = 0, whole = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      double const full = static_cast<double>(p.output[layer][i]);
      double const apart = static_cast<double>(out[i]) - full;
      difference += apart * apart;
      whole += full * full;
    }
    sum += std::sqrt(difference / whole);
  }
  return sum / static_cast<double>(p.query.size());
}

}  // namespace demo
