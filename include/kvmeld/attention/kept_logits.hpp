// Logits that attention leaves behind for scores, so that observing needs no second look at the keys.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/probes.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// Where attend leaves the logits of the queries that are probes: rows[sequence of the call][query
/// head][probe][slot], scaled, capped, with the log degree added. What a query does not see is not written.
struct kept_logits {
  head_rows<float> rows;  ///< data null: none are kept
  query_sample probes;

  KVMELD_HD bool wanted() const { return rows.data != nullptr; }
  /// Slots of row r of a block; null where its query is no probe.
  KVMELD_HD float* row(block_of_rows const& b, std::uint32_t r) const {
    if (!wanted()) return nullptr;
    std::uint32_t const probe = probes.index_of(b.queries, b.query_of(r));
    return probe == query_sample::none ? nullptr : rows.row(b.member, b.head_of(r), probe);
  }
};

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
