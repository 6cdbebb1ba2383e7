// The vector kernels of the host, compiled once for the library.
#include <kvmeld/backend/host/tuned/tuned_kernels.hpp>

template kvmeld::host_kernels const* kvmeld::kernels_of<>(kvmeld::instruction_set);
