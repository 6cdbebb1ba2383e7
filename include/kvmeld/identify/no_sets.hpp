// Identifiers that make no sets: nothing merges. `none` keeps entries apart, `evict_rest` drops them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/identify/round_view.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Proposes and admits nothing. An identifier that derives from it has to declare reads_live if it asks for
/// live entries.
struct none : defaults {
  static constexpr char const* name = "none";
  static constexpr bool light = true;
  static constexpr bool makes_sets = false;
  static constexpr bool reads_live = false;

  template <class Round> KVMELD_HD void admit(Round&) const {}
};

/// Drops every mergeable entry that has no other fate yet. The selector decides how many these are, so the
/// budget is met exactly if the selector's quantities fill it. Rows with NaN or infinity may drop like any
/// other row, because nothing is computed from them. An identifier that derives from it has to declare
/// reads_live if it asks for live entries.
struct evict_rest : defaults {
  static constexpr char const* name = "evict_rest";
  static constexpr bool light = true;
  static constexpr bool meets_budget = true;
  static constexpr bool makes_sets = false;
  static constexpr bool reads_live = false;
  static constexpr bool drops_unmerged = true;

  template <class Round> KVMELD_HD void admit(Round& round) const { round.drop_rest(); }
};

}  // namespace identify

}  // namespace KVMELD_ABI
}  // namespace kvmeld
