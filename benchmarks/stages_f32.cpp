#include "stages_impl.hpp"

namespace kvmeld_bench {

template void run_stages<float>(session&, tensors<float>&);

}  // namespace kvmeld_bench
