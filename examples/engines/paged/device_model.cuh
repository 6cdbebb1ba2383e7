// The model's layers on a device: weights in half precision, sums in float. Attention is the caller's,
// between project() and finish_layer(), as in tiny_llama::model.
#pragma once

#include "device_memory.cuh"

#include <tiny_llama/model.hpp>

#include <cuda_fp16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace paged_engine {

/// A row of a step's batch. Attention wants the rows of each sequence at equal distances: `place` is where it
/// has this one.
struct batch_row {
  std::uint32_t token, position, slot;
  std::uint32_t behind;  ///< rows of its sequence from this one to the last
  std::uint32_t place;
};

namespace kernels {

/// Of 32 lanes, each gets the sum.
__device__ inline float over_warp(float x) {
  for (int step = 16; step != 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

static __global__ void embed(batch_row const* rows, __half const* embedding, float* state,
                             std::uint32_t width) {
  for (std::uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
    std::size_t const from = std::size_t{rows[blockIdx.x].token} * width + i;
    state[std::size_t{blockIdx.x} * width + i] = __half2float(embedding[from]);
  }
}

/// A warp per row.
static __global__ void rms_norm(float const* x, float const* weight, float* out, std::uint32_t width,
                                float epsilon) {
  float const* const row = x + std::size_t{blockIdx.x} * width;
  float sum = 0.0f;
  for (std::uint32_t i = threadIdx.x; i < width; i += 32) sum += row[i] * row[i];
  float const scale = rsqrtf(over_warp(sum) / static_cast<float>(width) + epsilon);
  for (std::uint32_t i = threadIdx.x; i < width; i += 32)
    out[std::size_t{blockIdx.x} * width + i] = row[i] * scale * weight[i];
}

__device__ inline void add_product(float (&sum)[4], std::uint32_t const (&a)[4],
                                   std::uint32_t const (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// out[row][column] = x[row] . w[column], or is increased by it: a warp per 16 rows and 32 columns, on the
/// matrix unit. x is multiplied in two parts of 16 bits. `rows`: if given, row r of x lies at rows[r].place.
static __global__ void multiply(float const* x, batch_row const* rows, __half const* w, float* out,
                                std::uint32_t n, std::uint32_t width, std::uint32_t columns, bool adds) {
  std::uint32_t const group = threadIdx.x / 4, pair = 2 * (threadIdx.x % 4), column = 32 * blockIdx.x;
  std::uint32_t const row[2] = {16 * blockIdx.y + group, 16 * blockIdx.y + group + 8};
  float const* from[2];
  for (int i = 0; i < 2; ++i) {
    std::uint32_t const place = row[i] < n && rows != nullptr ? rows[row[i]].place : row[i];
    from[i] = row[i] < n ? x + std::size_t{place} * width + pair : nullptr;
  }
  __half const* const weights = w + std::size_t{column + group} * width + pair;
  float sum[4][4] = {};
  for (std::uint32_t k = 0; k < width; k += 16) {
    std::uint32_t whole[4], rest[4];
    for (int i = 0; i < 4; ++i) {
      float2 v{0.0f, 0.0f};
      if (from[i % 2] != nullptr) v = *reinterpret_cast<float2 const*>(from[i % 2] + k + 8 * (i / 2));
      __half2 const near = __floats2half2_rn(v.x, v.y);
      float2 const got = __half22float2(near);
      __half2 const off = __floats2half2_rn(v.x - got.x, v.y - got.y);
      whole[i] = reinterpret_cast<std::uint32_t const&>(near);
      rest[i] = reinterpret_cast<std::uint32_t const&>(off);
    }
    for (int part = 0; part < 4; ++part) {
      std::uint32_t b[2];
      for (int i = 0; i < 2; ++i)
        b[i] = *reinterpret_cast<std::uint32_t const*>(weights + std::size_t{8} * part * width + k + 8 * i);
      add_product(sum[part], rest, b);
      add_product(sum[part], whole, b);
    }
  }
  for (int part = 0; part < 4; ++part) {
    for (int i = 0; i < 4; ++i) {
      if (row[i / 2] >= n) continue;
      float& to = out[std::size_t{row[i / 2]} * columns + column + 8 * part + pair + i % 2];
      to = adds ? to + sum[part][i] : sum[part][i];
    }
  }
}

static __global__ void gate_silu(float* gate, float const* up, std::size_t count) {
  std::size_t const i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

}  // namespace kernels

/// Refuses a model whose sizes the matrix unit cannot take.
class device_model {
public:
  explicit device_model(tiny_llama::model const& m) : shape_(m.shape()), layers_(m.weights().layers.size()) {
    for (int size : {shape_.hidden, shape_.intermediate, shape_.heads * shape_.head_dim,
                     shape_.kv_heads * shape_.head_dim, shape_.vocab}) {
      if (size % 32 != 0) {
        throw std::invalid_argument("device_model: a size of the model is " + std::to_string(size) +
                                    "; it must be a multiple of 32");
      }
    }
    tiny_llama::model_weights const& w = m.weights();
    upload(embedding_, w.embedding);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      tiny_llama::layer_weights const& from = w.layers[i];
      layer& to = layers_[i];
      to.attention_norm.upload(from.attention_norm);
      to.mlp_norm.upload(from.mlp_norm);
      upload(to.query, from.query);
      upload(to.key, from.key);
      upload(to.value, from.value);
      upload(to.output, from.output);
      upload(to.gate, from.gate);
      upload(to.up, from.up);
      upload(to.down, from.down);
    }
    norm_.upload(w.norm);
    if (!shape_.tied_embeddings) upload(head_, w.head);
    upload_turns();
  }

  std::uint32_t query_width() const { return u(shape_.heads * shape_.head_dim); }
  std::uint32_t kv_width() const { return u(shape_.kv_heads * shape_.head_dim); }

  void begin(std::vector<batch_row> const& rows) {
    n_ = static_cast<std::uint32_t>(rows.size());
    rows_.upload(rows);
    std::size_t const n = n_;
    state_.resize(n * u(shape_.hidden));
    normed_.resize(n * u(shape_.hidden));
    query_.resize(n * query_width());
    key_.resize(n * kv_width());
    value_.resize(n * kv_width());
    gate_.resize(n * u(shape_.intermediate));
    up_.resize(n * u(shape_.intermediate));
    logits_.resize(n * u(shape_.vocab));
    kernels::embed<<<n_, 128>>>(rows_.data(), embedding_.data(), state_.data(), u(shape_.hidden));
  }
  /// Queries, keys and values of the rows, not rotated: [row][head][channel].
  void project(std::uint32_t which) {
    layer const& w = layers_[which];
    norm(w.attention_norm);
    times(normed_, w.query, query_, u(shape_.hidden), query_width());
    times(normed_, w.key, key_, u(shape_.hidden), kv_width());
    times(normed_, w.value, value_, u(shape_.hidden), kv_width());
  }
  /// `attended` [place][head][channel].
  void finish_layer(std::uint32_t which, float const* attended) {
    layer const& w = layers_[which];
    multiply(attended, rows_.data(), w.output, state_, query_width(), u(shape_.hidden), true);
    norm(w.mlp_norm);
    times(normed_, w.gate, gate_, u(shape_.hidden), u(shape_.intermediate));
    times(normed_, w.up, up_, u(shape_.hidden), u(shape_.intermediate));
    std::size_t const count = std::size_t{n_} * u(shape_.intermediate);
    kernels::gate_silu<<<static_cast<unsigned>((count + 255) / 256), 256>>>(gate_.data(), up_.data(), count);
    multiply(gate_.data(), nullptr, w.down, state_, u(shape_.intermediate), u(shape_.hidden), true);
  }
  /// What the host samples from is all that leaves the device.
  void finish(std::vector<float>& logits) {
    norm(norm_);
    times(normed_, shape_.tied_embeddings ? embedding_ : head_, logits_, u(shape_.hidden), u(shape_.vocab));
    check(cudaGetLastError(), "device_model");
    logits.resize(std::size_t{n_} * u(shape_.vocab));
    logits_.download(logits.data(), logits.size());
  }

  batch_row const* rows() const { return rows_.data(); }
  std::uint32_t count() const { return n_; }
  float const* query() const { return query_.data(); }
  float const* key() const { return key_.data(); }
  float const* value() const { return value_.data(); }
  /// Cosine and sine of every position and pair of channels, which lie half a head apart: [position][pair].
  float2 const* turns() const { return turns_.data(); }

private:
  struct layer {
    device_array<float> attention_norm, mlp_norm;
    device_array<__half> query, key, value, output, gate, up, down;
  };

  static std::uint32_t u(int x) { return static_cast<std::uint32_t>(x); }

  static void upload(device_array<__half>& to, std::vector<float> const& from) {
    std::vector<__half> rounded(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) rounded[i] = __float2half(from[i]);
    to.upload(rounded);
  }
  void upload_turns() {
    std::size_t const half = u(shape_.head_dim) / 2;
    std::vector<float2> turns(u(shape_.max_positions) * half);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      double const angle = static_cast<double>(i / half) *
                           std::pow(shape_.rope_base, -2.0 * static_cast<double>(i % half) / shape_.head_dim);
      turns[i] = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
    turns_.upload(turns);
  }
  void norm(device_array<float> const& weight) {
    kernels::rms_norm<<<n_, 32>>>(state_.data(), weight.data(), normed_.data(), u(shape_.hidden),
                                  static_cast<float>(shape_.norm_epsilon));
  }
  void multiply(float const* x, batch_row const* rows, device_array<__half> const& w,
                device_array<float>& out, std::uint32_t width, std::uint32_t columns, bool adds) {
    kernels::multiply<<<dim3(columns / 32, (n_ + 15) / 16), 32>>>(x, rows, w.data(), out.data(), n_, width,
                                                                  columns, adds);
  }
  void times(device_array<float> const& x, device_array<__half> const& w, device_array<float>& out,
             std::uint32_t width, std::uint32_t columns) {
    multiply(x.data(), nullptr, w, out, width, columns, false);
  }

  tiny_llama::config shape_;
  device_array<__half> embedding_, head_;
  std::vector<layer> layers_;
  device_array<float> norm_;
  device_array<float2> turns_;

  // Of the step under way.
  std::uint32_t n_ = 0;
  device_array<batch_row> rows_;
  device_array<float> state_, normed_, query_, key_, value_, gate_, up_, logits_;
};

}  // namespace paged_engine
