// The demo on a model of tokens and a file of token numbers: its figures are those of plain attention over
// the entries that stay.
#include "run_program.hpp"

#include "examples/model_files.hpp"

#include <tiny_llama/files.hpp>
#include <tiny_llama/json_text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace demo_tokens_cases {

using nlohmann::json;

constexpr std::size_t vocab = 97;

/// Keys and values of one sequence, per layer [entries][kv_heads][head_dim]. A copy goes on from the same
/// place.
struct plain_cache {
  tiny_llama::model* model;
  std::vector<std::vector<float>> keys{2}, values{2};
  int tokens = 0;

  /// Logits of the last token.
  std::vector<float> read(std::vector<int> const& ids) {
    std::vector<float> logits;
    auto const attend = [&](int layer, int n, float const* q, float const* k, float const* v, float* out) {
      std::vector<float>&all_keys = keys[std::size_t(layer)], &all_values = values[std::size_t(layer)];
      std::size_t const before = all_keys.size() / 8;
      all_keys.insert(all_keys.end(), k, k + n * 8);
      all_values.insert(all_values.end(), v, v + n * 8);
      for (std::size_t i = 0; i < std::size_t(n); ++i) {
        for (std::size_t head = 0; head < 4; ++head) {  // two of each KV head
          double sum = 0, weighted[4] = {};
          for (std::size_t entry = 0; entry <= before + i; ++entry) {
            double logit = 0;
            for (std::size_t c = 0; c < 4; ++c)
              logit += double(q[(i * 4 + head) * 4 + c]) * double(all_keys[entry * 8 + head / 2 * 4 + c]) / 2;
            sum += std::exp(logit);
            for (std::size_t c = 0; c < 4; ++c)
              weighted[c] += std::exp(logit) * double(all_values[entry * 8 + head / 2 * 4 + c]);
          }
          for (std::size_t c = 0; c < 4; ++c) out[(i * 4 + head) * 4 + c] = float(weighted[c] / sum);
        }
      }
    };
    model->forward(ids.data(), int(ids.size()), tokens, attend, logits, tiny_llama::last_token);
    tokens += int(ids.size());
    return logits;
  }

  /// Keeps the first and the last entries of a context.
  void keep(std::ptrdiff_t first, std::ptrdiff_t last) {
    for (auto* rows : {&keys, &values})
      for (std::vector<float>& row : *rows) row.erase(row.begin() + first * 8, row.end() - last * 8);
  }
};

