#include "presets_impl.hpp"

namespace kvmeld_bench {

template void run_presets<float>(session&, tensors<float>&);

}  // namespace kvmeld_bench
