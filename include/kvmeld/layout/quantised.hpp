// Rows stored as codes with scales that lie in other memory: one for the tensor (8-bit floats), one per row
// (int8), a scale and a zero per group of channels (8 and 4 bits), one per 16 channels (nvfp4).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/copy_across.hpp>
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

/// Where the codes of a row lie in its bytes.
enum class code_order {
  bytes,      ///< a byte per code: 8 bits
  halves,     ///< 4 bits per code: byte i has channel i below channel i + channels / 2
  neighbours  ///< 4 bits per code: byte i has channel 2 i below channel 2 i + 1
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
  /// The channel of a byte's code: its only one (0), or the one in its lower (0) or upper (1) four bits.
  KVMELD_HD std::uint32_t channel_of(std::uint32_t byte, std::uint32_t nibble) const {
    if (order == code_order::halves) return byte + nibble * this->stored.channels();
    return byte * codes_in_byte() + nibble;
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
  /// Stores encode(channel, nibble) of every channel; the nibble is as in channel_of. Each byte is written by
  /// one lane.
  template <class Team, class Encode>
  KVMELD_HD void store_packed(Team const& team, track where, slot_t slot, Encode encode) const {
    segment<std::uint8_t> const row = this->stored.locate(where, slot);
    team.for_each(this->stored.channels(), [&](std::uint32_t byte) {
      std::uint32_t code = encode(channel_of(byte, 0), 0u);
      if (codes_in_byte() == 2) code |= encode(channel_of(byte, 1), 1u) << 4;
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

/// x = scale * (code - zero), with codes of 8 or 4 bits and a scale and a zero for each group of channels:
/// the int8 and int4 rows of LMDeploy's PyTorch engine, whose group is the row. `Parameters` is a layout of
/// any float type with plain rows and two channels per group: scale, zero. Groups have equally many channels.
/// A group is quantised as a whole: its smallest number becomes code 0 and its largest the largest code.
/// Numbers change by at most half a scale, and by the rounding of the scale and of the zero in their type, in
/// all by 2^-10 of the group's largest magnitude for binary16. NaN and infinities are stored as the number
/// nearest to 0.
template <class Codes, class Parameters> class zero_point_rows : public detail::packed_rows<Codes> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes>;
  static_assert(has_plain_rows<Parameters>::value,
                "kvmeld::zero_point_rows: parameters have plain rows (addressed_rows)");
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
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    base::copy_row(team, where, dst, src);
    parameters_.copy_row(team, where, dst, src);
  }
  template <class Team>
  KVMELD_HD void copy_row_across(Team const& team, track to, track from, slot_t slot) const {
    kvmeld::copy_row_across(team, this->stored, to, from, slot, nullptr);
    kvmeld::copy_row_across(team, parameters_, to, from, slot, nullptr);
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
/// a scale in E4M3 for 16 channels. `Scales` is a layout of fp8_e4m3 with plain rows and a channel per block.
/// The largest number of a block becomes 6, the largest code. If it lies from 0.1 to 2688 times the scale of
/// the tensor, the numbers of its block change by at most 0.18 of it. Scales of smaller blocks are coarser,
/// and those below 0.006 become zeros; larger numbers saturate. NaN and infinities are stored as 0.
template <class Codes, class Scales> class nvfp4_rows : public detail::packed_rows<Codes> {
public:
  /// The base of all layouts of packed codes.
  using base = detail::packed_rows<Codes>;
  static_assert(std::is_same_v<typename Scales::element_type, fp8_e4m3>,
                "kvmeld::nvfp4_rows: scales are fp8_e4m3");
  static_assert(has_plain_rows<Scales>::value, "kvmeld::nvfp4_rows: scales have plain rows (addressed_rows)");
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
    team.for_each(scales_.channels(),
                  [&](std::uint32_t block) { *scale_of(where, slot, block) = fit(block); });
  }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    base::copy_row(team, where, dst, src);
    scales_.copy_row(team, where, dst, src);
  }
  template <class Team>
  KVMELD_HD void copy_row_across(Team const& team, track to, track from, slot_t slot) const {
    kvmeld::copy_row_across(team, this->stored, to, from, slot, nullptr);
    kvmeld::copy_row_across(team, scales_, to, from, slot, nullptr);
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
