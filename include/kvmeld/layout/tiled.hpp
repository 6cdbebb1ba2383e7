// SPDX-License-Identifier: Apache-2.0
// Rows cut into groups of channels that lie apart, for kernels that read 16 bytes of the keys of many tokens
// at a time.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/stored_rows.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Channel c lies in group c / width, at c % width. `Groups` locates groups as other layouts locate channels:
/// its channels() is the number of groups, its channel stride is the distance from one group to the next.
/// Examples:
/// - `tiled(strided<T>(base, {.., slot: 16, channel: T * 16}, s, d / 16), 16)`: [head][d / 16][token][16]
/// - `tiled(paged(pages, P, {.., token: x, channel: P * x}, s, d / x), x)`: vLLM's [block][head][d / x][P][x]
template <class Groups> class tiled {
  static_assert(has_plain_rows<Groups>::value, "kvmeld::tiled: Groups has no plain rows (addressed_rows)");

public:
  using element_type = typename Groups::element_type;
  static constexpr bool always_writable = is_always_writable<Groups>::value;
  static constexpr int channel_run = 1;  ///< in fact `width`, which is only known at run time
  static constexpr int token_run = 1;

  /// Groups of `width` channels.
  tiled(Groups groups, std::uint32_t width) : groups_(groups), width_(width) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    for (std::uint32_t t = 0; t < tokens;) {
      segment<element_type> const s = groups_.locate(where, first + t);
      std::uint32_t const run = min_of(tokens - t, s.remaining);
      if constexpr (may_be_tuned<Team>) {
        if (team.lanes() == 1) {
          for (std::uint32_t row = 0; row < run; ++row)
            decode_row(team, s, row, channel, channels, out + std::size_t{t + row} * ld);
          t += run;
          continue;
        }
      }
      team.for_each(run * channels, [&](std::uint32_t i) {
        std::uint32_t const row = i / channels, c = channel + i % channels;
        out[std::size_t{t + row} * ld + i % channels] =
            element_traits<element_type>::to_float(*at(s, row, c));
      });
      t += run;
    }
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    segment<element_type> const s = groups_.locate(where, slot);
    if (team.lanes() == 1) {  // a single lane need not divide to find its channel
      for (std::uint32_t c = 0; c < channels();) {
        element_type* const group = at(s, 0, c);
        for (std::uint32_t i = 0; i < width_; ++i, ++c)
          group[i] = element_traits<element_type>::from_float(value(c));
      }
      return;
    }
    team.for_each(channels(), [&](std::uint32_t c) {
      *at(s, 0, c) = element_traits<element_type>::from_float(value(c));
    });
  }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    segment<element_type> const to = groups_.locate(where, dst), from = groups_.locate(where, src);
    if constexpr (may_be_tuned<Team> && std::is_trivially_copyable_v<element_type>) {
      if (team.lanes() == 1) {
        for (std::uint32_t g = 0; g < groups_.channels() && dst != src; ++g)
          copy_group(group(to, g), group(from, g));
        return;
      }
    }
    team.for_each(channels(), [&](std::uint32_t c) { *at(to, 0, c) = *at(from, 0, c); });
  }
  KVMELD_HD std::uint32_t channels() const { return groups_.channels() * width_; }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || groups_.writable(where, slot);
  }
  std::string problem(shape const& s) const {
    if (width_ == 0) return refusal("tiled", "width", 0, "at least 1");
    std::uint64_t const whole = std::uint64_t{width_} * groups_.channels();
    if (whole > largest::channels) {
      return refusal("tiled", "width * number of groups", whole, "at most ", largest::channels);
    }
    return layout_problem("tiled: groups", groups_, groups_.channels(), s);
  }
  /// Copies the raw bits of a whole row to contiguous memory. One lane.
  void gather_row(track where, slot_t slot, element_type* out) const {
    segment<element_type> const s = groups_.locate(where, slot);
    for (std::uint32_t g = 0; g < groups_.channels(); ++g)
      copy_group(out + std::size_t{g} * width_, group(s, g));
  }
  /// Copies the raw bits of a whole row from contiguous memory. One lane.
  void scatter_row(track where, slot_t slot, element_type const* row) const {
    segment<element_type> const s = groups_.locate(where, slot);
    for (std::uint32_t g = 0; g < groups_.channels(); ++g)
      copy_group(group(s, g), row + std::size_t{g} * width_);
  }
  /// Hints that a row is read soon.
  template <class Team> void prefetch_row(Team const& team, track where, slot_t slot) const {
    segment<element_type> const s = groups_.locate(where, slot);
    for (std::uint32_t g = 0; g < groups_.channels(); ++g)
      team.prefetch(group(s, g), width_ * sizeof(element_type));
  }
  /// Number of channels of a group.
  KVMELD_HD std::uint32_t width() const { return width_; }
  /// The layout that locates groups.
  KVMELD_HD Groups const& groups() const { return groups_; }

  /// Address of channel c of a row; `s` is the segment that `groups()` located.
  KVMELD_HD element_type* at(segment<element_type> const& s, std::uint32_t row, std::uint32_t c) const {
    return s.base + std::int64_t{row} * s.token_stride + std::int64_t{c / width_} * s.channel_stride +
           c % width_;
  }

