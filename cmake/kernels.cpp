// The vector kernels of the host, compiled once for libkvmeld, and once for all of kvmeld's own programs.
#include <kvmeld/backend/host/tuned/host_kernels.hpp>

template struct kvmeld::typed_kernels<float>;
template struct kvmeld::typed_kernels<kvmeld::float16>;
template struct kvmeld::typed_kernels<kvmeld::bfloat16>;
template struct kvmeld::untyped_kernels<>;
