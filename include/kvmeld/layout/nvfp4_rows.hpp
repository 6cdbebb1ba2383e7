// SPDX-License-Identifier: Apache-2.0
// nvfp4: 4-bit floats with a scale for each 16 channels and one of the tensor.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/coded_rows.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// E2M1, OCP's 4-bit float: sign, two bits of exponent, one of mantissa. Numbers are 0, 0.5, 1, 1.5, 2, 3,
/// 4, 6.
KVMELD_HD inline float e2m1_number(std::uint32_t code) {
  std::uint32_t const exponent = code >> 1 & 3u, mantissa = code & 1u;
  float const size = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                   : (1.0f + 0.5f * static_cast<float>(mantissa)) *
                                         static_cast<float>(1u << (exponent - 1u));
  return (code & 8u) != 0 ? -size : size;
}
/// Rounds to nearest even and saturates; 0 for NaN and infinities.
KVMELD_HD inline std::uint32_t e2m1_code(float x) {
  if (!is_finite(x)) return 0;
  float const size = magnitude(x);
  std::uint32_t const sign = x < 0.0f ? 8u : 0u;
  // Halfway between two numbers the one with an even code is taken.
  std::uint32_t const below = (size > 0.25f ? 1u : 0u) + (size >= 0.75f ? 1u : 0u) +
                              (size > 1.25f ? 1u : 0u) + (size >= 1.75f ? 1u : 0u) + (size > 2.5f ? 1u : 0u) +
                              (size >= 3.5f ? 1u : 0u) + (size > 5.0f ? 1u : 0u);
  return below == 0 ? 0u : sign | below;
}

}  // namespace detail

/// nvfp4: x = scale of the tensor * scale of the block * code, with codes in E2M1 (neighbours in a byte) and
/// a scale in E4M3 for 16 channels. `Scales` is a layout of fp8_e4m3 with plain rows and a channel per block.
/// The largest number of a block becomes 6, the largest code. If it lies from 0.1 to 2688 times the scale of
/// the tensor, the numbers of its block change by at most 0.18 of it. Scales of smaller blocks are coarser,
/// and those below 0.006 become zeros; larger numbers saturate. NaN and infinities are stored as 0.
template <class Codes, class Scales> class nvfp4_rows : public detail::packed_rows<Codes, Scales> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes, Scales>;
  static_assert(std::is_same_v<typename Scales::element_type, fp8_e4m3>,
                "kvmeld::nvfp4_rows: scales are fp8_e4m3");
  static_assert(has_plain_rows<Scales>::value, "kvmeld::nvfp4_rows: scales have plain rows (addressed_rows)");
  static constexpr std::uint32_t block_channels = 16;  ///< channels that share a scale

  /// Codes and their scales, both over the same shape. `scale`, that of the tensor, must be above 0.
  nvfp4_rows(Codes codes, Scales scales, float scale = 1.0f)
      : base(codes, scales, code_order::neighbours), scale_(scale) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    this->load_packed(team, where, first, tokens, channel, channels, out, ld,
                      [&](std::uint32_t code, slot_t slot, std::uint32_t c) {
                        return step(*scale_of(where, slot, c / block_channels)) * detail::e2m1_number(code);
                      });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    auto const fit = [&](std::uint32_t block) {
      float most = 0.0f;
      for (std::uint32_t c = block * block_channels; c < (block + 1) * block_channels; ++c) {
        float const x = value(c);
        if (is_finite(x)) most = max_of(most, detail::magnitude(x));
      }
      return traits::from_float(most / (6.0f * scale_));
    };
    // Every lane fits the blocks of its codes, so that no barrier is needed, and keeps the latest.
    std::uint32_t latest = 0xffffffffu;
    float size = 0.0f;
    this->store_packed(team, where, slot, [&](std::uint32_t c, std::uint32_t) {
      if (latest != c / block_channels) {
        latest = c / block_channels;
        size = step(fit(latest));
      }
      return detail::e2m1_code(size > 0.0f ? value(c) / size : 0.0f);
    });
    team.for_each(this->beside.channels(),
                  [&](std::uint32_t block) { *scale_of(where, slot, block) = fit(block); });
  }
  std::string problem(shape const& s) const {
    if (!(scale_ > 0.0f) || !is_finite(scale_)) {
      return refusal("nvfp4_rows", "scale", scale_, "a finite number above 0");
    }
    std::string const problem = layout_problem("nvfp4_rows: codes", this->stored, this->stored.channels(), s);
    if (!problem.empty()) return problem;
    if (this->channels() % block_channels != 0) {
      return refusal("nvfp4_rows", "number of channels", this->channels(), "a multiple of ", block_channels,
                     ", the channels of a block");
    }
    if (this->channels() != this->beside.channels() * block_channels) {
      return refusal("nvfp4_rows", "number of channels of the scales", this->beside.channels(),
                     "a sixteenth of ", this->channels(), ", the number of channels");
    }
    return layout_problem("nvfp4_rows: scales", this->beside, this->beside.channels(), s);
  }

private:
  using traits = element_traits<fp8_e4m3>;
  KVMELD_HD float step(fp8_e4m3 of_block) const { return scale_ * traits::to_float(of_block); }
  KVMELD_HD fp8_e4m3* scale_of(track where, slot_t slot, std::uint32_t block) const {
    segment<fp8_e4m3> const row = this->beside.locate(where, slot);
    return row.base + std::int64_t{block} * row.channel_stride;
  }
  float scale_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
