// The small layers between the matrix products: normalisation, rotation and gating.
#pragma once

#include "threads.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

namespace tiny_llama {

/// out[n][width] = x / rms(x) * weight, each row by itself. Sums in double: it costs nothing here.
inline void rms_norm(float const* x, float const* weight, float* out, std::size_t n, std::size_t width,
                     double epsilon) {
  for (std::size_t t = 0; t < n; ++t) {
    float const* const row = x + t * width;
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    }
    auto const scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + epsilon));
    for (std::size_t i = 0; i < width; ++i) {
      out[t * width + i] = row[i] * scale * weight[i];
    }
  }
}

/// Rotary embedding with half-split pairs (i, i + head_dim/2), as Hugging Face Llama lays its weights out.
/// Angles are made per call from the positions in double, so that no table limits the context.
class rotation {
public:
  /// position(i) is that of row i.
  template <class Position>
  void prepare(std::size_t n, Position position, std::size_t head_dim, double base) {
    half_ = head_dim / 2;
    cosine_.resize(n * half_);
    sine_.resize(n * half_);
    for (std::size_t i = 0; i < half_; ++i) {
      double const frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      for (std::size_t t = 0; t < n; ++t) {
        double const angle = static_cast<double>(position(t)) * frequency;
        cosine_[t * half_ + i] = static_cast<float>(std::cos(angle));
        sine_[t * half_ + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  /// Rotates x[n][heads][head_dim] in place.
  void apply(float* x, std::size_t n, std::size_t heads) const {
    for (std::size_t t = 0; t < n; ++t) {
      float const* const cosine = cosine_.data() + t * half_;
      float const* const sine = sine_.data() + t * half_;
      for (std::size_t h = 0; h < heads; ++h) {
        float* const low = x + (t * heads + h) * 2 * half_;
        float* const high = low + half_;
        for (std::size_t i = 0; i < half_; ++i) {
          float const a = low[i], b = high[i];
          low[i] = a * cosine[i] - b * sine[i];
          high[i] = b * cosine[i] + a * sine[i];
        }
      }
    }
  }

private:
  std::size_t half_ = 0;
  std::vector<float> cosine_, sine_;
};

/// gate[i] = silu(gate[i]) * up[i].
inline void gate_silu(float* gate, float const* up, std::size_t count) {
  in_pieces(count, 16384, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  });
}

inline void add_to(float* x, float const* y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    x[i] += y[i];
  }
}

}  // namespace tiny_llama
