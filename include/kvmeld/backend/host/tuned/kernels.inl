// Compiled once per instruction set: every kernel, and the table of them.
#include "vectors.inl"

#include "products.inl"
#include "rows.inl"
#include "selection.inl"
#include "softmax.inl"

inline host_kernels const* table() {
  static constexpr host_kernels kernels{
      products,   dots,           inverse_norms, match_rows,       decode_half, decode_bfloat16, blend_float,
      blend_half, blend_bfloat16, all_finite,    collect_scores,   list_scores, collect_keys,    list_keys,
      kth_key,    soften,         add_weighted,  add_exponentials, log_degrees, pack_words,      pack_halves};
  return &kernels;
}
