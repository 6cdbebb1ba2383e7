// The demo's model with the cache and attention of the engine in C: all that a main program needs.
#pragma once

#include "engine.h"

#include <tiny_llama/model.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace token_major {

class reader {
public:
  /// `policy` null: merging is off. `when_full`: what a full cache shrinks to; nothing: it refuses.
  reader(tiny_llama::model& m, std::uint32_t capacity, char const* policy, kvmeld_budget when_full = {})
      : model_(&m) {
    auto const& c = m.shape();
    auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
    check(token_major_create(&engine_,
                             {u(c.layers), u(c.kv_heads), u(c.heads / c.kv_heads), u(c.head_dim), capacity},
                             &layers, this, policy, when_full));
  }
  reader(reader const&) = delete;
  reader& operator=(reader const&) = delete;
  ~reader() { token_major_destroy(&engine_); }

  /// The logits of what follows `token` at position `pos`; as token_major_forward.
  std::vector<float> const& forward(int token, std::uint32_t pos) {
    check(token_major_forward(&engine_, token, pos) == nullptr);
    return logits_;
  }
  /// The same at the next position.
  std::vector<float> const& read(int token) { return forward(token, tokens()); }
  /// As token_major_generate.
  std::vector<int> generate(std::vector<int> const& prompt, int steps) {
    std::vector<int> out(static_cast<std::size_t>(steps));
    check(token_major_generate(&engine_, model_->shape().vocab, prompt.data(),
                               static_cast<int>(prompt.size()), steps, out.data()));
    return out;
  }
  void compress(kvmeld_budget budget) { check(token_major_compress(&engine_, budget)); }
  void compress(std::uint32_t entries) { compress(kvmeld_budget{entries, 0.0, KVMELD_HEAD, 0.0, 0}); }

  std::uint32_t tokens() const { return engine_.tokens; }
  /// Entries of a head: its tokens, without kvmeld.
  std::uint32_t length(std::uint32_t layer, std::uint32_t kv_head) const {
    return token_major_length(&engine_, layer, kv_head);
  }

private:
  static float const* layers(void* self, token_major_engine* e, int token, std::uint32_t pos) {
    reader& r = *static_cast<reader*>(self);
    auto const position = static_cast<int>(pos);
    auto const hook = [&](int layer, float const* q, float const* k, float const* v, float* out) {
      token_major_attend(e, static_cast<std::uint32_t>(layer), q, k, v, out);
    };
    r.model_->forward_batch(&token, &position, 1, hook, r.logits_);
    return r.logits_.data();
  }
  static void check(bool failed) {
    if (!failed) return;
    std::string const why = token_major_problem();
    throw std::runtime_error("token_major: " + (why.empty() ? "the cache is full, or merging is off" : why));
  }
  static void check(int failed) { check(failed != 0); }

  tiny_llama::model* model_;
  token_major_engine engine_{};
  std::vector<float> logits_;
};

}  // namespace token_major
