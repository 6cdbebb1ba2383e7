// SPDX-License-Identifier: Apache-2.0
// A layout that is checked: its rows, and functions that read, write and compare them.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/testing/layout_options.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// One row of a tensor.
struct place {
  track where;
  slot_t slot;
};

template <class Layout> struct layout_subject {
  using element = typename Layout::element_type;
  using bits = std::vector<std::uint32_t>;  ///< bits of elements, row by row
  static constexpr bool plain = has_element_traits<element>::value;
  /// Whether stored bits can be read. If not, the bits of the floats that load_tile gives are compared.
  static constexpr bool shows_bits = has_locate<Layout>::value && sizeof(element) <= sizeof(std::uint32_t);

  Layout layout;
  shape extent;
  std::uint32_t channels;
  layout_options options;
  std::vector<place> rows = {}, sealed = {};  ///< writable slots, and the others
  std::vector<std::size_t> track_ends = {};   ///< where each track's rows end in `rows`
  bits before = {};                           ///< what `sealed` held
  mutable std::vector<std::byte> scratch = std::vector<std::byte>(std::size_t{1} << 16);

  /// A team of one lane, with scratch for layouts that need it.
  serial_team alone() const { return serial_team(scratch.data(), scratch.size()); }
  /// Whether each element is rounded to element_type by itself.
  bool exact() const { return plain && options.coarseness == 0.0f; }

  template <class F> void write(place const& p, F value) const {
    layout.encode_row(alone(), p.where, p.slot, value);
  }
  std::vector<float> read(place const& p) const {
    std::vector<float> row(channels);
    layout.load_tile(alone(), p.where, p.slot, 1, 0, channels, row.data(), channels);
    return row;
  }
  /// A pseudorandom number from -2 to 2 that depends on its place and `salt`.
  float noise(std::size_t row, std::uint32_t c, std::uint32_t salt) const {
    return 4.0f * uniform01({salt, static_cast<std::uint32_t>(row), c, 0, 0}) - 2.0f;
  }
  void write_noise(std::uint32_t salt) const {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      write(rows[r], [&](std::uint32_t c) { return noise(r, c, salt); });
    }
  }

  bits look(std::vector<place> const& list) const {
    bits out;
    for (place const& p : list) {
      for (float x : read(p)) out.push_back(float_bits(x));
    }
    return out;
  }
  /// Bits as they are stored, if they can be read; else bits of the floats that load_tile gives.
  bits stored(std::vector<place> const& list) const {
    if constexpr (shows_bits) {
      bits out;
      for (place const& p : list) {
        auto const at = layout.locate(p.where, p.slot);
        for (std::uint32_t c = 0; c < channels; ++c) {
          out.push_back(0);
          std::memcpy(&out.back(), at.base + std::int64_t{c} * at.channel_stride, sizeof(element));
        }
      }
      return out;
    } else {
      return look(list);
    }
  }
  static std::string hexadecimal(std::uint32_t x) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%x", x);
    return digits;
  }
  /// Names the first element that differs; empty if none does. `what` says what happened to it.
  std::string difference(std::vector<place> const& list, bits const& wanted, bits const& got,
                         std::string const& what) const {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == wanted[i]) continue;
      place const& p = list[i / channels];
      return message(slot_name(p.where, p.slot), ", channel ", i % channels, " has the bits ",
                     hexadecimal(got[i]), " instead of ", hexadecimal(wanted[i]), ": ", what);
    }
    return {};
  }
};

/// Numbers below n to try: 0, 1, 2, 3, 5, 8, ... and n - 1.
inline std::vector<std::uint32_t> cuts_below(std::uint32_t n) {
  std::vector<std::uint32_t> list{0};
  for (std::uint32_t a = 1, b = 2; a < n; b += a, a = b - a) list.push_back(a);
  if (list.back() != n - 1) list.push_back(n - 1);
  return list;
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
