// What happens to a track that merging does not bring to its budget.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What to do with a track that merging does not bring to its budget.
enum class shortfall : std::uint8_t {
  report,        ///< leave it longer; finding::budget_unreached says so
  evict_lowest,  ///< evict the lowest scores; without a score, the oldest
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
