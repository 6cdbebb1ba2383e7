// Compiled, not run: both forms against FlashInfer's headers, for the head width and types of Llama 3.
#include "log_degree.cuh"

namespace recipe = flashinfer_recipe;
using params_type = recipe::melded_params<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;

/// Every head with its own length: a block per (row, KV head), which needs no plan and no partition.
cudaError_t decode_folded(params_type params, cudaStream_t stream) {
  return flashinfer::BatchDecodeWithPagedKVCacheDispatched<128, flashinfer::PosEncodingMode::kNone,
                                                           recipe::log_degree<true>>(
      params, static_cast<__nv_bfloat16*>(nullptr), nullptr, false, stream);
}

/// All heads of a sequence equally long (exact budgets): FlashInfer's tables as they are.
cudaError_t decode_equal(params_type params, __nv_bfloat16* partial, float* partial_lse,
                         cudaStream_t stream) {
  return flashinfer::BatchDecodeWithPagedKVCacheDispatched<128, flashinfer::PosEncodingMode::kNone,
                                                           recipe::log_degree<false>>(
      params, partial, partial_lse, false, stream);
}

void prepare(kvmeld::ledger_ref ledger, std::uint32_t layer, std::uint32_t const* sequence_of,
             std::uint32_t rows, std::int32_t const* table, std::uint32_t max_pages,
             recipe::folded_tables tables, __nv_bfloat16* keys, __nv_bfloat16* values, params_type& params,
             cudaStream_t stream) {
  auto const heads = static_cast<std::int32_t>(ledger.extent.kv_heads);
  auto const view = recipe::folded_view::nhd(heads, 16, 128);
  recipe::fold_heads<<<1, 256, 0, stream>>>(ledger, layer, sequence_of, rows, table, max_pages, 16u,
                                            view.pages_per_page, tables);
  params.ledger = ledger;
  params.layer = layer;
  params.sequence_of = sequence_of;
  params.num_qo_heads = ledger.extent.queries_per_kv_head;
  params.paged_kv =
      recipe::folded_cache(keys, values, view, rows * ledger.extent.kv_heads, 16u, 128u, tables);
}
