"""Log degrees in FlashInfer's Python wrappers: a decode variant that is compiled when it is first used.

    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", jit_args=jit_args(torch.bfloat16, 128))
    decode.plan(indptr, indices, last_page_len, query_heads, kv_heads, 128, page_size, ...)
    out = decode.run(q, (k, v), log_degree, 128 ** -0.5, kv_heads, capacity)

`log_degree` [rows of the batch][KV heads][capacity], float32, is what kvmeld::attention::write_log_degree writes. With
heads folded into the batch there are rows x KV heads rows of one head: the same tensor. As a program it compiles the
variant, which needs nvcc but no device:

    FLASHINFER_CUDA_ARCH_LIST=9.0a python3 log_degree.py
"""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python" / "kvmeld"))
    import _program  # noqa: E402  (of the Python package, which need not be installed)
    sys.path.pop()
    _program.start("log_degree.py")

import torch

DECLARATION = r"""
struct LogDegree : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t window_left, qo_len, kv_len;
  float sm_scale_log2;

  template <typename Params>
  __device__ __host__ LogDegree(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    window_left = kv_len;
    sm_scale_log2 = math::log2e;  // the transform has applied the scale: only the base is left
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if (kv_idx >= kv_len) return logits;  // asked before it is masked
    const uint64_t row = uint64_t(batch_idx) * params.kv_heads + kv_head_idx;
    return logits * float(params.sm_scale) + params.log_degree[row * params.capacity + kv_idx];
  })
};
"""


def jit_args(dtype, head_dim):
    """What the wrapper wants: a name for the module, types, the tensors and numbers that run() gets, the variant."""
    name = f"kvmeld_log_degree_{str(dtype).split('.')[-1]}_{head_dim}"
    return [
        name, dtype, dtype, dtype, torch.int32, head_dim, head_dim,
        ["log_degree"], ["float"],
        ["sm_scale", "kv_heads", "capacity"], ["double", "int64_t", "int64_t"],
        "LogDegree", DECLARATION,
    ]


if __name__ == "__main__":
    from flashinfer.jit.attention import modules

    decode = modules.gen_customize_batch_decode_module(*jit_args(torch.bfloat16, 128))
    several = jit_args(torch.bfloat16, 128)
    several[0] += "_tensor_cores"  # use_tensor_cores=True, several queries, other group sizes
    prefill = modules.gen_customize_batch_prefill_module("fa2", *several)
    for module in (decode, prefill):
        module.build(verbose=False)
        print("compiled", module.get_library_path().name)
