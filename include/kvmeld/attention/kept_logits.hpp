// Logits that attention stores for scores, so that observing does not read the keys again.
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

/// Where attend writes the logits of the sampled queries: rows[sequence of the call][query head][sampled
/// query][slot], scaled, capped, with the log degree added. Slots that a query does not see are not written.
struct kept_logits {
  head_rows<float> rows;  ///< data null: none are kept
  query_sample probes;

  KVMELD_HD bool wanted() const { return rows.data != nullptr; }
  /// The logits of row r of a block, by slot; null if its query is not sampled.
  KVMELD_HD float* row(block_of_rows const& b, std::uint32_t r) const {
    if (!wanted()) return nullptr;
    std::uint32_t const probe = probes.index_of(b.queries, b.query_of(r));
    return probe == query_sample::none ? nullptr : rows.row(b.member, b.head_of(r), probe);
  }
};

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
