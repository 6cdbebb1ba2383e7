// Compiled once per instruction set: includes every kernel and builds their table.
#include "vectors.inl"

#include "rows.inl"

#include "columns.inl"

#include "products.inl"
#include "selection.inl"
#include "softmax.inl"

inline host_kernels const* table() {
  static constexpr host_kernels kernels{products<float>,
                                        products<float16>,
                                        products<bfloat16>,
                                        dots<float>,
                                        dots<float16>,
                                        dots<bfloat16>,
                                        measures<float>,
                                        measures<float16>,
                                        measures<bfloat16>,
                                        match_rows,
                                        bound_cosines,
                                        decode_half,
                                        decode_bfloat16,
                                        blend_float,
                                        blend_half,
                                        blend_bfloat16,
                                        width,
                                        merge_columns_float,
                                        merge_columns_half,
                                        merge_columns_bfloat16,
                                        clear_rows,
                                        stream_row,
                                        drain,
                                        finite_float,
                                        finite_half,
                                        finite_bfloat16,
                                        collect_keys,
                                        split_scores,
                                        list_keys,
                                        kth_key,
                                        soften,
                                        add_weighted<float>,
                                        add_weighted<float16>,
                                        add_weighted<bfloat16>,
                                        add_exponentials,
                                        log_degrees,
                                        pack_words,
                                        pack_halves};
  return &kernels;
}
