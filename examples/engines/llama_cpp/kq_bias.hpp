// Log degrees in llama.cpp without changing it: the evaluation callback of a context is shown the logits of
// every layer before the softmax, and may write to them. Needs flash attention off.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace llama_cpp {

/// Give `callback` as llama_context_params::cb_eval and the object as cb_eval_user_data. For one sequence
/// alone in its context, whose cells lie from 0 on: call llama_memory_clear before llama_state_seq_set_data.
class kq_bias {
public:
  kq_bias(std::uint32_t kv_heads, float scale) : kv_heads_(kv_heads), scale_(scale) {}

  /// [layer][KV head][cell], natural logarithms; cells behind them get nothing. Empty: none.
  void set(std::vector<float> log_degrees, std::uint32_t cells) {
    log_degrees_ = std::move(log_degrees);
    cells_ = cells;
  }

  /// "kq-3" are the logits of layer 3, [head][query][cell], before the scale and the mask. Models with a
  /// softcap want "kq_scaled_2-3".
  static bool callback(ggml_tensor* t, bool ask, void* self) {
    auto& bias = *static_cast<kq_bias*>(self);
    bool const mine = std::strncmp(t->name, "kq-", 3) == 0 && !bias.log_degrees_.empty();
    if (!ask && mine) bias.add(t, static_cast<std::size_t>(std::atoi(t->name + 3)));
    return ask ? mine : true;
  }

private:
  void add(ggml_tensor* t, std::size_t layer) {
    auto const cells = static_cast<std::size_t>(t->ne[0]), queries = static_cast<std::size_t>(t->ne[1]);
    auto const heads = static_cast<std::size_t>(t->ne[2]);
    logits_.resize(cells * queries * heads);
    ggml_backend_tensor_get(t, logits_.data(), 0, logits_.size() * sizeof(float));
    for (std::size_t row = 0; row < heads * queries; ++row) {
      std::size_t const head = row / queries / (heads / kv_heads_);
      float const* const from = log_degrees_.data() + (layer * kv_heads_ + head) * cells_;
      for (std::size_t cell = 0; cell < cells_; ++cell) logits_[row * cells + cell] += from[cell] / scale_;
    }
    ggml_backend_tensor_set(t, logits_.data(), 0, logits_.size() * sizeof(float));
  }

  std::uint32_t kv_heads_, cells_ = 0;
  float scale_;
  std::vector<float> log_degrees_, logits_;
};

}  // namespace llama_cpp