private:
  static element_type* group(segment<element_type> const& s, std::uint32_t g) {
    return s.base + std::int64_t{g} * s.channel_stride;
  }
  /// Copies the channels of one group. Mostly these are a few pieces of 16 bytes, too few for a memcpy call.
  void copy_group(element_type* to, element_type const* from) const {
    constexpr std::uint32_t piece = 16 / sizeof(element_type);
    if (width_ % piece != 0) {
      std::memcpy(to, from, width_ * sizeof(element_type));
      return;
    }
    for (std::uint32_t c = 0; c < width_; c += piece) copy_piece(to + c, from + c);
  }
  /// Decodes some channels of a row to floats. Copies them to contiguous memory first.
  template <class Team>
  void decode_row(Team const& team, segment<element_type> const& s, std::uint32_t row, std::uint32_t channel,
                  std::uint32_t channels, float* out) const {
    constexpr std::uint32_t most = 256;
    alignas(64) std::byte memory[most * sizeof(element_type)];
    auto* const side_by_side = reinterpret_cast<element_type*>(memory);
    for (std::uint32_t done = 0; done < channels;) {
      std::uint32_t const part = min_of(most, channels - done);
      for (std::uint32_t i = 0; i < part;) {
        std::uint32_t const c = channel + done + i, n = min_of(part - i, width_ - c % width_);
        std::memcpy(memory + i * sizeof(element_type), at(s, row, c), n * sizeof(element_type));
        i += n;
      }
      decode_rows(team, side_by_side, 0, 1, part, out + done, part);
      done += part;
    }
  }
  Groups groups_;
  std::uint32_t width_;
};

/// Rows of `tiled` can be read in pieces. Pieces move 16 bytes at once if groups are multiples of 16 bytes.
template <class Groups>
struct has_row_pieces<tiled<Groups>, false> : std::bool_constant<fits_pieces<typename Groups::element_type>> {
};

template <class Groups> class row_pieces<tiled<Groups>> {
public:
  using T = typename Groups::element_type;
  using piece = row_piece<T>;

  KVMELD_HD row_pieces(tiled<Groups> const& rows, track where)
      : rows_(rows), where_(where), channels_(rows.channels()) {}

  KVMELD_HD std::uint32_t count() const { return count_of(channels_); }
  KVMELD_HD static constexpr std::uint32_t count_of(std::uint32_t channels) {
    return ceil_div(channels, piece::size);
  }
  KVMELD_HD std::uint32_t width(std::uint32_t index) const {
    return min_of(piece::size, channels_ - index * piece::size);
  }
  /// null: the pieces of a row do not lie one after the other.
  KVMELD_HD T const* row(slot_t) const { return nullptr; }
  KVMELD_HD T const* address(slot_t slot, std::uint32_t index) const {
    T const* const at = rows_.at(rows_.groups().locate(where_, slot), 0, index * piece::size);
    return rows_.width() % piece::size == 0 && is_piece_aligned(at) ? at : nullptr;
  }
  KVMELD_HD piece read(slot_t slot, std::uint32_t index) const {
    if (T const* const at = address(slot, index)) return load_piece<T>(at);
    segment<T> const s = rows_.groups().locate(where_, slot);
    piece p;
    unrolled<piece::size>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      p.x[c] = c < width(index) ? *rows_.at(s, 0, index * piece::size + c) : T{};
    });
    return p;
  }
  KVMELD_HD void write(slot_t slot, std::uint32_t index, piece const& p) const {
    if (T const* const at = address(slot, index)) return store_piece(const_cast<T*>(at), p);
    segment<T> const s = rows_.groups().locate(where_, slot);
    unrolled<piece::size>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      if (c < width(index)) *rows_.at(s, 0, index * piece::size + c) = p.x[c];
    });
  }

private:
  tiled<Groups> const& rows_;
  track where_;
  std::uint32_t channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
