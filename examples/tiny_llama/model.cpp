#include "model.hpp"

#include "error.hpp"
#include "files.hpp"
#include "matmul.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

namespace tiny_llama {
namespace {

// Extents as sizes, so that products are 64 bits wide.
struct extents {
  std::size_t hidden, ffn, query, kv, vocab;
  explicit extents(config const& c)
      : hidden(static_cast<std::size_t>(c.hidden)),
        ffn(static_cast<std::size_t>(c.intermediate)),
        query(static_cast<std::size_t>(c.heads) * static_cast<std::size_t>(c.head_dim)),
        kv(static_cast<std::size_t>(c.kv_heads) * static_cast<std::size_t>(c.head_dim)),
        vocab(static_cast<std::size_t>(c.vocab)) {}
};

// Calls f(vector, name of the tensor, rows, columns); rows == 0 marks a vector. One list serves loading and
// checking.
template <class Weights, class F> void for_each_tensor(Weights& w, config const& c, bool separate_head, F f) {
  extents const e(c);
  f(w.embedding, std::string("model.embed_tokens.weight"), e.vocab, e.hidden);
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    auto& layer = w.layers[i];
    std::string const at = "model.layers." + std::to_string(i) + ".";
    f(layer.attention_norm, at + "input_layernorm.weight", std::size_t{0}, e.hidden);
    f(layer.query, at + "self_attn.q_proj.weight", e.query, e.hidden);
    f(layer.key, at + "self_attn.k_proj.weight", e.kv, e.hidden);
    f(layer.value, at + "self_attn.v_proj.weight", e.kv, e.hidden);
    f(layer.output, at + "self_attn.o_proj.weight", e.hidden, e.query);
    f(layer.mlp_norm, at + "post_attention_layernorm.weight", std::size_t{0}, e.hidden);
    f(layer.gate, at + "mlp.gate_proj.weight", e.ffn, e.hidden);
    f(layer.up, at + "mlp.up_proj.weight", e.ffn, e.hidden);
    f(layer.down, at + "mlp.down_proj.weight", e.hidden, e.ffn);
  }
  f(w.norm, std::string("model.norm.weight"), std::size_t{0}, e.hidden);
  if (separate_head) {
    f(w.head, std::string("lm_head.weight"), e.vocab, e.hidden);
  }
}

}  // namespace

model::model(config const& shape, model_weights weights, std::string name)
    : shape_(shape), weights_(std::move(weights)), name_(std::move(name)) {
  if (weights_.layers.size() != static_cast<std::size_t>(shape_.layers)) {
    throw model_error(name_, "holds " + std::to_string(weights_.layers.size()) +
                                 " layers; num_hidden_layers asks for " + std::to_string(shape_.layers));
  }
  for_each_tensor(weights_, shape_, !shape_.tied_embeddings,
                  [this](std::vector<float> const& values, std::string const& tensor, std::size_t rows,
                         std::size_t columns) {
                    auto const wanted = std::max<std::size_t>(rows, 1) * columns;
                    if (values.size() != wanted) {
                      throw model_error(
                          name_, "tensor " + in_quotes(tensor) + ": it has " + std::to_string(values.size()) +
                                     " values; the configuration asks for " + std::to_string(wanted));
                    }
                  });
  for (layer_weights const& layer : weights_.layers) outputs_.push_back(layer.output.data());
}

model model::load(std::string const& directory) {
  auto const base = std::filesystem::path(directory);
  std::error_code problem;
  if (!std::filesystem::is_directory(base, problem)) {
    throw model_error(directory, "is not a folder; one with config.json and model.safetensors is needed");
  }
  auto const shape = load_config((base / "config.json").string());
  if (std::filesystem::exists(base / "model.safetensors.index.json", problem) &&
      !std::filesystem::exists(base / "model.safetensors", problem)) {
    throw model_error(
        directory, "its weights are split over several files; only a single model.safetensors is supported");
  }
  safetensors_file const file((base / "model.safetensors").string());
  model_weights weights;
  weights.layers.resize(static_cast<std::size_t>(shape.layers));
  for_each_tensor(
      weights, shape, !shape.tied_embeddings,
      [&file](std::vector<float>& values, std::string const& tensor, std::size_t rows, std::size_t columns) {
        values = file.read(tensor, rows == 0 ? std::vector<std::uint64_t>{columns}
                                             : std::vector<std::uint64_t>{rows, columns});
      });
  auto const last = base.has_filename() ? base.filename() : base.parent_path().filename();
  return model(shape, std::move(weights), last.string());
}

std::uint64_t model::parameters() const {
  std::uint64_t total = 0;
  for_each_tensor(weights_, shape_, !shape_.tied_embeddings,
                  [&total](std::vector<float> const& values, std::string const&, std::size_t, std::size_t) {
                    total += values.size();
                  });
  return total;
}

