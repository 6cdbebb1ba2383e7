// SPDX-License-Identifier: Apache-2.0
// Copies what a ledger holds of a page to another page.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fields.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Why a call cannot use page `page` of `count` pages of a ledger; empty if it can.
inline std::string page_problem(char const* call, char const* argument, std::uint32_t page,
                                std::uint32_t count) {
  if (count == 0) return refusal(call, "options.ledger_pages.count", 0, "at least 1");
  if (page < count) return {};
  return refusal(call, argument, page, "0 to ", count - 1, ", the pages of the pool");
}

/// Copies the elements of all entries of page `from` to page `into`. One tile.
struct copy_page_phase {
  ledger_ref ledger;
  std::uint32_t from, into;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD track where(std::uint32_t) const { return make_track(ledger.extent, 0, 0, 0); }
  KVMELD_HD static bool idle(std::uint32_t) { return false; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const&) const {
    auto const elements = static_cast<std::uint32_t>(ledger.pages.page_stride);
    std::size_t const source = std::size_t{from} * elements, target = std::size_t{into} * elements;
    detail::for_each_field(
        [&](detail::field_of what, std::uint32_t, auto* x) {
          if (what != detail::field_of::entry) return;
          team.for_each(elements, [&](std::uint32_t i) { x[target + i] = x[source + i]; });
        },
        ledger);
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
