// A layout that the library does not bring along, to prove that an engine can bring its own: quantised rows
// with a scale each.
#pragma once

#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/paged.hpp>

#include <cstddef>
#include <cstdint>

namespace support {

template <class T> using paged = kvmeld::paged<kvmeld::shareable_pages<T>>;

// One signed byte per channel and one float per row: x = code * scale. Storing a row needs the whole of it.
class int8_rows {
public:
  using element_type = std::int8_t;
  static constexpr int channel_run = 0;
  static constexpr int token_run = 1;

  int8_rows(std::int8_t* codes, float* scales, kvmeld::shape const& s, std::uint32_t channels)
      : codes_(codes), scales_(scales), capacity_(s.capacity), channels_(channels) {}

  template <class Team>
  void load_tile(Team const& team, kvmeld::track where, kvmeld::slot_t first, std::uint32_t tokens,
                 std::uint32_t channel, std::uint32_t channels, float* out, std::uint32_t ld) const {
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::size_t const r = row(where, first + i / channels);
      out[std::size_t{i / channels} * ld + i % channels] =
          scales_[r] * static_cast<float>(codes_[r * channels_ + channel + i % channels]);
    });
  }
  template <class Team, class F>
  void encode_row(Team const& team, kvmeld::track where, kvmeld::slot_t slot, F value) const {
    std::size_t const r = row(where, slot);
    float most = 0.0f;  // every lane looks at the whole row, so that no barrier is needed
    for (std::uint32_t c = 0; c < channels_; ++c) {
      float const x = value(c);
      most = kvmeld::max_of(most, x < 0.0f ? -x : x);
    }
    float const inverse = most > 0.0f ? 127.0f / most : 0.0f;
    team.for_each(channels_, [&](std::uint32_t c) {
      float const x = value(c) * inverse;
      codes_[r * channels_ + c] = static_cast<std::int8_t>(x < 0.0f ? x - 0.5f : x + 0.5f);
    });
    if (team.lane() == 0) scales_[r] = most / 127.0f;
  }
  template <class Team>
  void copy_row(Team const& team, kvmeld::track where, kvmeld::slot_t dst, kvmeld::slot_t src) const {
    std::size_t const to = row(where, dst), from = row(where, src);
    team.for_each(channels_,
                  [&](std::uint32_t c) { codes_[to * channels_ + c] = codes_[from * channels_ + c]; });
    if (team.lane() == 0) scales_[to] = scales_[from];
  }
  std::uint32_t channels() const { return channels_; }
  bool writable(kvmeld::track, kvmeld::slot_t) const { return true; }

private:
  std::size_t row(kvmeld::track where, kvmeld::slot_t slot) const {
    return std::size_t{where.index} * capacity_ + slot;
  }

  std::int8_t* codes_;
  float* scales_;
  std::uint32_t capacity_, channels_;
};

}  // namespace support
