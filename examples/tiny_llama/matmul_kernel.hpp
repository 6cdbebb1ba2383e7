// Two inner kernels of matmul, generic in the vector width and always inlined, so that a caller compiled for
// a wider instruction set gets them in that set. Vector extensions of GCC and Clang; no intrinsics, any
// architecture.
#pragma once

#include <cstddef>
#include <cstring>

#define TINY_LLAMA_INLINE inline __attribute__((always_inline))

namespace tiny_llama::kernel {

template <int lanes> struct vector_of;
template <> struct vector_of<4> { typedef float type __attribute__((vector_size(16))); };
template <> struct vector_of<8> { typedef float type __attribute__((vector_size(32))); };
template <> struct vector_of<16> { typedef float type __attribute__((vector_size(64))); };

// Many tokens: `packed` is [in][2 * lanes], so that one lane is one token and no sum crosses lanes.
// Writes y[token][row] for the first `tokens` tokens; y has `stride` floats per token.
template <int lanes, int rows>
TINY_LLAMA_INLINE void tile_tokens(float const* packed, float const* w, float* y, std::size_t tokens,
                                   std::size_t in, std::size_t stride) {
  using vector = typename vector_of<lanes>::type;
  vector sum[rows][2] = {};
  for (std::size_t i = 0; i < in; ++i) {
    vector a, b;
    std::memcpy(&a, packed + i * 2 * lanes, sizeof a);
    std::memcpy(&b, packed + i * 2 * lanes + lanes, sizeof b);
    for (int r = 0; r < rows; ++r) {
      float const weight = w[static_cast<std::size_t>(r) * in + i];
      sum[r][0] += a * weight;
      sum[r][1] += b * weight;
    }
  }
  float spread[rows][2 * lanes];
  std::memcpy(spread, sum, sizeof spread);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (int r = 0; r < rows; ++r) {
      y[t * stride + static_cast<std::size_t>(r)] = spread[r][t];
    }
  }
}

// Few tokens: lanes run along the row, since there are not enough tokens to fill them.
template <int lanes, int rows>
TINY_LLAMA_INLINE void dot_rows(float const* x, float const* w, float* y, std::size_t in) {
  using vector = typename vector_of<lanes>::type;
  vector sum[rows] = {};
  std::size_t i = 0;
  for (; i + lanes <= in; i += lanes) {
    vector a;
    std::memcpy(&a, x + i, sizeof a);
    for (int r = 0; r < rows; ++r) {
      vector b;
      std::memcpy(&b, w + static_cast<std::size_t>(r) * in + i, sizeof b);
      sum[r] += a * b;
    }
  }
  float spread[rows][lanes];
  std::memcpy(spread, sum, sizeof spread);
  for (int r = 0; r < rows; ++r) {
    float total = 0;
    for (std::size_t k = i; k < in; ++k) {
      total += x[k] * w[static_cast<std::size_t>(r) * in + k];
    }
    for (int lane = 0; lane < lanes; ++lane) {
      total += spread[r][lane];
    }
    y[r] = total;
  }
}

// The output rows [first, last) of one packed tile of tokens; y has `out` floats per token.
template <int lanes, int rows>
TINY_LLAMA_INLINE void sweep_tokens(float const* packed, float const* w, float* y, std::size_t tokens,
                                    std::size_t in, std::size_t out, std::size_t first, std::size_t last) {
  std::size_t row = first;
  for (; row + rows <= last; row += rows) {
    tile_tokens<lanes, rows>(packed, w + row * in, y + row, tokens, in, out);
  }
  for (; row < last; ++row) {
    tile_tokens<lanes, 1>(packed, w + row * in, y + row, tokens, in, out);
  }
}

template <int lanes, int rows>
TINY_LLAMA_INLINE void sweep_rows(float const* x, float const* w, float* y, std::size_t first,
                                  std::size_t last, std::size_t in) {
  std::size_t row = first;
  for (; row + rows <= last; row += rows) {
    dot_rows<lanes, rows>(x, w + row * in, y + row, in);
  }
  for (; row < last; ++row) {
    dot_rows<lanes, 1>(x, w + row * in, y + row, in);
  }
}

}  // namespace tiny_llama::kernel
