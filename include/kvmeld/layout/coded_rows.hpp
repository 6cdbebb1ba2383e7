// SPDX-License-Identifier: Apache-2.0
// What layouts of quantised rows share: where codes lie, of a byte each or two in a byte.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/copy_across.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
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
  /// Loads a tile of decode(code, slot). Collective; no barrier at the end.
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

/// Where the codes of a row lie in its bytes.
enum class code_order {
  bytes,      ///< a byte per code: 8 bits
  halves,     ///< 4 bits per code: byte i has channel i below channel i + channels / 2
  neighbours  ///< 4 bits per code: byte i has channel 2 i below channel 2 i + 1
};

namespace detail {

/// Base of the layouts of which a byte may hold two codes. `Beside`, a layout, has what codes are decoded
/// with.
template <class Bytes, class Beside> struct packed_rows : coded_rows<Bytes> {
  static_assert(std::is_same_v<typename Bytes::element_type, std::uint8_t>,
                "kvmeld: the bytes of a quantised row are std::uint8_t");
  code_order order;

  packed_rows(Bytes bytes, Beside with, code_order how)
      : coded_rows<Bytes>{bytes}, order(how), beside(with) {}

  KVMELD_HD std::uint32_t channels() const { return this->stored.channels() * codes_in_byte(); }
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    this->stored.copy_row(team, where, dst, src);
    beside.copy_row(team, where, dst, src);
  }
  template <class Team>
  KVMELD_HD void copy_row_across(Team const& team, track to, track from, slot_t slot) const {
    kvmeld::copy_row_across(team, this->stored, to, from, slot, nullptr);
    kvmeld::copy_row_across(team, beside, to, from, slot, nullptr);
  }

protected:
  Beside beside;
  KVMELD_HD std::uint32_t codes_in_byte() const { return order == code_order::bytes ? 1 : 2; }
  /// The channel of a byte's code: its only one (0), or the one in its lower (0) or upper (1) four bits.
  KVMELD_HD std::uint32_t channel_of(std::uint32_t byte, std::uint32_t nibble) const {
    if (order == code_order::halves) return byte + nibble * this->stored.channels();
    return byte * codes_in_byte() + nibble;
  }
  /// Loads a tile of decode(code, slot, channel). Collective; no barrier at the end.
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

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
