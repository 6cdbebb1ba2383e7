// A unit that includes this header does not compile the vector kernels of the host (docs/performance.md says
// what that saves). Exactly one unit of the program compiles them:
//
//   #include <kvmeld/backend/host/tuned/tuned_kernels.hpp>
//   template kvmeld::host_kernels const* kvmeld::kernels_of<>(kvmeld::instruction_set);
//
// That unit needs the same -ffast-math and -fno-exceptions options as the others (see
// core/config.hpp).
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/backend/host/tuned/tuned_kernels.hpp>
#include <kvmeld/core/config.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The kernels are compiled in another unit of the program.
extern template host_kernels const* kernels_of<>(instruction_set);

}  // namespace KVMELD_ABI
}  // namespace kvmeld
