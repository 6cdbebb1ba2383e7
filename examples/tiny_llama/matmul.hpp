// The one expensive operation of the engine: rows of activations times a weight matrix.
#pragma once

#include <cstddef>

namespace tiny_llama {

/// y[n][out] = x[n][in] times the transpose of w[out][in]; all row-major and dense. y overlaps neither x nor
/// w. The vector width is chosen at run time, so the order of summation (not the meaning) depends on the
/// machine.
void matmul(float const* x, float const* w, float* y, std::size_t n, std::size_t in, std::size_t out);

/// From so many rows on, a row of y does not depend on how many others are computed beside it, to the bit.
inline constexpr std::size_t matmul_few_rows = 4;

/// Name of the instruction set in use, for reports.
char const* matmul_instruction_set();

}  // namespace tiny_llama