int best_of(std::vector<float> const& logits) {
  return int(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// What a cache answers greedily.
std::vector<int> answered(plain_cache cache, std::vector<int> const& question, std::size_t count) {
  std::vector<int> out, next = question;
  while (out.size() < count) {
    out.push_back(best_of(cache.read(next)));
    next = {out.back()};
  }
  return out;
}

struct expected_task {
  double bits = 0, predicted = 0, right = 0, asked = 0, exact = 0, answers = 0;

  void ask(plain_cache cache, std::vector<int> const& question, std::vector<int> const& answer) {
    std::vector<int> const got = answered(cache, question, answer.size());
    for (std::size_t i = 0; i < answer.size(); ++i) right += got[i] == answer[i];
    asked += double(answer.size());
    exact += got == answer;
    ++answers;
    std::vector<int> next = question;
    for (int const token : answer) {
      std::vector<float> const logits = cache.read(next);
      double sum = 0;
      for (float const x : logits) sum += std::exp(double(x));
      bits += std::log2(sum / std::exp(double(logits[std::size_t(token)])));
      ++predicted;
      next = {token};
    }
  }
};

TEST_CASE("the demo asks in tokens and counts what plain attention answers") {
  test::temporary_folder const folder;
  json config = test::config_json(false);
  config["vocab_size"] = vocab;
  config["max_position_embeddings"] = 256;
  tiny_llama::model_weights weights = test::random_weights(false, 3, vocab);
  for (float& w : weights.head) w *= 4;  // so that few choices are near ties
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", test::pack(weights).file());
  tiny_llama::model model = tiny_llama::model::load(folder.path());

  // Two contexts with two tasks each; "what" is asked twice of the second. Of the answers that the full cache
  // gives, some are spoiled: the right tokens are then others.
  struct line {
    std::size_t context;
    std::string task;
    std::vector<int> question;
    std::size_t length;
    bool spoiled;
  };
  std::vector<line> const lines{{0, "where", {5, 96, 7}, 3, false},
                                {0, "what", {8, 9}, 2, true},
                                {1, "what", {1, 2}, 2, false},
                                {1, "what", {20, 21, 22}, 4, true},
                                {1, "where", {40, 41}, 1, false}};
  std::vector<std::vector<int>> contexts(2);
  std::vector<plain_cache> full(2, plain_cache{&model}), short_of;
  for (int i = 0; i < 100; ++i) {
    contexts[0].push_back((i * i + 3 * i) % 97);
    contexts[1].push_back((i * 31 + i / 7) % 97);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    full[i].read(contexts[i]);
    short_of.push_back(full[i]);
    short_of[i].keep(4, 46);
  }
  std::string file;
  std::vector<std::vector<expected_task>> expected(2, std::vector<expected_task>(2)),
      inside = expected;  // by row and task
  for (line const& l : lines) {
    std::vector<int> answer = answered(full[l.context], l.question, l.length);
    if (l.spoiled) answer.front() = (answer.front() + 1) % int(vocab);
    file +=
        json{{"task", l.task}, {"context", contexts[l.context]}, {"question", l.question}, {"answer", answer}}
            .dump() +
        "\n";
    std::size_t const task = l.task == "where" ? 0 : 1;
    expected[0][task].ask(full[l.context], l.question, answer);
    expected[1][task].ask(short_of[l.context], l.question, answer);
    if (&l != &lines[0] && &l != &lines[2]) continue;
    // Asked inside: the last token of the question is read after the compression.
    plain_cache whole = full[l.context];
    whole.read({l.question.begin(), l.question.end() - 1});
    plain_cache half = whole;
    half.keep(4, whole.tokens / 2 - 4);
    inside[0][task].ask(whole, {l.question.back()}, answer);
    inside[1][task].ask(half, {l.question.back()}, answer);
  }
  folder.write("tasks.jsonl", file);

  test::ended const e =
      test::run(test::program_called("kvmeld_demo"),
                {"--model", folder.path(), "--method", "full,streaming_llm", "--budget", "0.5", "--json",
                 folder / "r.json", "--chart", folder / "c.svg", "--threads", "1"});
  REQUIRE_MESSAGE(e.status == 0, e.err);
  auto const has = [](std::string const& text, char const* words) {
    return text.find(words) != std::string::npos;
  };
  CHECK(has(e.out, "2 contexts of 100 tokens on average, 2 tasks"));
  CHECK(has(e.out, "all tokens right (exact), tokens right; bits of the right"));
  CHECK(has(e.out, "   token   tokens    exact   tokens    exact"));
  CHECK(!has(e.out, "byte"));
  std::string const chart = tiny_llama::read_file(folder / "c.svg", 1 << 20);
  CHECK(has(chart, "bits per token"));
  CHECK(!has(chart, "byte"));

  json const got = json::parse(tiny_llama::read_file(folder / "r.json", 1 << 20));
  CHECK(got["unit"] == "token");
  REQUIRE(got["rows"].size() == 2);
  char const* const names[] = {"where", "what"};
  for (std::size_t row = 0; row < 2; ++row) {
    CAPTURE(row);
    json const& figures = got["rows"][row];
    CHECK(figures["method"] == (row == 0 ? "full" : "streaming_llm"));
    CHECK(!figures.contains("bits_per_byte"));
    double bits = 0, right = 0, exact = 0, right_inside = 0, exact_inside = 0;
    for (std::size_t task = 0; task < 2; ++task) {
      expected_task const& x = expected[row][task];
      CHECK(figures["tasks"][names[task]]["exact"] == doctest::Approx(x.exact / x.answers));
      CHECK(figures["tasks"][names[task]]["accuracy"] == doctest::Approx(x.right / x.asked));
      bits += x.bits / x.predicted / 2;
      right += x.right / x.asked / 2;
      exact += x.exact / x.answers / 2;
      right_inside += inside[row][task].right / inside[row][task].asked / 2;
      exact_inside += inside[row][task].exact / 2;
    }
    CHECK(figures["needle_exact"] == doctest::Approx(exact));
    CHECK(figures["needle_accuracy"] == doctest::Approx(right));
    CHECK(figures["bits_per_token"].get<double>() ==
          doctest::Approx(bits).epsilon(2e-3));  // K and V are halves
    CHECK(figures["needle_exact_inside"] == doctest::Approx(exact_inside));
    CHECK(figures["needle_accuracy_inside"] == doctest::Approx(right_inside));
  }
  CHECK(expected[0][0].exact == 2);  // the answers that were not spoiled
  CHECK(expected[0][1].exact == 1);
  CHECK(got["rows"][0]["bits_per_token"] != got["rows"][1]["bits_per_token"]);

  // Texts mean nothing to this model.
  test::ended const texts = test::run(
      test::program_called("kvmeld_demo"),
      {"--model", folder.path(), "--tasks",
       folder.write("texts.jsonl", R"({"task":"a","context":"text","question":"of A","answer":"x"})")});
  CHECK(texts.status == 1);
  CHECK(has(texts.err, "texts.jsonl: line 1: context is 'text'; an array of token numbers"));
}

}  // namespace demo_tokens_cases
