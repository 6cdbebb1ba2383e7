// SPDX-License-Identifier: Apache-2.0
// Weighted means: the same weights for keys and values, proportional to one number per member.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/merge/set_view.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// k* = mean k_i, v* = mean v_i, whatever the degrees of the members; degrees add (KVMerger's averaging
/// baseline).
struct average : defaults {
  static constexpr char const* name = "average";
  KVMELD_HD float weight(set_view const&, std::uint32_t) const { return 1.0f; }
};

/// k* = sum n_i k_i / sum n_i with degrees n_i, and the same for values: the centroid of the tokens behind a
/// set (Chelsea section 4, eq. 7; ToMe's size-weighted mean). Degrees add. The merge is exact under the
/// log-degree bias if the members are equal.
struct degree_weighted : defaults {
  static constexpr char const* name = "degree_weighted";
  KVMELD_HD float weight(set_view const& set, std::uint32_t i) const { return set.degree(i); }
};

/// k* = sum a_i k_i / sum a_i with the attention a_i that scores tell of, and the same for values (EMS
/// section 4.2, eq. 6, without its unit keys). a_i is the score s_i if scores add up when entries merge, n_i
/// s_i with the degree n_i if an entry has the largest score of its members (max_attention), and n_i exp(s_i)
/// if that is a logarithm (learned). Weights are equal if their sum is 0 or not finite. Degrees add.
struct score_weighted : defaults {
  static constexpr char const* name = "score_weighted";
  static constexpr merge_facts facts{&merge_facts::needs_score, &merge_facts::weighs_peaks};
  KVMELD_HD float weight(set_view const& set, std::uint32_t i) const {
    float const s = set.score(i);
    if (set.scores() == score_kind::peaks) return set.degree(i) * max_of(s, least);
    if (set.scores() == score_kind::log_peaks) return set.degree(i) * std::exp(min_of(s, most));
    return s;
  }

private:
  /// So that an entry that was not shown attention counts among others of its kind.
  static constexpr float least = 1e-6f;
  static constexpr float most = 60.0f;  ///< so that a sum of weights is finite
};

/// Keys and values get the weights w_i = exp(u_i) / sum exp(u). u_i is the similarity of member i and the
/// pivot; u = 1 for the pivot itself (D2O section 3.3). Degrees add; `degrees` off is as the paper prints it.
struct similarity_weighted : defaults {
  bool degrees = true;  ///< degrees add; off: the degree stays the pivot's

  similarity_weighted() = default;
  /// Sets `degrees`.
  constexpr explicit similarity_weighted(bool add_degrees) : degrees(add_degrees) {}

  static constexpr char const* name = "similarity_weighted";
  static constexpr merge_facts facts{&merge_facts::needs_similarity};
  constexpr bool carries_degree() const { return degrees; }
  KVMELD_HD float weight(set_view const& set, std::uint32_t i) const { return std::exp(set.similarity(i)); }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
