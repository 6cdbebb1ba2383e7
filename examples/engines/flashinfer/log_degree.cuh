// FlashInfer's batch decode over a merged cache: a logits transform that adds log degrees, and block tables
// with heads folded into the batch, so that every head has a length of its own. See
// docs/engines/flashinfer.md.
#pragma once

#include <kvmeld/cuda.cuh>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/page.cuh>

#include <cstdint>

namespace flashinfer_recipe {

/// FlashInfer's own parameters and what the transform reads. `sequence_of[row]` is the slot of kvmeld's cache
/// that a row of the batch belongs to (row / KV heads where heads are folded).
template <class Q, class KV, class Out>
struct melded_params : flashinfer::BatchDecodeParams<Q, KV, Out, std::int32_t> {
  kvmeld::ledger_ref ledger;
  std::uint32_t const* sequence_of;
  std::uint32_t layer;
};

/// Logit = scale q.k + log degree. FlashInfer multiplies what the transform returns by sm_scale_log2, so the
/// scale is applied here and that factor only changes the base of the logarithm. Not for rope_pos_offset,
/// which is added to kv_idx.
template <bool folded> struct log_degree : flashinfer::AttentionVariantBase {
  static constexpr bool use_softmax = true;
  std::uint32_t kv_len;
  float sm_scale_log2 = flashinfer::math::log2e;

  template <class Params>
  __device__ __host__ log_degree(Params const& params, std::uint32_t batch_idx, std::uint8_t*)
      : kv_len(static_cast<std::uint32_t>(params.get_kv_len(static_cast<std::int32_t>(batch_idx)))) {}

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if (kv_idx >= kv_len) return logits;  // decode asks before it masks what lies behind the end
    kvmeld::ledger_ref const& ledger = params.ledger;
    std::uint32_t const heads = ledger.extent.kv_heads;
    std::uint32_t const row = folded ? batch_idx / heads : batch_idx;
    std::uint32_t const head = folded ? batch_idx % heads : kv_head_idx;
    kvmeld::track const where =
        kvmeld::make_track(ledger.extent, params.layer, params.sequence_of[row], head);
    return logits * params.sm_scale + ledger.log_degree(where, kv_idx);
  })
};

/// A page of one head is a page of its own in the folded view: its number is page * pages_per_page + head,
/// its strides are `page` and `token`. Page numbers are 32 bits wide: in NHD, tokens of the pool times KV
/// heads stay below 2^31.
struct folded_view {
  std::int64_t page, token;
  std::int32_t pages_per_page;

  static folded_view hnd(std::int32_t heads, std::int32_t page_size, std::int64_t d) {
    return {page_size * d, d, heads};
  }
  static folded_view nhd(std::int32_t heads, std::int32_t page_size, std::int64_t d) {
    return {d, heads * d, page_size * heads};
  }
};

/// Where the folded tables lie: indptr [rows x heads + 1], indices [indptr's last], last_page_len [rows x
/// heads].
struct folded_tables {
  std::int32_t *indptr, *indices, *last_page_len;
};

/// Fills the folded tables of one layer from the engine's table [sequence][max_pages] and kvmeld's lengths,
/// which stay on the device. One block; short, not fast.
template <int threads = 256>
__global__ void fold_heads(kvmeld::ledger_ref ledger, std::uint32_t layer, std::uint32_t const* sequence_of,
                           std::uint32_t rows, std::int32_t const* table, std::uint32_t max_pages,
                           std::uint32_t page_size, std::int32_t pages_per_page, folded_tables out) {
  std::uint32_t const heads = ledger.extent.kv_heads;
  auto const length_of = [&](std::uint32_t i) {
    return ledger.length[kvmeld::make_track(ledger.extent, layer, sequence_of[i / heads], i % heads).index];
  };
  if (threadIdx.x == 0) {
    std::int32_t sum = 0;
    for (std::uint32_t i = 0; i < rows * heads; ++i) {
      std::uint32_t const length = length_of(i), pages = kvmeld::ceil_div(length, page_size);
      out.indptr[i] = sum;
      out.last_page_len[i] = pages == 0 ? 0 : static_cast<std::int32_t>(length - (pages - 1) * page_size);
      sum += static_cast<std::int32_t>(pages);
    }
    out.indptr[rows * heads] = sum;
  }
  __syncthreads();
  for (std::uint32_t i = 0; i < rows * heads; ++i) {
    std::int32_t const* const pages = table + std::size_t{sequence_of[i / heads]} * max_pages;
    std::int32_t const begin = out.indptr[i], count = out.indptr[i + 1] - begin;
    for (std::int32_t p = static_cast<std::int32_t>(threadIdx.x); p < count; p += threads)
      out.indices[begin + p] = pages[p] * pages_per_page + static_cast<std::int32_t>(i % heads);
  }
}

/// Rows x heads sequences of one KV head each. Queries [row][query head][d] are [row x KV head][group][d] as
/// they lie.
template <class KV>
flashinfer::paged_kv_t<KV, std::int32_t> folded_cache(KV* keys, KV* values, folded_view view,
                                                      std::uint32_t rows_by_heads, std::uint32_t page_size,
                                                      std::uint32_t d, folded_tables tables) {
  std::int64_t const strides[] = {view.page, view.token, 0};  // page, token, head: there is one
  return {1,
          page_size,
          d,
          rows_by_heads,
          flashinfer::QKVLayout::kNHD,
          keys,
          values,
          strides,
          tables.indices,
          tables.indptr,
          tables.last_page_len};
}

}  // namespace flashinfer_recipe
