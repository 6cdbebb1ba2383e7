// SPDX-License-Identifier: Apache-2.0
// Rows of 8 or 4 bits with a scale and a zero for each group of channels.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/coded_rows.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// x = scale * (code - zero), with codes of 8 or 4 bits and a scale and a zero for each group of channels:
/// the int8 and int4 rows of LMDeploy's PyTorch engine, whose group is the row. `Parameters` is a layout of
/// any float type with plain rows and two channels per group: scale, zero. Groups have equally many channels.
/// A group is quantised as a whole: its smallest number becomes code 0 and its largest the largest code.
/// Numbers change by at most half a scale, and by the rounding of the scale and of the zero in their type, in
/// all by 2^-10 of the group's largest magnitude for binary16. NaN and infinities are stored as the number
/// nearest to 0.
template <class Codes, class Parameters>
class zero_point_rows : public detail::packed_rows<Codes, Parameters> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes, Parameters>;
  static_assert(has_plain_rows<Parameters>::value,
                "kvmeld::zero_point_rows: parameters have plain rows (addressed_rows)");
  /// How scales and zeros convert to float and back.
  using parameter_traits = element_traits<typename Parameters::element_type>;

  /// Codes and their parameters, both over the same shape.
  zero_point_rows(Codes codes, Parameters parameters, code_order how = code_order::bytes)
      : base(codes, parameters, how) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    std::uint32_t const width = group_channels();
    this->load_packed(team, where, first, tokens, channel, channels, out, ld,
                      [&](std::uint32_t code, slot_t slot, std::uint32_t c) {
                        auto const* const pair = parameters_of(where, slot, c / width);
                        return parameter_traits::to_float(*pair) *
                               (static_cast<float>(code) -
                                parameter_traits::to_float(pair[zero_stride(where, slot)]));
                      });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    std::uint32_t const width = group_channels();
    // Every lane fits the groups of its codes, so that no barrier is needed, and keeps the latest per nibble.
    fitted latest[2];
    this->store_packed(team, where, slot, [&](std::uint32_t c, std::uint32_t nibble) {
      if (latest[nibble].group != c / width) latest[nibble] = fit(c / width, value);
      return latest[nibble].code_of(value(c));
    });
    team.for_each(groups(), [&](std::uint32_t group) {
      fitted const f = fit(group, value);
      auto* const pair = parameters_of(where, slot, group);
      *pair = f.scale;
      pair[zero_stride(where, slot)] = f.zero;
    });
  }
  std::string problem(shape const& s) const {
    std::string const problem =
        layout_problem("zero_point_rows: codes", this->stored, this->stored.channels(), s);
    if (!problem.empty()) return problem;
    if (this->beside.channels() == 0 || this->beside.channels() % 2 != 0) {
      return refusal("zero_point_rows", "number of channels of the parameters", this->beside.channels(),
                     "a multiple of 2 and above 0: a scale and a zero per group");
    }
    if (this->channels() % groups() != 0) {
      return refusal("zero_point_rows", "number of groups", groups(), "a divisor of ", this->channels(),
                     ", the number of channels");
    }
    return layout_problem("zero_point_rows: parameters", this->beside, this->beside.channels(), s);
  }

private:
  /// Scale and zero of a group, as they are stored.
  struct fitted {
    typename Parameters::element_type scale, zero;
    float step, middle, most;
    std::uint32_t group = 0xffffffffu;

    KVMELD_HD std::uint32_t code_of(float x) const {
      float const code = (is_finite(x) ? x : 0.0f) / step + middle + 0.5f;
      return !(code > 0.0f) ? 0u
             : code >= most ? static_cast<std::uint32_t>(most)
                            : static_cast<std::uint32_t>(code);
    }
  };
  template <class F> KVMELD_HD fitted fit(std::uint32_t group, F const& value) const {
    float low = 0.0f, high = 0.0f;
    bool any = false;
    for (std::uint32_t c = group * group_channels(); c < (group + 1) * group_channels(); ++c) {
      float const x = value(c);
      if (!is_finite(x)) continue;
      low = any ? min_of(low, x) : x;
      high = any ? max_of(high, x) : x;
      any = true;
    }
    // The zero is -low / scale, which has to be a number of its type too.
    constexpr float largest = -parameter_traits::lowest;
    fitted f;
    f.group = group;
    f.most = this->order == code_order::bytes ? 255.0f : 15.0f;
    float const wanted = high > low ? high / f.most - low / f.most : 1.0f;
    f.scale = parameter_traits::from_float(
        min_of(max_of(wanted, detail::magnitude(low) / largest * 1.01f), largest));
    if (!(parameter_traits::to_float(f.scale) > 0.0f)) f.scale = parameter_traits::from_float(1.0f);
    f.step = parameter_traits::to_float(f.scale);
    f.zero = parameter_traits::from_float(max_of(-largest, min_of(-low / f.step, largest)));
    f.middle = parameter_traits::to_float(f.zero);
    return f;
  }
  KVMELD_HD std::uint32_t groups() const { return this->beside.channels() / 2; }
  KVMELD_HD std::uint32_t group_channels() const { return this->channels() / groups(); }
  KVMELD_HD std::int64_t zero_stride(track where, slot_t slot) const {
    return this->beside.locate(where, slot).channel_stride;
  }
  KVMELD_HD auto* parameters_of(track where, slot_t slot, std::uint32_t group) const {
    auto const row = this->beside.locate(where, slot);
    return row.base + std::int64_t{2 * group} * row.channel_stride;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
