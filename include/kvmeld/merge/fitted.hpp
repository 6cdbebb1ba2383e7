// SPDX-License-Identifier: Apache-2.0
// Eviction that fits the values and degrees of the entries that stay to attention's outputs before it
// (Zweiger et al., "Fast KV Compaction via Attention Matching", 2026).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/drop.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What is fitted after a plan has decided which entries stay.
struct fit_options {
  bool values = false;            ///< the values of the entries that stay
  bool degrees = false;           ///< their degrees, before the values
  float ridge = 0.1f;             ///< pull towards the values and degrees that are there
  std::uint32_t iterations = 16;  ///< steps of the fit of degrees

  /// Whether anything is fitted.
  KVMELD_HD bool any() const { return values || degrees; }
};

namespace merge {

/// Drops like `drop`, with an identifier that makes no sets. Then the entries that stay are fitted to the
/// reference queries q of the score (`score::keeping_queries`). With Z_q and
/// O_q the denominator and the output of q over all entries before the call, degrees included, and j the
/// entries that stay, with keys k_j, values v_j and degrees d_j:
///
/// 1. *Degrees.* Let a_qj = d_j exp(q.k_j) / Z_q. Degrees become d_j u_j, where u minimises
///        sum_q (1 - sum_j a_qj u_j)^2 + r sum_j (u_j - 1)^2,   least_factor <= u_j <= 1 / least_factor,
///    by `iterations` multiplicative updates from u = 1 (Lee and Seung, "Algorithms for Non-negative Matrix
///    Factorization", 2001). r is `ridge` times the sum of a_qj^2 over q and j.
/// 2. *Values.* Let A_qj = a_qj u_j / sum_i a_qi u_i. Values become v_j + c_j, where c minimises
///        sum_q |O_q - sum_j A_qj (v_j + c_j)|^2 + r sum_j |c_j|^2.
///    In the dual form c_j = sum_q A_qj X_q with (A A^T + r I) X = O - A v, a system with one row per
///    reference query. r is `ridge` times the sum of A_qj^2 over q and j.
///
/// The paper solves both without a ridge and bounds. The fit runs when the plan is applied, edited or not;
/// it changes neither which entries stay nor keys, positions and scores. A track is left as a plain eviction
/// leaves it if none of its entries goes, if it observed no reference query, or if an edited plan merges in
/// it. Frozen entries and rows that the layout refuses to write count as they are. Rows with NaN or infinity
/// take no part. A fitted row that would overflow its storage stays as it was. With plans that are shared,
/// every track fits to its own queries. If degrees are ignored (options.ignore_degree), they are not fitted.
///
/// Fitted degrees are masses, not counts of tokens: their sum may grow, and differs between heads. Sums have
/// one order, so results do not depend on lanes. Cost per track, for R reference queries, n entries of which
/// t stay, and d channels of keys and values: 2 n R d multiply-adds before, t R (3 d + R) for the values, and
/// t R d per iteration for the degrees; R^2 (R / 3 + d) for the system. Scratch: R^2 + R d + 64 (R + d)
/// floats.
struct fitted : drop {
  bool values = true;             ///< fit values
  bool degrees = false;           ///< fit degrees; the engine then needs a bias per head
  float ridge = 0.1f;             ///< above 0; larger: values and degrees change less
  std::uint32_t iterations = 16;  ///< steps of the fit of degrees, at least 1

  static constexpr char const* name = "fitted";
  static constexpr merge_facts facts{&merge_facts::drops, &merge_facts::fits};
  /// Bounds of the factor that a compression gives a degree.
  static constexpr float least_factor = 0x1p-10f;

  constexpr bool carries_degree() const { return degrees; }
  /// What is fitted.
  KVMELD_HD fit_options fit() const { return {values, degrees, ridge, iterations}; }

  std::string problem() const {
    if (!values && !degrees) {
      return refusal("policy", "merge::fitted.values", "false", "true if merge::fitted.degrees is false");
    }
    if (!(ridge > 0.0f) || !is_finite(ridge)) {
      return refusal("policy", "merge::fitted.ridge", ridge, "above 0 and finite");
    }
    if (iterations == 0) return refusal("policy", "merge::fitted.iterations", 0, "at least 1");
    return {};
  }
};

}  // namespace merge

/// What a merge function fits, as it is configured.
template <class Merge> fit_options fit_of([[maybe_unused]] Merge const& merge) {
  if constexpr (stated_facts<merge_facts, Merge>.fits) {
    return merge.fit();
  } else {
    return {};
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
