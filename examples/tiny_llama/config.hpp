// config.json of a Hugging Face Llama model: what shapes the weights have, and what the engine refuses to
// guess.
#pragma once

#include <cstdint>
#include <string>

namespace tiny_llama {

struct config {
  int hidden = 0;                ///< hidden_size
  int intermediate = 0;          ///< intermediate_size
  int layers = 0;                ///< num_hidden_layers
  int heads = 0;                 ///< num_attention_heads
  int kv_heads = 0;              ///< num_key_value_heads, by default heads
  int head_dim = 0;              ///< head_dim, by default hidden / heads
  int vocab = 0;                 ///< vocab_size
  int max_positions = 2048;      ///< max_position_embeddings
  double norm_epsilon = 1e-6;    ///< rms_norm_eps
  double rope_base = 10000.0;    ///< rope_theta
  bool tied_embeddings = false;  ///< tie_word_embeddings

  /// Of K and V of a token in half precision, over all layers and heads.
  std::uint64_t kv_bytes_per_token() const {
    return std::uint64_t{4} * static_cast<std::uint64_t>(layers * kv_heads * head_dim);
  }
};

/// Reads and validates `path`. Throws model_error that names the field, its value and what is allowed.
config load_config(std::string const& path);

/// The same from text; `path` serves messages only.
config parse_config(std::string const& path, std::string const& text);

}  // namespace tiny_llama
