// SPDX-License-Identifier: Apache-2.0
// Checks that a layout keeps what is written: each row by itself, no two rows in the same place, rounded as
// element_type or the options say.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/testing/layout_options.hpp>
#include <kvmeld/testing/layout_subject.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Checks of every row by itself that what is written is read back.
template <class Layout> std::string round_trip_problem(layout_subject<Layout> const& x) {
  for (std::size_t r = 0; r < x.rows.size(); ++r) {
    place const& p = x.rows[r];
    auto const value = [&](std::uint32_t c) { return x.noise(r, c, 1) < 0.0f ? -1.0f : 1.0f; };
    x.write(p, value);
    std::vector<float> const got = x.read(p);
    for (std::uint32_t c = 0; c < x.channels; ++c) {
      if (got[c] * value(c) > 0.5f && got[c] * value(c) < 1.5f) continue;
      return message(slot_name(p.where, p.slot), ", channel ", c, " reads ", got[c],
                     " right after encode_row wrote ", value(c));
    }
  }
  return {};
}

/// Checks that no two elements overlap. Writes to every element a number of its own, bit by bit, each bit as
/// a sign, so that the coarsest storage holds it. Rows are written from the first to the last, then from the
/// last to the first. An element that reads as the number of another lies in the same place.
template <class Layout> std::string overlap_problem(layout_subject<Layout> const& x) {
  std::size_t const elements = x.rows.size() * x.channels;
  std::uint32_t bits = 1;
  while (elements >> bits != 0) ++bits;
  auto const name = [&](std::size_t i) {
    place const& p = x.rows[i / x.channels];
    return message(slot_name(p.where, p.slot), ", channel ", i % x.channels);
  };
  for (bool backwards : {false, true}) {
    std::vector<std::size_t> number(elements, 0);
    for (std::uint32_t b = 0; b < bits; ++b) {
      for (std::size_t i = 0; i < x.rows.size(); ++i) {
        std::size_t const r = backwards ? x.rows.size() - 1 - i : i;
        x.write(x.rows[r],
                [&](std::uint32_t c) { return ((r * x.channels + c) >> b & 1u) != 0 ? 1.0f : -1.0f; });
      }
      for (std::size_t r = 0; r < x.rows.size(); ++r) {
        std::vector<float> const got = x.read(x.rows[r]);
        for (std::uint32_t c = 0; c < x.channels; ++c) {
          number[r * x.channels + c] |= std::size_t{got[c] > 0.0f ? 1u : 0u} << b;
        }
      }
    }
    for (std::size_t i = 0; i < elements; ++i) {
      if (number[i] == i) continue;
      if (number[i] >= elements) return name(i) + " changes when other rows are written";
      return name(i) + " holds what was written to " + name(number[i]) + ": they overlap";
    }
  }
  return {};
}

/// Checks that elements are rounded as element_traits does, or lie within the coarseness, and that `locate`
/// shows what load_tile reads.
template <class Layout> std::string rounding_problem(layout_subject<Layout> const& x) {
  using element = typename Layout::element_type;
  for (std::size_t r = 0; r < x.rows.size(); ++r) {
    // Magnitudes are from 2^-8 up to 2^8. Every second number lies on a tie of half, every fourth on a tie of
    // bfloat16.
    auto const value = [&](std::uint32_t c) {
      std::uint32_t u = float_bits(x.noise(r, c, 2));
      u = (u & 0x807fffffu) | (119u + (c + static_cast<std::uint32_t>(r)) % 16u) << 23;
      if (c % 2 == 0) u = (u & 0xffffe000u) | 0x1000u;
      if (c % 4 == 0) u = (u & 0xffff0000u) | 0x8000u;
      return x.exact() ? bits_float(u) : x.noise(r, c, 2);
    };
    auto const magnitude = [](float y) { return y < 0.0f ? -y : y; };
    place const& p = x.rows[r];
    x.write(p, value);
    std::vector<float> const got = x.read(p);
    float most = 0.0f;
    for (std::uint32_t c = 0; c < x.channels; ++c) most = max_of(most, magnitude(value(c)));
    float const allowed = (x.options.coarseness > 0.0f ? x.options.coarseness : 0.02f) * most;
    auto const reads = [&](std::uint32_t c) {
      return message(slot_name(p.where, p.slot), ", channel ", c, " reads ", got[c]);
    };
    for (std::uint32_t c = 0; c < x.channels; ++c) {
      if (!x.exact() && !(magnitude(got[c] - value(c)) <= allowed)) {
        return reads(c) + message(" for ", value(c), "; the error must be at most ", allowed);
      }
      if constexpr (layout_subject<Layout>::plain) {
        using traits = element_traits<element>;
        float const rounded = traits::to_float(traits::from_float(value(c)));
        if (x.exact() && float_bits(got[c]) != float_bits(rounded)) {
          return reads(c) + message(" for ", value(c), ", which element_type rounds to ", rounded);
        }
        if constexpr (has_locate<Layout>::value) {
          auto const at = x.layout.locate(p.where, p.slot);
          float const there = traits::to_float(at.base[std::int64_t{c} * at.channel_stride]);
          if (float_bits(there) != float_bits(got[c])) {
            return reads(c) + message(", but where locate shows it is ", there);
          }
        }
      }
    }
  }
  return {};
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
