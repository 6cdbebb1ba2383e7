// SPDX-License-Identifier: Apache-2.0
// Rows as they are stored: decoded, checked, moved and cleared.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// decode_rows in pieces of 16 bytes. Decodes nothing and returns false unless there are several lanes and
/// all pieces are aligned.
template <class Team, class T>
KVMELD_HD bool decode_pieces(Team const& team, T const* from, std::int64_t stride, std::uint32_t rows,
                             std::uint32_t channels, float* out, std::uint32_t ld) {
  if constexpr (fits_pieces<T>) {
    using piece = row_piece<T>;
    bool const whole = team.lanes() > 1 && channels % piece::size == 0 && ld % 4 == 0 &&
                       stride % piece::size == 0 && is_piece_aligned(from) && is_piece_aligned(out);
    if (!whole) return false;
    std::uint32_t const pieces = channels / piece::size;
    team.for_each(rows * pieces, [&](std::uint32_t i) {
      std::uint32_t const row = i / pieces, channel = i % pieces * piece::size;
      piece const p = load_piece<T>(from + row * stride + channel);
      row_piece<float> x;
      for (std::uint32_t c = 0; c < piece::size; c += row_piece<float>::size) {
        for (std::uint32_t j = 0; j < row_piece<float>::size; ++j) {
          x.x[j] = element_traits<T>::to_float(p.x[c + j]);
        }
        store_piece(out + std::size_t{row} * ld + channel + c, x);
      }
    });
    return true;
  } else {
    return false;
  }
}

}  // namespace detail

/// out[r * ld + c] = from[r * stride + c] as float, for `rows` rows of contiguous channels. `out` overlaps
/// nothing of `from`. Collective; no barrier. All forms give the same bits.
template <class Team, class T>
KVMELD_HD void decode_rows(Team const& team, T const* from, std::int64_t stride, std::uint32_t rows,
                           std::uint32_t channels, float* out, std::uint32_t ld) {
  if (with_kernels(team, [&](auto const& kernels) {
        for (std::uint32_t r = 0; r < rows; ++r)
          kernels.decode(from + std::int64_t{r} * stride, channels, out + std::size_t{r} * ld);
      })) {
    return;
  }
  if (detail::decode_pieces(team, from, stride, rows, channels, out, ld)) return;
  for (std::uint32_t r = 0; r < rows; ++r) {
    T const* const row = from + std::int64_t{r} * stride;
    team.for_each(channels, [&](std::uint32_t c) {
      out[std::size_t{r} * ld + c] = element_traits<T>::to_float(row[c]);
    });
  }
}

/// Whether no element of x[n] is NaN or infinite. Each lane makes a call of its own; no barrier.
template <class Team, class T> KVMELD_HD bool all_finite(Team const& team, T const* x, std::uint32_t n) {
  bool all = true;
  if (with_kernels<T>(team, [&](auto const& kernels) { all = kernels.all_finite(x, n); })) return all;
  std::uint32_t bad = 0;
  for (std::uint32_t i = 0; i < n; ++i) bad |= is_finite(element_traits<T>::to_float(x[i])) ? 0u : 1u;
  return bad == 0;
}

/// Copies a row of bytes that will not be read soon; the rows do not overlap. A tuned form writes past the
/// caches: other threads see the bytes after finish_streams. One lane.
template <class Team> void stream_row(Team const& team, void* to, void const* from, std::size_t bytes) {
  if (with_kernels(team, [&](auto const& kernels) { kernels.stream_row(to, from, bytes); })) return;
  std::memcpy(to, from, bytes);
}
/// Makes what stream_row has written visible to other threads. One lane.
template <class Team> void finish_streams(Team const& team) {
  with_kernels(team, [](auto const& kernels) { kernels.drain(); });
}

/// Zeroes `rows` rows of `bytes` each, `stride` bytes apart. One lane.
template <class Team>
void clear_rows(Team const& team, void* first, std::int64_t stride, std::uint32_t rows, std::size_t bytes) {
  if (with_kernels(team, [&](auto const& kernels) { kernels.clear_rows(first, stride, rows, bytes); }))
    return;
  for (std::uint32_t r = 0; r < rows; ++r) std::memset(static_cast<std::byte*>(first) + r * stride, 0, bytes);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
