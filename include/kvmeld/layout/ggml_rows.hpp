// SPDX-License-Identifier: Apache-2.0
// Rows of ggml's blocks: 32 numbers as codes, with their scale before them. llama.cpp's caches may have these
// types.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/coded_rows.hpp>
#include <kvmeld/layout/copy_across.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

template <class Layout, class = void> struct shows_strides : std::false_type {};
template <class Layout>
struct shows_strides<Layout, std::void_t<decltype(std::declval<Layout const&>().strides().channel)>>
    : std::true_type {};

inline constexpr std::uint32_t ggml_block_channels = 32;

/// Blocks may begin at odd addresses.
KVMELD_HD inline float half_at(std::uint8_t const* from) {
  float16 x;
  std::memcpy(&x, from, sizeof x);
  return element_traits<float16>::to_float(x);
}
/// Returns the number as it is stored.
KVMELD_HD inline float put_half(std::uint8_t* to, float x) {
  float16 const stored = element_traits<float16>::from_float(x);
  std::memcpy(to, &stored, sizeof stored);
  return element_traits<float16>::to_float(stored);
}

/// A scale and 32 signed bytes.
struct q8_0_block {
  static constexpr char const* name = "q8_0_rows";
  static constexpr std::uint32_t bytes = 34;

  KVMELD_HD static float number(std::uint8_t const* block, std::uint32_t c) {
    return half_at(block) * static_cast<float>(static_cast<std::int8_t>(block[2 + c]));
  }
  template <class F> KVMELD_HD static void store(std::uint8_t* block, F value) {
    float most = 0.0f;
    for (std::uint32_t c = 0; c < ggml_block_channels; ++c) most = max_of(most, magnitude(value(c)));
    float const step = put_half(block, most / 127.0f), inverse = step > 0.0f ? 1.0f / step : 0.0f;
    for (std::uint32_t c = 0; c < ggml_block_channels; ++c)
      block[2 + c] = static_cast<std::uint8_t>(int8_code(value(c) * inverse));
  }
};

/// A scale, with `Offset` also a smallest number, for `Bits` = 5 the fifth bits of all codes, and 16 bytes:
/// byte i has the low bits of number i in its low half and those of number i + 16 in its high half.
template <int Bits, bool Offset> struct small_block {
  static_assert(Bits == 4 || Bits == 5);
  static constexpr char const* name =
      Bits == 4 ? (Offset ? "q4_1_rows" : "q4_0_rows") : (Offset ? "q5_1_rows" : "q5_0_rows");
  static constexpr std::uint32_t high_bits = Offset ? 4 : 2, low_bits = high_bits + (Bits == 5 ? 4 : 0),
                                 bytes = low_bits + ggml_block_channels / 2;
  static constexpr std::uint32_t most = (1u << Bits) - 1u;
  static constexpr float middle = Offset ? 0.0f : static_cast<float>(1u << (Bits - 1));  ///< code of 0

  KVMELD_HD static float number(std::uint8_t const* block, std::uint32_t c) {
    std::uint8_t const both = block[low_bits + c % 16];
    std::uint32_t code = c < 16 ? both & 15u : both >> 4;
    if (Bits == 5) code |= (block[high_bits + c / 8] >> c % 8 & 1u) << 4;
    float const x = half_at(block) * (static_cast<float>(code) - middle);
    return Offset ? x + half_at(block + 2) : x;
  }
  template <class F> KVMELD_HD static void store(std::uint8_t* block, F value) {
    float low = 0.0f, high = 0.0f, farthest = 0.0f;
    bool any = false;
    for (std::uint32_t c = 0; c < ggml_block_channels; ++c) {
      float const x = value(c);
      if (!is_finite(x)) continue;
      low = any ? min_of(low, x) : x;
      high = any ? max_of(high, x) : x;
      if (magnitude(x) > magnitude(farthest)) farthest = x;
      any = true;
    }
    // Without an offset the number farthest from 0 becomes code 0, which is the farthest from the middle.
    float const step =
        put_half(block, Offset ? high / static_cast<float>(most) - low / static_cast<float>(most)
                               : -farthest / middle);
    float const first = Offset ? put_half(block + 2, low) : 0.0f;
    float const inverse = step < 0.0f || step > 0.0f ? 1.0f / step : 0.0f;
    auto const code_of = [&](std::uint32_t c) -> std::uint32_t {
      float const x = value(c);
      float const code = ((is_finite(x) ? x : 0.0f) - first) * inverse + middle + 0.5f;
      return !(code > 0.0f) ? 0u : code >= static_cast<float>(most) ? most : static_cast<std::uint32_t>(code);
    };
    std::uint32_t fifth = 0;
    for (std::uint32_t i = 0; i < 16; ++i) {
      std::uint32_t const a = code_of(i), b = code_of(i + 16);
      block[low_bits + i] = static_cast<std::uint8_t>((a & 15u) | (b & 15u) << 4);
      fifth |= (a >> 4) << i | (b >> 4) << (i + 16);
    }
    for (std::uint32_t i = 0; Bits == 5 && i < 4; ++i)
      block[high_bits + i] = static_cast<std::uint8_t>(fifth >> (8 * i));
  }
};

