// What may be asked of a compression beside the budget, and what that costs.
#pragma once

#include "session.hpp"
#include "tensors.hpp"

#include <kvmeld/core/element.hpp>

namespace kvmeld_bench {

/// Rows "feature/preset/name" at 4096 entries: shared budgets, live figures; and
/// "feature/preset/plain" before them, which they are compared with. Leaves K and V changed.
void run_features(session& s, tensors<kvmeld::bfloat16>& x);

}  // namespace kvmeld_bench
