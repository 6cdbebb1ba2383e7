// SPDX-License-Identifier: Apache-2.0
// Shows queries to a score that keeps a table per track.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/score/observed_queries.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Calls the score's `absorb` for the observed queries. A tile is a query head of a track's group: tables of
/// heads do not depend on each other.
template <class Score, class Q> struct absorb_phase {
  Score score;
  ledger_ref ledger;
  batch_source source;
  query_sample sample;
  attention_params params;
  head_rows<Q> query;

  std::uint32_t tiles(shape const& s) const { return s.queries_per_kv_head; }
  std::size_t scratch_bytes(int lanes) const { return scratch_of_score(score, ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const member = source.row_of(t.item), d = ledger.extent.key_dim;
    std::uint32_t const queries = source.batch.queries(member);
    if (queries == 0) return;
    std::uint32_t const head = t.where.kv_head * ledger.extent.queries_per_kv_head + t.index;
    observed_queries<Q> const shown(query, sample, member, head, queries, ledger.length[t.where.index],
                                    ledger.seen[t.where.sequence],  // nothing is pending
                                    params.scale_for(d), d);
    absorb_queries(score, team, ledger.table_of(t.where), t.index, shown);
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
