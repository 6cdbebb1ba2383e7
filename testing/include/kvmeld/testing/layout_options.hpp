// SPDX-License-Identifier: Apache-2.0
// Options and helpers of the layout conformance check.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// What `layout_problem` expects of a layout.
struct layout_options {
  /// Largest error of a stored element, as a share of the largest magnitude of its row. For rows that are
  /// quantised as a whole. 0: each element is rounded to element_type by element_traits; for types without
  /// element_traits the largest share is then 0.02.
  float coarseness = 0.0f;
  /// The bytes that the layout may touch; null: not checked. Checked if the layout has `locate`, before
  /// anything is written.
  void const* memory = nullptr;
  std::size_t bytes = 0;  ///< size of `memory`
};

/// Whether a layout has `locate`.
template <class Layout, class = void> struct has_locate : std::false_type {};
template <class Layout>
struct has_locate<Layout, std::void_t<decltype(std::declval<Layout const&>().locate(track{}, slot_t{}))>>
    : std::true_type {};

/// Whether an element type converts to float and back.
template <class T, class = void> struct has_element_traits : std::false_type {};
template <class T>
struct has_element_traits<T, std::void_t<decltype(element_traits<T>::from_float(0.0f))>> : std::true_type {};

/// "slot 3 of track (layer 0, sequence 1, head 0)"
inline std::string slot_name(track t, slot_t s) {
  return message("slot ", s, " of ", check_calls::track_name(t));
}

/// Calls f(track) for every track, in order.
template <class F> void each_track(shape const& s, F f) {
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) f(make_track(s, layer, sequence, head));
    }
  }
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