/// Rows of blocks, each of 32 channels. `Bytes` locates rows of std::uint8_t with contiguous channels,
/// Block::bytes of them per block. Rows must not share blocks, so that the number of channels is a multiple
/// of 32. A block is quantised as a whole, with its scale as it is stored.
template <class Bytes, class Block> class ggml_rows : public coded_rows<Bytes> {
public:
  static_assert(std::is_same_v<typename Bytes::element_type, std::uint8_t>,
                "kvmeld: the bytes of ggml's blocks are std::uint8_t");
  static constexpr std::uint32_t block_channels = ggml_block_channels,
                                 block_bytes = Block::bytes;  ///< channels and bytes of a block

  /// `bytes` locates the rows of blocks.
  explicit ggml_rows(Bytes bytes) : coded_rows<Bytes>{bytes} {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::uint32_t const t = i / channels, c = channel + i % channels;
      out[std::size_t{t} * ld + i % channels] =
          Block::number(at(where, first + t, c / block_channels), c % block_channels);
    });
  }
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    team.for_each(channels() / block_channels, [&](std::uint32_t b) {
      Block::store(at(where, slot, b), [&](std::uint32_t c) { return value(b * block_channels + c); });
    });
  }
  template <class Team>
  KVMELD_HD void copy_row_across(Team const& team, track to, track from, slot_t slot) const {
    kvmeld::copy_row_across(team, this->stored, to, from, slot, nullptr);
  }
  KVMELD_HD std::uint32_t channels() const { return this->stored.channels() / block_bytes * block_channels; }
  std::string problem(shape const& s) const {
    if (this->stored.channels() % block_bytes != 0) {
      return refusal(Block::name, "number of bytes of a row", this->stored.channels(), "a multiple of ",
                     block_bytes, ", the bytes of a block");
    }
    if constexpr (shows_strides<Bytes>::value) {
      if (std::int64_t const apart = this->stored.strides().channel; apart != 1) {
        return refusal(Block::name, "channel stride of the bytes", apart,
                       "1, because the bytes of a block lie side by side");
      }
    }
    return layout_problem(message(Block::name, ": bytes").c_str(), this->stored, this->stored.channels(), s);
  }

private:
  KVMELD_HD std::uint8_t* at(track where, slot_t slot, std::uint32_t block) const {
    return this->stored.locate(where, slot).base + std::size_t{block} * block_bytes;
  }
};

}  // namespace detail

/// ggml's q8_0: 34 bytes for 32 numbers, x = scale * code, codes from -127 to 127. Numbers change by at most
/// half a scale, which is a 127th of the largest magnitude in the block, and by the rounding of the scale.
template <class Bytes> class q8_0_rows : public detail::ggml_rows<Bytes, detail::q8_0_block> {
public:
  /// `bytes` locates the rows of blocks.
  explicit q8_0_rows(Bytes bytes) : detail::ggml_rows<Bytes, detail::q8_0_block>(bytes) {}
};

/// ggml's q4_0: 18 bytes for 32 numbers, x = scale * (code - 8), codes from 0 to 15. The scale is an eighth
/// of the number that is farthest from 0, with the other sign. Numbers change by at most half a scale, and
/// those near the opposite of the farthest number by a whole one, since code 16 is missing. NaN and
/// infinities are stored as 0.
template <class Bytes> class q4_0_rows : public detail::ggml_rows<Bytes, detail::small_block<4, false>> {
public:
  /// `bytes` locates the rows of blocks.
  explicit q4_0_rows(Bytes bytes) : detail::ggml_rows<Bytes, detail::small_block<4, false>>(bytes) {}
};

/// ggml's q4_1: 20 bytes for 32 numbers, x = scale * code + smallest, codes from 0 to 15. Numbers change by
/// at most half a scale, which is a 15th of what the block spans, and by the rounding of scale and smallest
/// to binary16. NaN and infinities are stored as the number nearest to 0.
template <class Bytes> class q4_1_rows : public detail::ggml_rows<Bytes, detail::small_block<4, true>> {
public:
  /// `bytes` locates the rows of blocks.
  explicit q4_1_rows(Bytes bytes) : detail::ggml_rows<Bytes, detail::small_block<4, true>>(bytes) {}
};

/// ggml's q5_0: 22 bytes for 32 numbers, x = scale * (code - 16), codes from 0 to 31. As q4_0_rows, but the
/// scale is a sixteenth of the number that is farthest from 0.
template <class Bytes> class q5_0_rows : public detail::ggml_rows<Bytes, detail::small_block<5, false>> {
public:
  /// `bytes` locates the rows of blocks.
  explicit q5_0_rows(Bytes bytes) : detail::ggml_rows<Bytes, detail::small_block<5, false>>(bytes) {}
};

/// ggml's q5_1: 24 bytes for 32 numbers, x = scale * code + smallest, codes from 0 to 31. As q4_1_rows, but
/// the scale is a 31st of what the block spans.
template <class Bytes> class q5_1_rows : public detail::ggml_rows<Bytes, detail::small_block<5, true>> {
public:
  /// `bytes` locates the rows of blocks.
  explicit q5_1_rows(Bytes bytes) : detail::ggml_rows<Bytes, detail::small_block<5, true>>(bytes) {}
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
