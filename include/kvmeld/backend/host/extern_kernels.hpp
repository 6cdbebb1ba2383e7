// SPDX-License-Identifier: Apache-2.0
// A unit that includes this header does not compile the vector kernels of the host (docs/performance.md says
// what that saves). Exactly one unit of the program compiles them:
//
//   #include <kvmeld/backend/host/tuned/host_kernels.hpp>
//   template struct kvmeld::typed_kernels<float>;
//   template struct kvmeld::typed_kernels<kvmeld::float16>;
//   template struct kvmeld::typed_kernels<kvmeld::bfloat16>;
//   template struct kvmeld::untyped_kernels<>;
//
// That unit needs the same -ffast-math and -fno-exceptions options as the others (see
// core/config.hpp).
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

// The kernels are compiled in another unit of the program.
extern template struct typed_kernels<float>;
extern template struct typed_kernels<float16>;
extern template struct typed_kernels<bfloat16>;
extern template struct untyped_kernels<>;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
