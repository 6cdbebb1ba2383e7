// What attention needs to see of a cache: K, V, lengths, degrees and positions, by value.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Why a call cannot look at the ledger of a ref; empty if it can. A cache that was refused or moved from has
/// none.
inline std::string ref_problem(char const* call, ledger_ref const& ledger) {
  if (ledger.length != nullptr) return {};
  return refusal(call, "the ref's ledger", "null", "that of a cache whose valid() is ok");
}

/// Trivially copyable; independent of the policy's type. Valid for the cache's life; `rebind` of the cache
/// makes the K and V of earlier refs stale, not their lengths and degrees.
template <class Keys, class Values> struct cache_ref {
  Keys keys;          ///< the engine's keys
  Values values;      ///< the engine's values
  ledger_ref ledger;  ///< lengths, degrees, positions and the rest, in memory of the executor

  /// The track of a layer of the group, a sequence and a KV head.
  KVMELD_HD track where(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return make_track(ledger.extent, layer, sequence, kv_head);
  }
  /// Slots in use: entries held, pending ones included, and empty slots (options.padded). New rows of an
  /// engine go to slots below it, after `append`.
  KVMELD_HD std::uint32_t length(track t) const { return ledger.length[t.index]; }
  /// Tokens the entry stands for; 0 for an empty slot.
  KVMELD_HD float degree(track t, slot_t s) const { return ledger.degree[ledger.at(t, s)]; }
  /// Natural logarithm of the degree: added to the entry's attention logit. 0 for an unmerged entry, the
  /// lowest float for an empty slot. With options.ignore_degree 0 for every entry.
  KVMELD_HD float log_degree(track t, slot_t s) const { return ledger.log_degree(t, s); }
  /// Token position that the entry's key is rotated for.
  KVMELD_HD position_t position(track t, slot_t s) const { return ledger.position[ledger.at(t, s)]; }
  /// Extents of the cache.
  KVMELD_HD shape const& extent() const { return ledger.extent; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
