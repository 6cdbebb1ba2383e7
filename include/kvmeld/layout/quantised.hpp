// Rows stored as codes with scales that lie in other memory: one for the tensor (8-bit floats), one per row
// (int8), a scale and a zero per group of channels (8 and 4 bits), one per 16 channels (nvfp4).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Base of the layouts that store numbers as codes. `Codes`, a layout with plain rows, locates the codes.
template <class Codes> struct coded_rows {
  using element_type = typename Codes::element_type;
  static_assert(has_plain_rows<Codes>::value,
                "kvmeld: a quantised layout wants codes with plain rows (addressed_rows)");
  static constexpr bool always_writable = is_always_writable<Codes>::value;
  static constexpr int channel_run = Codes::channel_run;
  static constexpr int token_run = 1;
  Codes stored;

  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || stored.writable(where, slot);
  }
  KVMELD_HD std::uint32_t channels() const { return stored.channels(); }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    stored.copy_row(team, where, dst, src);
  }

protected:
  /// Loads a tile of decode(code, slot). Cooperative; no barrier at the end.
  template <class Team, class Decode>
  KVMELD_HD void load_codes(Team const& team, track where, slot_t first, std::uint32_t tokens,
                            std::uint32_t channel, std::uint32_t channels, float* out, std::uint32_t ld,
                            Decode decode) const {
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::uint32_t const t = i / channels, c = i % channels;
      segment<element_type> const s = stored.locate(where, first + t);
      out[std::size_t{t} * ld + c] = decode(s.base[std::int64_t{channel + c} * s.channel_stride], first + t);
    });
  }
};

KVMELD_HD inline float magnitude(float x) { return bits_float(float_bits(x) & 0x7fffffffu); }

/// x rounded to a code of [-127, 127], away from zero at halves; 0 for NaN and infinities.
KVMELD_HD inline std::int8_t int8_code(float x) {
  if (!is_finite(x)) return 0;
  float const most = x < -127.0f ? -127.0f : x > 127.0f ? 127.0f : x;
  return static_cast<std::int8_t>(most < 0.0f ? most - 0.5f : most + 0.5f);
}

}  // namespace detail

/// x = scale * code, with one scale for the whole tensor: vLLM's and TensorRT-LLM's fp8 with k_scale or
/// v_scale. Codes saturate (core/fp8.hpp). If `saturated` is given, it counts the codes that did. It lies in
/// memory that phases can write.
template <class Codes> class scaled : public detail::coded_rows<Codes> {
public:
  /// The base of all layouts of codes.
  using base = detail::coded_rows<Codes>;
  using typename base::element_type;
  /// How codes convert to float and back.
  using traits = element_traits<element_type>;

  /// `scale` is above 0.
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

/// Where the codes of a row lie in its bytes.
enum class code_order {
  bytes,      ///< a byte per code: 8 bits
  halves,     ///< 4 bits per code: byte i has channel i in its low half, channel i + channels / 2 in its high
              ///< half
  neighbours  ///< 4 bits per code: byte i has channel 2 i in its low half, channel 2 i + 1 in its high half
};

namespace detail {

/// Base of the layouts of which a byte may hold two codes.
template <class Bytes> struct packed_rows : coded_rows<Bytes> {
  static_assert(std::is_same_v<typename Bytes::element_type, std::uint8_t>,
                "kvmeld: the bytes of a quantised row are std::uint8_t");
  code_order order;

  packed_rows(Bytes bytes, code_order how) : coded_rows<Bytes>{bytes}, order(how) {}

  KVMELD_HD std::uint32_t channels() const { return this->stored.channels() * codes_in_byte(); }

protected:
  KVMELD_HD std::uint32_t codes_in_byte() const { return order == code_order::bytes ? 1 : 2; }
  /// The channel of a byte's code: its only one, or the one in its low (0) or high (1) half.
  KVMELD_HD std::uint32_t channel_of(std::uint32_t byte, std::uint32_t half) const {
    if (order == code_order::halves) return byte + half * this->stored.channels();
    return byte * codes_in_byte() + half;
  }
  /// Loads a tile of decode(code, slot, channel). Cooperative; no barrier at the end.
  template <class Team, class Decode>
  KVMELD_HD void load_packed(Team const& team, track where, slot_t first, std::uint32_t tokens,
                             std::uint32_t channel, std::uint32_t channels, float* out, std::uint32_t ld,
                             Decode decode) const {
    std::uint32_t const bytes = this->stored.channels();
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::uint32_t const t = i / channels, c = channel + i % channels;
      segment<std::uint8_t> const row = this->stored.locate(where, first + t);
      bool const high =
          order == code_order::halves ? c >= bytes : order == code_order::neighbours && c % 2 != 0;
      std::uint32_t const byte = order == code_order::halves ? c - (high ? bytes : 0) : c / codes_in_byte();
      std::uint8_t const both = row.base[std::int64_t{byte} * row.channel_stride];
      std::uint32_t const code = order == code_order::bytes ? both : high ? both >> 4 : both & 15u;
      out[std::size_t{t} * ld + i % channels] = decode(code, first + t, c);
    });
  }
  /// Stores encode(channel) of every channel. Each byte is written by one lane.
  template <class Team, class Encode>
  KVMELD_HD void store_packed(Team const& team, track where, slot_t slot, Encode encode) const {
    segment<std::uint8_t> const row = this->stored.locate(where, slot);
    team.for_each(this->stored.channels(), [&](std::uint32_t byte) {
      std::uint32_t code = encode(channel_of(byte, 0));
      if (codes_in_byte() == 2) code |= encode(channel_of(byte, 1)) << 4;
      row.base[std::int64_t{byte} * row.channel_stride] = static_cast<std::uint8_t>(code);
    });
  }
};

