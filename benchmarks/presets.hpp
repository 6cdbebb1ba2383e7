// Whole compressions by every preset, and attention before and after.
#pragma once

#include "session.hpp"
#include "tensors.hpp"

#include <kvmeld/core/element.hpp>

namespace kvmeld_bench {

/// Rows "compress/preset", "attend/unmerged" and "attend/merged". Leaves K and V changed.
template <class T> void run_presets(session& s, tensors<T>& x);

extern template void run_presets<float>(session&, tensors<float>&);
extern template void run_presets<kvmeld::bfloat16>(session&, tensors<kvmeld::bfloat16>&);

}  // namespace kvmeld_bench
