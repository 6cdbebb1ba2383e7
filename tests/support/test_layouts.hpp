// Layouts that the library does not bring along, to prove that an engine can bring its own: a block table with shared
// pages, channels interleaved in groups, quantised rows with a scale each.
#pragma once

#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace support {

// Pages of `page` slots from a pool [page number][layer][head][slot][channel]; `table` [sequence][pages of a track]
// names a track's pages in order, `shared` [page number] those that belong to others as well.
template <class T> class paged : public kvmeld::addressed_rows<paged<T>, T> {
public:
  static constexpr int channel_run = 0;
  static constexpr int token_run = 1;

  paged(T* pool, std::uint32_t const* table, std::uint8_t const* shared, std::uint32_t page,
        kvmeld::shape const& s, std::uint32_t channels)
      : pool_(pool),
        table_(table),
        shared_(shared),
        page_(page),
        pages_(kvmeld::ceil_div(s.capacity, page)),
        layers_(s.layers),
        heads_(s.kv_heads),
        channels_(channels) {}

  kvmeld::segment<T> locate(kvmeld::track where, kvmeld::slot_t slot) const {
    std::size_t const row =
        ((std::size_t{number(where, slot)} * layers_ + where.layer) * heads_ + where.kv_head) * page_ +
        slot % page_;
    return {pool_ + row * channels_, static_cast<std::int64_t>(channels_), 1, page_ - slot % page_};
  }
  std::uint32_t channels() const { return channels_; }
  bool writable(kvmeld::track where, kvmeld::slot_t slot) const { return shared_[number(where, slot)] == 0; }

private:
  std::uint32_t number(kvmeld::track where, kvmeld::slot_t slot) const {
    return table_[std::size_t{where.sequence} * pages_ + slot / page_];
  }

  T* pool_;
  std::uint32_t const* table_;
  std::uint8_t const* shared_;
  std::uint32_t page_, pages_, layers_, heads_, channels_;
};

// Rows of a track [channels / width][slot][width], as kernels that read keys 16 bytes at a time want them: neither
// channels nor slots have one stride, so the layout brings its own loads and stores.
template <class T> class interleaved {
public:
  using element_type = T;
  static constexpr int channel_run = 8;
  static constexpr int token_run = 1;

  interleaved(T* base, std::uint32_t width, kvmeld::shape const& s, std::uint32_t channels)
      : base_(base), width_(width), capacity_(s.capacity), channels_(channels) {}

  template <class Team>
  void load_tile(Team const& team, kvmeld::track where, kvmeld::slot_t first, std::uint32_t tokens,
                 std::uint32_t channel, std::uint32_t channels, float* out, std::uint32_t ld) const {
    team.for_each(tokens * channels, [&](std::uint32_t i) {
      std::uint32_t const t = i / channels, c = i % channels;
      out[std::size_t{t} * ld + c] = kvmeld::element_traits<T>::to_float(at(where, first + t, channel + c));
    });
  }
  template <class Team, class F>
  void encode_row(Team const& team, kvmeld::track where, kvmeld::slot_t slot, F value) const {
    team.for_each(channels_, [&](std::uint32_t c) {
      at(where, slot, c) = kvmeld::element_traits<T>::from_float(value(c));
    });
  }
  template <class Team>
  void copy_row(Team const& team, kvmeld::track where, kvmeld::slot_t dst, kvmeld::slot_t src) const {
    team.for_each(channels_, [&](std::uint32_t c) { at(where, dst, c) = at(where, src, c); });
  }
  std::uint32_t channels() const { return channels_; }
  bool writable(kvmeld::track, kvmeld::slot_t) const { return true; }

private:
  T& at(kvmeld::track where, kvmeld::slot_t slot, std::uint32_t c) const {
    std::size_t const group = std::size_t{where.index} * (channels_ / width_) + c / width_;
    return base_[(group * capacity_ + slot) * width_ + c % width_];
  }

  T* base_;
  std::uint32_t width_, capacity_, channels_;
};

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
