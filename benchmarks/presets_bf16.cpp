#include "presets_impl.hpp"

namespace kvmeld_bench {

template void run_presets<kvmeld::bfloat16>(session&, tensors<kvmeld::bfloat16>&);

}  // namespace kvmeld_bench
