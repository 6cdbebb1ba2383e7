// An engine whose kernels read 16 channels of many tokens at a time: keys in tiles of channels, values along
// tokens.
#pragma once

#include <tiny_llama/model.hpp>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tiled_engine {

/// What a program needs of an engine.
struct any_reader {
  virtual ~any_reader() = default;
  virtual std::vector<float> const& read(int token) = 0;
  virtual void compress(std::uint32_t entries) = 0;
  virtual std::uint32_t tokens() const = 0;
  virtual std::uint32_t length(std::uint32_t layer, std::uint32_t kv_head) const = 0;
};

/// Keys [layer][kv_head][channel / 16][slot][16], values [layer][kv_head][channel][slot]. `Math` only tells
/// apart two builds of the same text, with -ffast-math and without.
template <class Math> class reader final : public any_reader {
public:
  reader(tiny_llama::model& m, std::uint32_t capacity, kvmeld::compose::composed const& policy)
      : model_(&m),
        extent_(extent_of(m.shape(), capacity)),
        keys_(extent_.slots() * extent_.key_dim),
        values_(extent_.slots() * extent_.value_dim),
        cache_(kvmeld::host_executor(1), policy, {key_rows(), value_rows()}, kvmeld::cache_options{extent_}),
        observes_(kvmeld::need_of(policy)),
        queries_(std::size_t{extent_.layers} * extent_.query_heads() * extent_.key_dim),
        lse_(std::size_t{extent_.layers} * extent_.query_heads()) {
    cache_.open(0);
  }
  reader(reader const&) = delete;
  reader& operator=(reader const&) = delete;

  std::vector<float> const& read(int token) override {
    auto const position = static_cast<int>(tokens());
    cache_.append({0}, {1});
    auto const hook = [&](int which, float const* q, float const* k, float const* v, float* out) {
      auto const layer = static_cast<std::uint32_t>(which);
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) attend(layer, head, q, k, v, out);
      std::size_t const row = std::size_t{extent_.query_heads()} * extent_.key_dim;
      std::copy_n(q, row, queries_.data() + layer * row);
    };
    model_->forward_batch(&token, &position, 1, hook, logits_);
    cache_.commit({0}, {1});
    if (observes_) observe();
    return logits_;
  }
  void compress(std::uint32_t entries) override { cache_.compress({0}, kvmeld::budget::entries(entries)); }
  std::uint32_t tokens() const override { return cache_.tokens(0); }
  std::uint32_t length(std::uint32_t layer, std::uint32_t kv_head) const override {
    return cache_.length(layer, 0, kv_head);
  }
  auto const& cache() const { return cache_; }

private:
  static constexpr std::uint32_t width = 16;
  using float16 = kvmeld::float16;
  using element = kvmeld::element_traits<float16>;
  using keys_layout = kvmeld::tiled<kvmeld::strided<float16>>;
  using values_layout = kvmeld::transposed<float16>;

  static kvmeld::shape extent_of(tiny_llama::config const& c, std::uint32_t capacity) {
    auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
    return {u(c.layers), 1, u(c.kv_heads), u(c.heads / c.kv_heads), u(c.head_dim), u(c.head_dim), capacity};
  }
  keys_layout key_rows() {
    std::int64_t const group = std::int64_t{extent_.capacity} * width;
    std::int64_t const head = std::int64_t{extent_.capacity} * extent_.key_dim;
    kvmeld::cache_strides const st{head * extent_.kv_heads, 0, head, width, group};
    return {kvmeld::strided<float16>(keys_.data(), st, extent_, extent_.key_dim / width), width};
  }
  values_layout value_rows() { return {values_.data(), "LSHCT", extent_, extent_.value_dim}; }

  void attend(std::uint32_t layer, std::uint32_t head, float const* q, float const* k, float const* v,
              float* out) {
    auto const ref = cache_.ref();
    kvmeld::track const where = ref.where(layer, 0, head);
    std::uint32_t const length = ref.length(where), capacity = extent_.capacity, d = extent_.key_dim;
    float16* const keys = keys_.data() + (std::size_t{layer} * extent_.kv_heads + head) * capacity * d;
    float16* const values = values_.data() + (std::size_t{layer} * extent_.kv_heads + head) * capacity * d;
    std::uint32_t const last = length - 1;
    for (std::uint32_t c = 0; c < d; ++c) {
      keys[(std::size_t{c / width} * capacity + last) * width + c % width] =
          element::from_float(k[head * d + c]);
      values[std::size_t{c} * capacity + last] = element::from_float(v[head * d + c]);
    }
    float const scale = 1.0f / std::sqrt(static_cast<float>(d));
    weights_.resize(length);
    for (std::uint32_t g = 0; g < extent_.queries_per_kv_head; ++g) {
      std::uint32_t const query_head = head * extent_.queries_per_kv_head + g;
      float const* const query = q + std::size_t{query_head} * d;
      std::fill_n(weights_.data(), length, 0.0f);
      for (std::uint32_t tile = 0; tile < d / width; ++tile) {
        float16 const* const rows = keys + std::size_t{tile} * capacity * width;
        for (std::uint32_t slot = 0; slot < length; ++slot) {
          float product = weights_[slot];
          for (std::uint32_t c = 0; c < width; ++c)
            product += query[tile * width + c] * element::to_float(rows[std::size_t{slot} * width + c]);
          weights_[slot] = product;
        }
      }
      float most = -3.0e38f, sum = 0.0f;
      for (std::uint32_t slot = 0; slot < length; ++slot) {
        weights_[slot] = weights_[slot] * scale + ref.log_degree(where, slot);
        most = std::max(most, weights_[slot]);
      }
      for (std::uint32_t slot = 0; slot < length; ++slot) {
        weights_[slot] = std::exp(weights_[slot] - most);
        sum += weights_[slot];
      }
      for (std::uint32_t c = 0; c < d; ++c) {
        float16 const* const column = values + std::size_t{c} * capacity;
        float result = 0.0f;
        for (std::uint32_t slot = 0; slot < length; ++slot)
          result += weights_[slot] * element::to_float(column[slot]);
        out[std::size_t{query_head} * d + c] = result / sum;
      }
      lse_[std::size_t{layer} * extent_.query_heads() + query_head] = most + std::log(sum);
    }
  }

  void observe() {
    std::uint32_t const heads = extent_.query_heads(), d = extent_.key_dim;
    for (std::uint32_t l = 0; l < extent_.layers; ++l) {
      float const* const q = queries_.data() + std::size_t{l} * heads * d;
      float const* const lse = lse_.data() + std::size_t{l} * heads;
      cache_.observe({l, 0, 1}, kvmeld::rows_by_token(q, 1, heads, d),
                     kvmeld::rows_by_token(lse, 1, heads, 1));
    }
  }

  tiny_llama::model* model_;
  kvmeld::shape extent_;
  std::vector<float16> keys_, values_;
  kvmeld::merged_cache<kvmeld::host_executor, kvmeld::compose::composed, keys_layout, values_layout> cache_;
  bool observes_;
  std::vector<float> queries_, lse_, weights_, logits_;
};

}  // namespace tiled_engine
