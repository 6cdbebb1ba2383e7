#include "matmul.hpp"

#include "matmul_kernel.hpp"
#include "threads.hpp"

#include <algorithm>
#include <vector>

// Chosen by hand rather than by target_clones: its resolvers run before a sanitizer is set up, and Clang 14
// lacks it.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TINY_LLAMA_X86 1
#else
#define TINY_LLAMA_X86 0
#endif

namespace tiny_llama {
namespace {

using tokens_kernel = void (*)(float const*, float const*, float*, std::size_t, std::size_t, std::size_t,
                               std::size_t, std::size_t);
using rows_kernel = void (*)(float const*, float const*, float*, std::size_t, std::size_t, std::size_t);

// The tile sizes fill each set's registers: accumulators, two rows of activations and one weight.
void tokens_plain(float const* x, float const* w, float* y, std::size_t n, std::size_t in, std::size_t out,
                  std::size_t first, std::size_t last) {
  kernel::sweep_tokens<4, 4>(x, w, y, n, in, out, first, last);
}
void rows_plain(float const* x, float const* w, float* y, std::size_t first, std::size_t last,
                std::size_t in) {
  kernel::sweep_rows<4, 4>(x, w, y, first, last, in);
}
#if TINY_LLAMA_X86
__attribute__((target("avx2,fma"))) void tokens_avx2(float const* x, float const* w, float* y, std::size_t n,
                                                     std::size_t in, std::size_t out, std::size_t first,
                                                     std::size_t last) {
  kernel::sweep_tokens<8, 4>(x, w, y, n, in, out, first, last);
}
__attribute__((target("avx2,fma"))) void rows_avx2(float const* x, float const* w, float* y,
                                                   std::size_t first, std::size_t last, std::size_t in) {
  kernel::sweep_rows<8, 4>(x, w, y, first, last, in);
}
__attribute__((target("avx512f"))) void tokens_avx512(float const* x, float const* w, float* y, std::size_t n,
                                                      std::size_t in, std::size_t out, std::size_t first,
                                                      std::size_t last) {
  kernel::sweep_tokens<16, 8>(x, w, y, n, in, out, first, last);
}
__attribute__((target("avx512f"))) void rows_avx512(float const* x, float const* w, float* y,
                                                    std::size_t first, std::size_t last, std::size_t in) {
  kernel::sweep_rows<16, 8>(x, w, y, first, last, in);
}
#endif

struct kernels {
  char const* name;
  std::size_t tile;  // tokens of a packed tile
  tokens_kernel tokens;
  rows_kernel rows;
};

kernels choose() {
#if TINY_LLAMA_X86
  if (__builtin_cpu_supports("avx512f")) {
    return {"avx512f", 32, tokens_avx512, rows_avx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2", 16, tokens_avx2, rows_avx2};
  }
#endif
  return {"plain", 8, tokens_plain, rows_plain};
}

kernels const& chosen() {
  static kernels const once = choose();
  return once;
}

constexpr std::size_t worth_waking = 1u << 20;  // multiply-adds; fewer are done before a thread has woken up
constexpr std::size_t row_block = 64;

void by_rows(float const* x, float const* w, float* y, std::size_t n, std::size_t in, std::size_t out) {
  auto const& use = chosen();
  in_pieces(out, n * in * out < worth_waking ? out : row_block, [&](std::size_t first, std::size_t last) {
    for (std::size_t t = 0; t < n; ++t) use.rows(x + t * in, w, y + t * out, first, last, in);
  });
}

void by_tokens(float const* x, float const* w, float* y, std::size_t n, std::size_t in, std::size_t out) {
  auto const& use = chosen();
  std::size_t const tiles = (n + use.tile - 1) / use.tile, threads = pool().size();
  bool const small = n * in * out < worth_waking;
  // Fewer tiles than threads, as for a question: the rows of each are shared out.
  std::size_t const shares = small || tiles >= threads ? 1 : (threads + tiles - 1) / tiles;
  std::size_t const rows = (out + shares * row_block - 1) / (shares * row_block) * row_block;
  std::size_t const parts = std::min(tiles * shares, threads);
  std::size_t const each = small ? tiles : (tiles * shares + parts * 4 - 1) / (parts * 4);
  in_pieces(tiles * shares, each, [&](std::size_t begin, std::size_t end) {
    std::vector<float> packed(in * use.tile);  // absent tokens stay zero or stale, and are not written back
    for (std::size_t piece = begin; piece < end; ++piece) {
      std::size_t const first = piece / shares * use.tile, count = std::min(use.tile, n - first);
      std::size_t const first_row = std::min(piece % shares * rows, out);
      for (std::size_t t = 0; t < count; ++t) {
        for (std::size_t i = 0; i < in; ++i) {
          packed[i * use.tile + t] = x[(first + t) * in + i];
        }
      }
      use.tokens(packed.data(), w, y + first * out, count, in, out, first_row,
                 std::min(first_row + rows, out));
    }
  });
}

}  // namespace

void matmul(float const* x, float const* w, float* y, std::size_t n, std::size_t in, std::size_t out) {
  if (n < matmul_few_rows) {  // a packed tile would be mostly empty
    by_rows(x, w, y, n, in, out);
  } else {
    by_tokens(x, w, y, n, in, out);
  }
}

char const* matmul_instruction_set() { return chosen().name; }

}  // namespace tiny_llama
