// Every stage alone, in the order in which compress runs them.
#pragma once

#include "session.hpp"
#include "tensors.hpp"

namespace kvmeld_bench {

/// Rows "stage/policy", and "inspect" and "observe_..." which no policy changes. Leaves K and V changed.
template <class T> void run_stages(session& s, tensors<T>& x);

extern template void run_stages<float>(session&, tensors<float>&);
extern template void run_stages<kvmeld::bfloat16>(session&, tensors<kvmeld::bfloat16>&);

}  // namespace kvmeld_bench
