// What `append` does with a sequence that has no room.
#pragma once

#include <kvmeld/cache/shortfall.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Compress first: the budget that a full sequence shrinks to, and what happens where merging does not reach it. The
/// default fallback makes sure that room is made.
struct when_full {
  budget shrink_to;                              ///< entries that stay; fewer than the capacity
  shortfall fallback = shortfall::evict_lowest;  ///< guarded policies take shortfall::report alone
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