void model::begin(int const* tokens, int n, int first_position) {
  if (n < 1) {
    throw std::invalid_argument("forward: n is " + std::to_string(n) + "; at least one token is needed");
  }
  if (first_position < 0 || first_position > shape_.max_positions - n) {
    throw std::invalid_argument("forward: positions " + std::to_string(first_position) + " to " +
                                std::to_string(static_cast<long long>(first_position) + n - 1) +
                                " are asked for; 0 to " + std::to_string(shape_.max_positions - 1) +
                                " are allowed (max_position_embeddings)");
  }
  auto const rows = static_cast<std::size_t>(n);
  embed(tokens, rows, rows);
  rotation_.prepare(
      rows, [&](std::size_t t) { return static_cast<std::size_t>(first_position) + t; },
      static_cast<std::size_t>(shape_.head_dim), shape_.rope_base);
}

std::size_t model::begin_batch(int const* tokens, int const* positions, int n) {
  if (n < 1) {
    throw std::invalid_argument("forward_batch: n is " + std::to_string(n) + "; at least one row is needed");
  }
  for (int t = 0; t < n; ++t) {
    if (positions[t] < 0 || positions[t] >= shape_.max_positions) {
      throw std::invalid_argument("forward_batch: position " + std::to_string(positions[t]) +
                                  " is asked for; 0 to " + std::to_string(shape_.max_positions - 1) +
                                  " are allowed (max_position_embeddings)");
    }
  }
  auto const given = static_cast<std::size_t>(n);
  auto const rows = std::max(given, matmul_few_rows);
  embed(tokens, given, rows);
  rotation_.prepare(
      rows, [&](std::size_t t) { return t < given ? positions[t] : 0; },
      static_cast<std::size_t>(shape_.head_dim), shape_.rope_base);
  return rows;
}

// The state of `rows` rows, zero behind the `n` given ones.
void model::embed(int const* tokens, std::size_t n, std::size_t rows) {
  for (std::size_t t = 0; t < n; ++t) {
    if (tokens[t] < 0 || tokens[t] >= shape_.vocab) {
      throw std::invalid_argument("forward: token " + std::to_string(t) + " is " + std::to_string(tokens[t]) +
                                  "; 0 to " + std::to_string(shape_.vocab - 1) + " are allowed (vocab_size)");
    }
  }
  extents const e(shape_);
  state_.assign(rows * e.hidden, 0.0f);
  normed_.resize(rows * e.hidden);
  query_.resize(rows * e.query);
  attended_.assign(rows * e.query, 0.0f);
  key_.resize(rows * e.kv);
  value_.resize(rows * e.kv);
  gate_.resize(rows * e.ffn);
  up_.resize(rows * e.ffn);
  for (std::size_t t = 0; t < n; ++t) {
    std::copy_n(weights_.embedding.data() + static_cast<std::size_t>(tokens[t]) * e.hidden, e.hidden,
                state_.data() + t * e.hidden);
  }
}

void model::project(int layer, std::size_t n) {
  extents const e(shape_);
  auto const& w = weights_.layers[static_cast<std::size_t>(layer)];
  rms_norm(state_.data(), w.attention_norm.data(), normed_.data(), n, e.hidden, shape_.norm_epsilon);
  matmul(normed_.data(), w.query.data(), query_.data(), n, e.hidden, e.query);
  matmul(normed_.data(), w.key.data(), key_.data(), n, e.hidden, e.kv);
  matmul(normed_.data(), w.value.data(), value_.data(), n, e.hidden, e.kv);
  rotation_.apply(query_.data(), n, static_cast<std::size_t>(shape_.heads));
  rotation_.apply(key_.data(), n, static_cast<std::size_t>(shape_.kv_heads));
}

void model::finish_layer(int layer, std::size_t n) {
  extents const e(shape_);
  auto const& w = weights_.layers[static_cast<std::size_t>(layer)];
  matmul(attended_.data(), w.output.data(), normed_.data(), n, e.query, e.hidden);
  add_to(state_.data(), normed_.data(), n * e.hidden);
  rms_norm(state_.data(), w.mlp_norm.data(), normed_.data(), n, e.hidden, shape_.norm_epsilon);
  matmul(normed_.data(), w.gate.data(), gate_.data(), n, e.hidden, e.ffn);
  matmul(normed_.data(), w.up.data(), up_.data(), n, e.hidden, e.ffn);
  gate_silu(gate_.data(), up_.data(), n * e.ffn);
  matmul(gate_.data(), w.down.data(), normed_.data(), n, e.ffn, e.hidden);
  add_to(state_.data(), normed_.data(), n * e.hidden);
}

void model::finish(std::size_t n, std::vector<float>& logits, std::size_t last) {
  extents const e(shape_);
  auto const rows = std::min(n, last);
  float const* const from = state_.data() + (n - rows) * e.hidden;
  rms_norm(from, weights_.norm.data(), normed_.data(), rows, e.hidden, shape_.norm_epsilon);
  logits.resize(rows * e.vocab);
  auto const& head = shape_.tied_embeddings ? weights_.embedding : weights_.head;
  matmul(normed_.data(), head.data(), logits.data(), rows, e.hidden, e.vocab);
}

}  // namespace tiny_llama
