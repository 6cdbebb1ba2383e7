// No sets: entries stay apart. Only entries that a selector finds irrelevant drop.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/identify/round_view.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Proposes and admits nothing.
struct none : defaults {
  static constexpr char const* name = "none";
  static constexpr bool light = true;
  static constexpr bool makes_sets = false;

  template <class Round> KVMELD_HD void admit(Round&) const {}
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
