// SPDX-License-Identifier: Apache-2.0
// No score: for policies that look at positions and similarity only.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Every entry scores 0. Keeps no channel and needs no attention.
struct none {
  static constexpr char const* name = "none";
  static constexpr score_facts facts{score_kind::none, &score_facts::light};

  KVMELD_HD float importance(score_view const&, std::uint32_t) const { return 0.0f; }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
