// SPDX-License-Identifier: Apache-2.0
// 8-bit rows: floats with a scale of the tensor, integers with a scale of each row.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/coded_rows.hpp>
#include <kvmeld/layout/copy_across.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
/// x = scale * code, with one scale for the whole tensor: vLLM's and TensorRT-LLM's fp8 with k_scale or
/// v_scale. Codes saturate (core/fp8.hpp). `saturated`, if given, counts the codes that do. It must lie in
/// memory that phases can write.
template <class Codes> class scaled : public detail::coded_rows<Codes> {
public:
  /// The base of all layouts of codes.
  using base = detail::coded_rows<Codes>;
  using typename base::element_type;
  /// How codes convert to float and back.
  using traits = element_traits<element_type>;

  /// `scale` must be above 0.
  scaled(Codes codes, float scale, std::uint32_t* saturated = nullptr)
      : base{codes}, scale_(scale), inverse_(1.0f / scale), saturated_(saturated) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    this->load_codes(team, where, first, tokens, channel, channels, out, ld,
                     [&](element_type code, slot_t) { return scale_ * traits::to_float(code); });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    segment<element_type> const s = this->stored.locate(where, slot);
    team.for_each(this->channels(), [&](std::uint32_t c) {
      float const x = value(c) * inverse_;
      if (saturated_ != nullptr && is_finite(x) && detail::magnitude(x) > -traits::lowest) {
        team.fetch_add(saturated_, 1);
      }
      s.base[std::int64_t{c} * s.channel_stride] = traits::from_float(x);
    });
  }
  /// What codes are multiplied by.
  KVMELD_HD float scale() const { return scale_; }
  std::string problem(shape const& s) const {
    if (!(scale_ > 0.0f) || !is_finite(scale_)) {
      return refusal("scaled", "scale", scale_, "a finite number above 0");
    }
    return layout_problem("scaled: codes", this->stored, this->channels(), s);
  }

private:
  float scale_, inverse_;
  std::uint32_t* saturated_;
};

/// x = scale of the row * code, with int8 codes in [-127, 127]. `Scales` is a layout with one channel, of any
/// element type. A row is quantised as a whole: its largest magnitude becomes 127.
template <class Codes, class Scales> class int8_rows : public detail::coded_rows<Codes> {
public:
  /// The base of all layouts of codes.
  using base = detail::coded_rows<Codes>;
  static_assert(std::is_same_v<typename Codes::element_type, std::int8_t>,
                "kvmeld::int8_rows: codes are std::int8_t");
  static_assert(has_plain_rows<Scales>::value, "kvmeld::int8_rows: scales have plain rows (addressed_rows)");
  /// How scales convert to float and back.
  using scale_traits = element_traits<typename Scales::element_type>;

  /// Codes and their scales, both over the same shape.
  int8_rows(Codes codes, Scales scales) : base{codes}, scales_(scales) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    this->load_codes(
        team, where, first, tokens, channel, channels, out, ld,
        [&](std::int8_t code, slot_t slot) { return scale(where, slot) * static_cast<float>(code); });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    float most = 0.0f;  // every lane reads the whole row, so that no barrier is needed
    for (std::uint32_t c = 0; c < this->channels(); ++c) most = max_of(most, detail::magnitude(value(c)));
    // The codes use the scale as it is stored.
    auto const rounded = scale_traits::from_float(most / 127.0f);
    float const scale = scale_traits::to_float(rounded), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    segment<std::int8_t> const s = this->stored.locate(where, slot);
    team.for_each(this->channels(), [&](std::uint32_t c) {
      s.base[std::int64_t{c} * s.channel_stride] = detail::int8_code(value(c) * inverse);
    });
    if (team.lane() == 0) *scales_.locate(where, slot).base = rounded;
  }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    base::copy_row(team, where, dst, src);
    if (team.lane() == 0) *scales_.locate(where, dst).base = *scales_.locate(where, src).base;
  }
  std::string problem(shape const& s) const {
    std::string const problem = layout_problem("int8_rows: codes", this->stored, this->channels(), s);
    if (!problem.empty()) return problem;
    if (scales_.channels() != 1) {
      return refusal("int8_rows", "number of channels of the scales", scales_.channels(),
                     "1, a scale per row");
    }
    return layout_problem("int8_rows: scales", scales_, 1, s);
  }

private:
  KVMELD_HD float scale(track where, slot_t slot) const {
    return scale_traits::to_float(*scales_.locate(where, slot).base);
  }
  Scales scales_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