/// E2M1, OCP's 4-bit float: sign, two bits of exponent, one of mantissa. Numbers are 0, 0.5, 1, 1.5, 2, 3,
/// 4, 6.
KVMELD_HD inline float e2m1_number(std::uint32_t code) {
  std::uint32_t const exponent = code >> 1 & 3u, mantissa = code & 1u;
  float const size = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                   : (1.0f + 0.5f * static_cast<float>(mantissa)) *
                                         static_cast<float>(1u << (exponent - 1u));
  return (code & 8u) != 0 ? -size : size;
}
/// Rounds to nearest even and saturates; 0 for NaN.
KVMELD_HD inline std::uint32_t e2m1_code(float x) {
  float const size = magnitude(x);
  std::uint32_t const sign = x < 0.0f ? 8u : 0u;
  // Halfway between two numbers the one with an even code is taken.
  std::uint32_t const below = (size > 0.25f ? 1u : 0u) + (size >= 0.75f ? 1u : 0u) +
                              (size > 1.25f ? 1u : 0u) + (size >= 1.75f ? 1u : 0u) + (size > 2.5f ? 1u : 0u) +
                              (size >= 3.5f ? 1u : 0u) + (size > 5.0f ? 1u : 0u);
  return below == 0 ? 0u : sign | below;
}

}  // namespace detail

/// x = scale * (code - zero), with codes of 8 or 4 bits and a scale and a zero for each group of channels:
/// the int8 and int4 rows of LMDeploy's PyTorch engine (one group per row), and values in groups as in KIVI
/// (Liu et al., 2024). `Parameters` is a layout of any float type with two channels per group: scale, zero.
/// Groups have equally many channels. A group is quantised as a whole: its smallest number becomes code 0 and
/// its largest the largest code. Numbers change by at most half a scale, and by the rounding of the zero
/// times the scale: a float type with few bits is coarse for groups far from 0. (KIVI's keys are grouped
/// along tokens. A row of these cannot be written alone, so they have no layout.)
template <class Codes, class Parameters> class zero_point_rows : public detail::packed_rows<Codes> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes>;
  /// How scales and zeros convert to float and back.
  using parameter_traits = element_traits<typename Parameters::element_type>;

  /// Codes and their parameters, both over the same shape.
  zero_point_rows(Codes codes, Parameters parameters, code_order how = code_order::bytes)
      : base(codes, how), parameters_(parameters) {}

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
    float const most = this->order == code_order::bytes ? 255.0f : 15.0f;
    // Every lane reads the groups of its codes, so that no barrier is needed.
    auto const fit = [&](std::uint32_t group) {
      float low = value(group * width), high = low;
      for (std::uint32_t c = group * width + 1; c < (group + 1) * width; ++c) {
        low = min_of(low, value(c));
        high = max_of(high, value(c));
      }
      stored_pair out;
      out.scale = parameter_traits::from_float(high > low ? (high - low) / most : 1.0f);
      float const scale = parameter_traits::to_float(out.scale);
      out.zero = parameter_traits::from_float(scale > 0.0f ? -low / scale : 0.0f);
      return out;
    };
    this->store_packed(team, where, slot, [&](std::uint32_t c) -> std::uint32_t {
      stored_pair const p = fit(c / width);
      float const scale = parameter_traits::to_float(p.scale);
      float const code = scale > 0.0f ? value(c) / scale + parameter_traits::to_float(p.zero) + 0.5f : 0.0f;
      return !(code > 0.0f) ? 0u
             : code >= most ? static_cast<std::uint32_t>(most)
                            : static_cast<std::uint32_t>(code);
    });
    team.for_each(groups(), [&](std::uint32_t group) {
      stored_pair const p = fit(group);
      auto* const pair = parameters_of(where, slot, group);
      *pair = p.scale;
      pair[zero_stride(where, slot)] = p.zero;
    });
  }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    base::copy_row(team, where, dst, src);
    parameters_.copy_row(team, where, dst, src);
  }
  std::string problem(shape const& s) const {
    std::string const problem =
        layout_problem("zero_point_rows: codes", this->stored, this->stored.channels(), s);
    if (!problem.empty()) return problem;
    if (parameters_.channels() == 0 || parameters_.channels() % 2 != 0) {
      return refusal("zero_point_rows", "number of channels of the parameters", parameters_.channels(),
                     "a multiple of 2 and above 0: a scale and a zero per group");
    }
    if (this->channels() % groups() != 0) {
      return refusal("zero_point_rows", "number of groups", groups(), "a divisor of ", this->channels(),
                     ", the number of channels");
    }
    return layout_problem("zero_point_rows: parameters", parameters_, parameters_.channels(), s);
  }

