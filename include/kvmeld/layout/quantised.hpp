// Rows stored with a scale: one for the tensor (8-bit floats), one per row (int8), one per 32 channels
// (ggml's q8_0).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

template <class Layout, class = void> struct shows_strides : std::false_type {};
template <class Layout>
struct shows_strides<Layout, std::void_t<decltype(std::declval<Layout const&>().strides().channel)>>
    : std::true_type {};

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

/// ggml's q8_0: a row consists of blocks of 34 bytes, a binary16 scale and 32 signed bytes. `Bytes` locates
/// rows of std::uint8_t with contiguous channels, 34 of them per block. Rows must not share blocks, so that
/// the number of channels is a multiple of 32.
template <class Bytes> class q8_0_rows : public detail::coded_rows<Bytes> {
public:
  /// The base of all layouts of codes.
  using base = detail::coded_rows<Bytes>;
  static_assert(std::is_same_v<typename Bytes::element_type, std::uint8_t>,
                "kvmeld::q8_0_rows: Bytes are std::uint8_t");
  static constexpr std::uint32_t block_channels = 32, block_bytes = 34;  ///< channels and bytes of a block

  /// `bytes` locates the rows of blocks.
  explicit q8_0_rows(Bytes bytes) : base{bytes} {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::uint32_t const t = i / channels, c = channel + i % channels;
      std::uint8_t const* const block = at(where, first + t, c / block_channels);
      float16 scale;  // blocks may begin at odd addresses
      std::memcpy(&scale, block, sizeof scale);
      auto const code = static_cast<std::int8_t>(block[2 + c % block_channels]);
      out[std::size_t{t} * ld + i % channels] =
          element_traits<float16>::to_float(scale) * static_cast<float>(code);
    });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    team.for_each(channels() / block_channels, [&](std::uint32_t b) {
      std::uint32_t const first = b * block_channels;
      float most = 0.0f;
      for (std::uint32_t c = 0; c < block_channels; ++c)
        most = max_of(most, detail::magnitude(value(first + c)));
      float16 const scale = element_traits<float16>::from_float(most / 127.0f);
      float const step = element_traits<float16>::to_float(scale), inverse = step > 0.0f ? 1.0f / step : 0.0f;
      std::uint8_t* const block = at(where, slot, b);
      std::memcpy(block, &scale, sizeof scale);
      for (std::uint32_t c = 0; c < block_channels; ++c) {
        std::int8_t const code = detail::int8_code(value(first + c) * inverse);
        block[2 + c] = static_cast<std::uint8_t>(code);
      }
    });
  }
  KVMELD_HD std::uint32_t channels() const { return this->stored.channels() / block_bytes * block_channels; }
  std::string problem(shape const& s) const {
    if (this->stored.channels() % block_bytes != 0) {
      return refusal("q8_0_rows", "number of bytes of a row", this->stored.channels(), "a multiple of ",
                     block_bytes, ", the bytes of a block");
    }
    if constexpr (detail::shows_strides<Bytes>::value) {
      if (std::int64_t const apart = this->stored.strides().channel; apart != 1) {
        return refusal("q8_0_rows", "channel stride of the bytes", apart,
                       "1, because the bytes of a block lie side by side");
      }
    }
    return layout_problem("q8_0_rows: bytes", this->stored, this->stored.channels(), s);
  }

private:
  KVMELD_HD std::uint8_t* at(track where, slot_t slot, std::uint32_t block) const {
    return this->stored.locate(where, slot).base + std::size_t{block} * block_bytes;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
