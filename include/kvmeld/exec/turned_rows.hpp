// SPDX-License-Identifier: Apache-2.0
// Rotates pairs of channels of rows, by an angle that grows with a row's position.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/team.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// A rotation in double.
struct rotation {
  double cosine, sine;
  /// This rotation and another one.
  KVMELD_HD rotation then(rotation const& b) const {
    return {cosine * b.cosine - sine * b.sine, cosine * b.sine + sine * b.cosine};
  }
};

/// The rotation by a number of turns, within 1e-15 of what the number says: power series of the angle to the
/// nearest quarter of a turn.
KVMELD_HD inline rotation rotation_of(double turns) {
  double const part = turns - std::floor(turns + 0.5), quarters = std::floor(4.0 * part + 0.5);
  double const x = (part - 0.25 * quarters) * 6.28318530717958647693, square = x * x;
  double c = 1.0, s = 1.0;
  for (int n = 16; n > 0; n -= 2) {
    c = 1.0 - square * c * (1.0 / (n * (n - 1)));
    s = 1.0 - square * s * (1.0 / (n * (n + 1)));
  }
  s *= x;
  switch (static_cast<int>(quarters) & 3) {
  case 0: return {c, s};
  case 1: return {-s, c};
  case 2: return {-c, -s};
  default: return {s, -c};
  }
}

/// turn_rows on the host, with `kernels`.
template <class Kernels, class At>
void turn_rows_tuned(Kernels const& kernels, double const* turns, std::uint32_t pairs, std::uint32_t apart,
                     float* rows, std::uint32_t count, std::uint32_t dim, At at) {
  constexpr std::uint32_t most = Kernels::most_turned;
  for (std::uint32_t i = 0, end = 0; i < count; i = end) {
    // Rows up to `end` step alike.
    std::int64_t const step = i + 1 < count ? std::int64_t{at(i + 1)} - at(i) : 0;
    end = i + 1;
    if (step == 1 || step == -1) {
      while (end < count && std::int64_t{at(end)} - at(end - 1) == step) ++end;
    }
    int const by = end - i > 1 ? static_cast<int>(step) : 0;
    for (std::uint32_t p = 0; p < pairs; p += most) {
      kernels.turn_run(rows + std::size_t{i} * dim + (apart == 1 ? 2 * p : p), end - i, dim,
                       min_of(most, pairs - p), apart, turns + p, at(i), by);
    }
  }
}

}  // namespace detail

/// Rotates pair p of row i of rows[count][dim] by at(i) * turns[p] turns, for `pairs` pairs. The second
/// channel of a pair is `apart` behind the first, and first channels follow one another; with 1 pairs lie
/// side by side. Where positions follow one another, up or down, the factors of a pair step from row to row
/// in double, so that few sines are computed. Collective, no barrier.
template <class Team, class At>
KVMELD_HD void turn_rows(Team const& team, double const* turns, std::uint32_t pairs, std::uint32_t apart,
                         float* rows, std::uint32_t count, std::uint32_t dim, At at) {
  if (with_kernels(team, [&](auto const& kernels) {
        detail::turn_rows_tuned(kernels, turns, pairs, apart, rows, count, dim, at);
      }))
    return;
  team.for_each(pairs, [&](std::uint32_t p) {
    detail::rotation const one = detail::rotation_of(turns[p]);
    detail::rotation now{};
    std::int64_t before = 0;  // the step to the row before
    for (std::uint32_t i = 0; i < count; ++i) {
      std::int64_t const step = i == 0 ? 0 : std::int64_t{at(i)} - at(i - 1);
      bool const goes_on = before == 0 || before == step;  // a turn of direction starts anew
      before = goes_on && (step == 1 || step == -1) ? step : 0;
      now = before == 0 ? detail::rotation_of(at(i) * turns[p])
                        : now.then({one.cosine, before < 0 ? -one.sine : one.sine});
      float const c = static_cast<float>(now.cosine), s = static_cast<float>(now.sine);
      float* const first = rows + std::size_t{i} * dim + (apart == 1 ? 2 * p : p);
      float const x = first[0], y = first[apart];
      first[0] = x * c - y * s;
      first[apart] = x * s + y * c;
    }
  });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
