// SPDX-License-Identifier: Apache-2.0
// Checks that a layout's tiles are made of its rows, that its copies move raw bits, and that several lanes do
// the same as one.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/testing/layout_options.hpp>
#include <kvmeld/testing/layout_subject.hpp>
#include <kvmeld/testing/lone_lane.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Checks that tiles with various numbers of tokens, channels and row lengths are made of the rows, and that
/// nothing outside the tile is written.
template <class Layout> std::string tile_problem(layout_subject<Layout> const& x) {
  constexpr float untouched = 12345.0f;
  x.write_noise(3);
  std::uint32_t const capacity = x.extent.capacity;
  std::vector<float> out, rows(std::size_t{capacity} * x.channels);
  std::string problem;
  auto const check = [&](track t, slot_t s, std::uint32_t n, std::uint32_t c, std::uint32_t m,
                         std::uint32_t ld) {
    out.assign(std::size_t{n} * ld + 2 * x.channels, untouched);  // room to detect writes outside the tile
    x.layout.load_tile(x.alone(), t, s, n, c, m, out.data(), ld);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::size_t const token = i / ld, channel = i % ld;
      bool const inside = token < n && channel < m;
      float const wanted = inside ? rows[(s + token) * x.channels + c + channel] : untouched;
      if (float_bits(out[i]) == float_bits(wanted)) continue;
      problem = message("load_tile of ", n, " tokens from ", slot_name(t, s), " on, channels ", c, " to ",
                        c + m - 1, ", ld ", ld, ": ");
      problem += inside ? message("token ", token, ", channel ", c + channel, " is ", out[i], " for ", wanted)
                        : message("out[", i, "] is written, but is not of the tile");
      return;
    }
  };
  each_track(x.extent, [&](track t) {
    for (slot_t s = 0; s < capacity; ++s) {
      std::memcpy(&rows[std::size_t{s} * x.channels], x.read({t, s}).data(), x.channels * sizeof(float));
    }
    for (slot_t s : cuts_below(capacity)) {
      for (std::uint32_t n : cuts_below(capacity - s)) {
        for (std::uint32_t c : cuts_below(x.channels)) {
          for (std::uint32_t m : cuts_below(x.channels - c)) {
            if (problem.empty()) check(t, s, n + 1, c, m + 1, m + 1 + (n + c) % 3);
          }
        }
      }
    }
  });
  return problem;
}

/// Calls f(to, from) with indices of rows of the same track: first moves towards the beginning, as compaction
/// makes them, then moves towards the end, then a move in place.
template <class Layout, class F> void each_copy(layout_subject<Layout> const& x, F f) {
  std::size_t begin = 0;
  for (std::size_t end : x.track_ends) {
    for (std::size_t stride : {std::size_t{2}, std::size_t{7}}) {
      for (std::size_t i = 1; begin + i * stride < end; ++i) f(begin + i, begin + i * stride);
    }
    for (std::size_t i = end; i-- > begin + 1;) f(i, i - 1);
    if (begin < end) f(begin, begin);
    begin = end;
  }
}

/// Checks that copy_row moves the bits of a row, whatever they mean, and changes nothing else.
template <class Layout> std::string copy_problem(layout_subject<Layout> const& x) {
  x.write_noise(4);
  if constexpr (layout_subject<Layout>::shows_bits) {  // bits of any kind, NaN among them
    for (std::size_t r = 0; r < x.rows.size(); ++r) {
      auto const at = x.layout.locate(x.rows[r].where, x.rows[r].slot);
      for (std::uint32_t c = 0; c < x.channels; ++c) {
        std::uint32_t const nan = 0x7fb77fb7u;  // as half, bfloat16 and float
        std::uint32_t const u = (c + r) % 5 == 1 ? nan : float_bits(x.noise(r, c, 5)) * 0x9e3779b9u;
        std::memcpy(at.base + std::int64_t{c} * at.channel_stride, &u, sizeof(typename Layout::element_type));
      }
    }
  }
  auto wanted = x.stored(x.rows);
  std::string problem;
  each_copy(x, [&](std::size_t to, std::size_t from) {
    place const& p = x.rows[to];
    if (!problem.empty()) return;
    x.layout.copy_row(x.alone(), p.where, p.slot, x.rows[from].slot);
    std::memmove(&wanted[to * x.channels], &wanted[from * x.channels], x.channels * sizeof wanted[0]);
    auto const begin = wanted.begin() + static_cast<std::ptrdiff_t>(to * x.channels);
    problem = x.difference({p}, {begin, begin + static_cast<std::ptrdiff_t>(x.channels)}, x.stored({p}),
                           message("copy_row from slot ", x.rows[from].slot, " does not move raw bits"));
  });
  if (problem.empty()) {
    problem = x.difference(x.rows, wanted, x.stored(x.rows), "copy_row of other rows changes it");
  }
  return problem;
}

/// Checks that several lanes do what one lane does. The lanes run one after the other, each through all its
/// copies without a barrier. Finds nothing in layouts whose lanes meet (see lone_lane).
template <class Layout> std::string lane_problem(layout_subject<Layout> const& x) {
  auto const play = [&](auto each_lane) {
    each_lane([&](auto const& team) {
      for (std::size_t r = 0; r < x.rows.size(); ++r) {
        x.layout.encode_row(team, x.rows[r].where, x.rows[r].slot,
                            [&](std::uint32_t c) { return x.noise(r, c, 6); });
      }
    });
    each_lane([&](auto const& team) {
      each_copy(x, [&](std::size_t to, std::size_t from) {
        x.layout.copy_row(team, x.rows[to].where, x.rows[to].slot, x.rows[from].slot);
      });
    });
    return x.stored(x.rows);
  };
  auto const wanted = play([&](auto step) { step(x.alone()); });
  std::string problem;
  bool met = false;
  for (std::uint32_t lanes : {2u, 3u, 8u, 32u}) {
    for (bool backwards : {false, true}) {
      auto const each_lane = [&](auto step) {
        for (std::uint32_t i = 0; i < lanes; ++i) step(lone_lane(backwards ? lanes - 1 - i : i, lanes, met));
      };
      auto const got = play(each_lane);
      if (!met && problem.empty()) {
        problem =
            x.difference(x.rows, wanted, got, message("encode_row or copy_row differ on ", lanes, " lanes"));
      }
      each_track(x.extent, [&](track t) {
        std::vector<float> one(std::size_t{x.extent.capacity} * x.channels), many = one;
        auto const load = [&](auto const& team, std::vector<float>& out) {
          x.layout.load_tile(team, t, 0, x.extent.capacity, 0, x.channels, out.data(), x.channels);
        };
        load(x.alone(), one);
        each_lane([&](auto const& team) { load(team, many); });
        bool const same = std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0;
        if (!met && problem.empty() && !same) {
          problem = message("load_tile of ", check_calls::track_name(t), " differs on ", lanes, " lanes");
        }
      });
    }
  }
  return met ? std::string() : problem;
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
