// The vector kernels of the host, compiled once for the library.
#include <kvmeld/backend/host/tuned/host_kernels.hpp>

template struct kvmeld::typed_kernels<float>;
template struct kvmeld::typed_kernels<kvmeld::float16>;
template struct kvmeld::typed_kernels<kvmeld::bfloat16>;
template struct kvmeld::untyped_kernels<>;
