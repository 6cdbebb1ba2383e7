// A Llama-style decoder that leaves attention and its cache to the caller: forward() hands over rotated
// queries and keys and takes back the attention output, so whoever owns the cache decides what is kept,
// merged or forgotten.
#pragma once

#include "config.hpp"
#include "layers.hpp"
#include "matmul.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tiny_llama {

/// Weights in float, row-major [out][in].
struct layer_weights {
  std::vector<float> attention_norm, query, key, value, output, mlp_norm, gate, up, down;
};

struct model_weights {
  std::vector<float> embedding;  ///< [vocab][hidden]
  std::vector<layer_weights> layers;
  std::vector<float> norm;
  std::vector<float> head;  ///< [vocab][hidden]; empty when tied to the embedding
};

/// Whose logits are computed: so many of the last tokens, all of which are few beside a vocabulary.
inline constexpr std::size_t last_token = 1, every_token = std::numeric_limits<std::size_t>::max();

/// One model computes for one thread at a time: forward() works in the model's own scratch.
class model {
public:
  /// Takes weights as they are; throws model_error if a size does not fit the configuration.
  model(config const& shape, model_weights weights, std::string name = "model");
  model(model&&) = default;

  /// Loads DIR/config.json and DIR/model.safetensors; throws model_error.
  static model load(std::string const& directory);

  config const& shape() const { return shape_; }
  std::string const& name() const { return name_; }
  model_weights const& weights() const { return weights_; }
  /// W_O of every layer: [hidden][heads][head_dim].
  std::vector<float const*> const& output_projections() const { return outputs_; }
  /// While `attend` runs: the rows that queries, keys and values of its layer are made from, [n][hidden].
  float const* attention_input() const { return normed_.data(); }
  std::uint64_t parameters() const;

  /// Runs `n` tokens at positions first_position .. first_position + n - 1.
  /// Per layer it calls attend(layer, n, q, k, v, out) with row-major floats
  /// - q [n][heads][head_dim], rotated, not scaled
  /// - k [n][kv_heads][head_dim], rotated
  /// - v [n][kv_heads][head_dim]
  /// attend stores the n new rows wherever it keeps them and writes out [n][heads][head_dim].
  /// logits becomes [min(n, last)][vocab]: those of the last tokens, in their order.
  /// Throws std::invalid_argument for a token or position outside the configuration's range.
  template <class Attend>
  void forward(int const* tokens, int n, int first_position, Attend&& attend, std::vector<float>& logits,
               std::size_t last = every_token) {
    begin(tokens, n, first_position);
    auto const rows = static_cast<std::size_t>(n);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      project(layer, rows);
      attend(layer, n, static_cast<float const*>(query_.data()), static_cast<float const*>(key_.data()),
             static_cast<float const*>(value_.data()), attended_.data());
      finish_layer(layer, rows);
    }
    finish(rows, logits, last);
  }

  /// Runs a batch of `n` rows, whichever sequences they belong to: row i is tokens[i] at positions[i]. As
  /// forward(), but attend(layer, q, k, v, out) sees all rows, and logits becomes [n][vocab]. A row's numbers
  /// do not depend, to the bit, on what else is in the batch: small ones are filled up to the size that
  /// larger ones are computed in.
  template <class Attend>
  void forward_batch(int const* tokens, int const* positions, int n, Attend&& attend,
                     std::vector<float>& logits) {
    auto const rows = begin_batch(tokens, positions, n);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      project(layer, rows);
      attend(layer, static_cast<float const*>(query_.data()), static_cast<float const*>(key_.data()),
             static_cast<float const*>(value_.data()), attended_.data());
      finish_layer(layer, rows);
    }
    finish(rows, logits, every_token);
    logits.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(shape_.vocab));
  }

private:
  void begin(int const* tokens, int n, int first_position);
  std::size_t begin_batch(int const* tokens, int const* positions, int n);
  void embed(int const* tokens, std::size_t n, std::size_t rows);
  void project(int layer, std::size_t n);
  void finish_layer(int layer, std::size_t n);
  void finish(std::size_t n, std::vector<float>& logits, std::size_t last);

  config shape_;
  model_weights weights_;
  std::vector<float const*> outputs_;
  std::string name_;
  rotation rotation_;
  std::vector<float> state_, normed_, query_, key_, value_, attended_, gate_, up_;
};

}  // namespace tiny_llama
