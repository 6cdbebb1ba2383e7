// SPDX-License-Identifier: Apache-2.0
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

namespace detail {

/// Why a call cannot look at the ledger of a ref; empty if it can. A cache that was refused or moved from has
/// no ledger.
inline std::string ref_problem(char const* call, ledger_ref const& ledger) {
  if (ledger.length != nullptr) return {};
  return refusal(call, "the ref's ledger", "null", "that of a cache whose valid() is ok");
}

}  // namespace detail

/// What attention reads of a cache. Trivially copyable, and independent of the policy's type. A ref is valid
/// as long as the cache lives. After `rebind` of the cache, `keys` and `values` of earlier refs are stale;
/// their lengths and degrees stay valid.
template <class Keys, class Values> struct cache_ref {
  Keys keys;          ///< the engine's keys
  Values values;      ///< the engine's values
  ledger_ref ledger;  ///< lengths, degrees, positions and the rest, in memory of the executor

  /// The track of a layer of the group, a sequence and a KV head.
  KVMELD_HD track where(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return make_track(ledger.extent, layer, sequence, kv_head);
  }
  /// Slots in use: entries, pending tokens included, and empty slots (options.padded). After `append`, the
  /// engine writes its new rows to slots below this length.
  KVMELD_HD std::uint32_t length(track t) const { return ledger.length[t.index]; }
  /// How many tokens the entry stands for; 0 for an empty slot.
  KVMELD_HD float degree(track t, slot_t s) const { return ledger.degree[ledger.at(t, s)]; }
  /// Natural logarithm of the degree, which attention adds to the entry's logit. 0 for an unmerged entry, the
  /// lowest float for an empty slot. With options.ignore_degree it is 0 for every entry.
  KVMELD_HD float log_degree(track t, slot_t s) const { return ledger.log_degree(t, s); }
  /// The token position that the entry's key is rotated for.
  KVMELD_HD position_t position(track t, slot_t s) const { return ledger.position[ledger.at(t, s)]; }
  /// Whether positions ascend from slot to slot, so that a window shows the last slots of a track.
  KVMELD_HD bool in_order() const { return !ledger.padded; }
  /// Extents of the cache.
  KVMELD_HD shape const& extent() const { return ledger.extent; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