private:
  struct stored_pair {
    typename Parameters::element_type scale, zero;
  };
  KVMELD_HD std::uint32_t groups() const { return parameters_.channels() / 2; }
  KVMELD_HD std::uint32_t group_channels() const { return this->channels() / groups(); }
  KVMELD_HD std::int64_t zero_stride(track where, slot_t slot) const {
    return parameters_.locate(where, slot).channel_stride;
  }
  KVMELD_HD auto* parameters_of(track where, slot_t slot, std::uint32_t group) const {
    auto const row = parameters_.locate(where, slot);
    return row.base + std::int64_t{2 * group} * row.channel_stride;
  }
  Parameters parameters_;
};

/// nvfp4: x = scale of the tensor * scale of the block * code, with codes in E2M1 (neighbours in a byte) and
/// a scale in E4M3 for 16 channels. `Scales` is a layout of fp8_e4m3 with a channel per block. The largest
/// number of a block becomes 6, the largest code. Numbers change by at most a sixth of the largest in their
/// block, plus the rounding of its scale (a sixteenth).
template <class Codes, class Scales> class nvfp4_rows : public detail::packed_rows<Codes> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes>;
  static_assert(std::is_same_v<typename Scales::element_type, fp8_e4m3>,
                "kvmeld::nvfp4_rows: scales are fp8_e4m3");
  static constexpr std::uint32_t block_channels = 16;  ///< channels that share a scale

  /// Codes and their scales, both over the same shape. `scale`, of the tensor, is above 0.
  nvfp4_rows(Codes codes, Scales scales, float scale = 1.0f)
      : base(codes, code_order::neighbours), scales_(scales), scale_(scale) {}

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
    // Every lane reads the blocks of its codes, so that no barrier is needed.
    auto const fit = [&](std::uint32_t block) {
      float most = 0.0f;
      for (std::uint32_t c = 0; c < block_channels; ++c)
        most = max_of(most, detail::magnitude(value(block * block_channels + c)));
      return traits::from_float(most / (6.0f * scale_));
    };
    this->store_packed(team, where, slot, [&](std::uint32_t c) {
      float const size = step(fit(c / block_channels));
      return detail::e2m1_code(size > 0.0f ? value(c) / size : 0.0f);
    });
    team.for_each(scales_.channels(),
                  [&](std::uint32_t block) { *scale_of(where, slot, block) = fit(block); });
  }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    base::copy_row(team, where, dst, src);
    scales_.copy_row(team, where, dst, src);
  }
  std::string problem(shape const& s) const {
    if (!(scale_ > 0.0f) || !is_finite(scale_)) {
      return refusal("nvfp4_rows", "scale", scale_, "a finite number above 0");
    }
    std::string const problem = layout_problem("nvfp4_rows: codes", this->stored, this->stored.channels(), s);
    if (!problem.empty()) return problem;
    if (this->channels() != scales_.channels() * block_channels) {
      return refusal("nvfp4_rows", "number of channels of the scales", scales_.channels(), "a sixteenth of ",
                     this->channels(), ", the number of channels");
    }
    return layout_problem("nvfp4_rows: scales", scales_, scales_.channels(), s);
  }

private:
  using traits = element_traits<fp8_e4m3>;
  KVMELD_HD float step(fp8_e4m3 of_block) const { return scale_ * traits::to_float(of_block); }
  KVMELD_HD fp8_e4m3* scale_of(track where, slot_t slot, std::uint32_t block) const {
    segment<fp8_e4m3> const row = scales_.locate(where, slot);
    return row.base + std::int64_t{block} * row.channel_stride;
  }
  Scales scales_;
  float scale_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
