// The demo's model with the cache and attention of the engine in C: all that a main program needs.
#pragma once

#include "engine.h"

#include <tiny_llama/model.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace token_major {

class reader {
public:
  /// `policy` null: without kvmeld.
  reader(tiny_llama::model& m, std::uint32_t capacity, char const* policy) : model_(&m) {
    auto const& c = m.shape();
    auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
    check(token_major_create(
        &engine_, {u(c.layers), u(c.kv_heads), u(c.heads / c.kv_heads), u(c.head_dim), capacity}, policy));
  }
  reader(reader const&) = delete;
  reader& operator=(reader const&) = delete;
  ~reader() { token_major_destroy(&engine_); }

  /// The logits of what follows `token`, which is read for good.
  std::vector<float> const& read(int token) {
    auto const position = static_cast<int>(token_major_tokens(&engine_));
    check(token_major_begin(&engine_));
    auto const hook = [&](int layer, float const* q, float const* k, float const* v, float* out) {
      token_major_attend(&engine_, static_cast<std::uint32_t>(layer), q, k, v, out);
    };
    model_->forward_batch(&token, &position, 1, hook, logits_);
    check(token_major_end(&engine_));
    return logits_;
  }
  void compress(std::uint32_t entries) { check(token_major_compress(&engine_, entries)); }

  std::uint32_t tokens() const { return token_major_tokens(&engine_); }
  /// Entries of a head: its tokens, without kvmeld.
  std::uint32_t length(std::uint32_t layer, std::uint32_t kv_head) const {
    return engine_.kv != nullptr ? kvmeld_bridge_length(engine_.kv, layer, kv_head) : engine_.tokens;
  }

private:
  static void check(int failed) {
    if (failed == 0) return;
    std::string const why = kvmeld_bridge_problem();
    throw std::runtime_error("token_major: " + (why.empty() ? "the cache is full" : why));
  }

  tiny_llama::model* model_;
  token_major_engine engine_{};
  std::vector<float> logits_;
};

}  // namespace token_major
