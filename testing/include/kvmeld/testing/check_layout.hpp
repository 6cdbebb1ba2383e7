// SPDX-License-Identifier: Apache-2.0
// Layout conformance: whether an engine's own layout does what kvmeld relies on.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/testing/check_addresses.hpp>
#include <kvmeld/testing/check_moves.hpp>
#include <kvmeld/testing/check_storage.hpp>
#include <kvmeld/testing/layout_options.hpp>
#include <kvmeld/testing/layout_subject.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Sorts the rows of a layout into writable rows and others.
template <class Layout> std::string list_rows(layout_subject<Layout>& x) {
  std::string problem;
  each_track(x.extent, [&](track t) {
    for (slot_t s = 0; s < x.extent.capacity; ++s) {
      bool const writable = x.layout.writable(t, s);
      (writable ? x.rows : x.sealed).push_back({t, s});
      if (!writable && is_always_writable<Layout>::value && problem.empty()) {
        problem = slot_name(t, s) + " is not writable, but always_writable is set";
      }
    }
    x.track_ends.push_back(x.rows.size());
  });
  if (problem.empty() && x.rows.empty()) problem = "no slot is writable, so that nothing can be checked";
  x.before = x.look(x.sealed);
  return problem;
}

/// What is wrong with a layout of keys or values; empty if nothing is. Checks, in this order: channels();
/// `locate`, if there is one (bounds, how far strides hold); that encode_row and load_tile agree; that no
/// two elements overlap; that elements are rounded as element_traits does, or within a coarseness; tiles of
/// any tokens, channels and row length; that copy_row moves raw bits; that several lanes do the same as one;
/// that rows which are not `writable` stay as they are. The text names slot, channel and fault. OVERWRITES
/// every writable row of the tensor, and leaves zeros in these rows. Meant for small shapes: it takes some 60
/// passes over all elements. Host only.
template <class Layout>
std::string layout_problem(Layout const& layout, shape const& extent, std::uint32_t channels,
                           layout_options const& options = {}) {
  detail::require_layout<Layout>();
  if (channels == 0 || layout.channels() != channels) {
    return message("channels() is ", layout.channels(), "; expected are ", channels);
  }
  std::string problem = address_problem(layout, extent, options);
  if (!problem.empty()) return problem;
  layout_subject<Layout> x{layout, extent, channels, options};
  problem = list_rows(x);
  if (problem.empty()) problem = round_trip_problem(x);
  if (problem.empty()) problem = overlap_problem(x);
  if (problem.empty()) problem = rounding_problem(x);
  if (problem.empty()) problem = tile_problem(x);
  if (problem.empty()) problem = copy_problem(x);
  if (problem.empty()) problem = lane_problem(x);
  if (problem.empty()) {
    problem = x.difference(x.sealed, x.before, x.look(x.sealed),
                           "it is not writable, but changed when other rows were written");
  }
  for (place const& p : x.rows) x.write(p, [](std::uint32_t) { return 0.0f; });
  return problem;
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
