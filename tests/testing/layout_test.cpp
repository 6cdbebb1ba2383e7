// The conformance check finds nothing in sound layouts and names the fault of every broken one.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_layout.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "layout/tensors.hpp"
#include "support/test_layouts.hpp"

namespace layout_cases {

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 1, 24, 24, 23};

enum class fault {
  none,
  slot_stride,       // one channel short: rows overlap
  layer_stride,      // the second layer lies beyond the memory
  heads,             // both heads in the same place
  sequences,         // the second sequence lies in the middle of the first
  channel_offset,    // load_tile starts at channel 0 always
  channel_count,     // load_tile writes all channels
  token_offset,      // load_tile starts at slot 0 in tiles of several tokens
  row_length,        // load_tile ignores ld
  one_row_only,      // load_tile repeats its first token
  last_channel,      // encode_row forgets it
  next_row,          // encode_row writes one element too many
  previous_row,      // encode_row writes one element before
  truncates,         // instead of rounding to nearest even
  copy_rounds,       // copies through float: NaN loses its bits
  copy_swaps,        // copies the wrong way
  copy_short,        // forgets the last channel
  copy_spoils,       // clears the source
  copy_lanes,        // lanes take channels by slot, so that copies would need a barrier
  encode_lanes,      // the first lane writes all of its share only
  load_lanes,        // lanes share out by the wrong number
  none_remaining,    // locate
  wrong_run,         // locate: token stride of another segment
  other_address,     // locate shows another place than load_tile reads
  lies_about_write,  // always_writable, but not writable
  channels,          // channels()
};

// A half tensor "LSHTC" with one fault.
class broken {
public:
  using element_type = kvmeld::float16;
  using traits = kvmeld::element_traits<kvmeld::float16>;
  static constexpr bool always_writable = true;
  static constexpr int channel_run = 0;
  static constexpr int token_run = 1;

  broken(fault what, kvmeld::float16* base) : what_(what), base_(base), s_(extent) {}

  kvmeld::segment<kvmeld::float16> locate(kvmeld::track t, kvmeld::slot_t slot) const {
    std::int64_t const row = what_ == fault::slot_stride ? d - 1 : d;
    std::int64_t const head = d * s_.capacity;
    std::int64_t const sequence = what_ == fault::sequences ? head / d / 2 * d : head * s_.kv_heads;
    std::int64_t const layer = head * s_.kv_heads * s_.sequences * (what_ == fault::layer_stride ? 2 : 1);
    kvmeld::float16* const base = base_ + t.layer * layer + t.sequence * sequence +
                                  (what_ == fault::heads ? 0 : t.kv_head * head) + slot * row;
    std::uint32_t remaining = s_.capacity - slot;
    if (what_ == fault::none_remaining) remaining = 0;
    if (what_ == fault::other_address) return {base + (slot + 1 < s_.capacity ? d : -d), row, 1, 1};
    return {base, what_ == fault::wrong_run ? 2 * row : row, 1, remaining};
  }
  template <class Team>
  void load_tile(Team const& team, kvmeld::track t, kvmeld::slot_t first, std::uint32_t tokens,
                 std::uint32_t channel, std::uint32_t channels, float* out, std::uint32_t ld) const {
    if (what_ == fault::channel_offset) channel = 0;
    if (what_ == fault::channel_count) channels = d;
    if (what_ == fault::row_length) ld = channels;
    if (what_ == fault::token_offset && tokens > 1) first = 0;
    for (std::uint32_t i = 0; i < tokens; ++i) {
      kvmeld::float16 const* const x = row(t, what_ == fault::one_row_only ? first : first + i) + channel;
      auto const store = [&](std::uint32_t c) { out[std::size_t{i} * ld + c] = traits::to_float(x[c]); };
      if (what_ != fault::load_lanes) team.for_each(channels, store);
      for (std::uint32_t c = team.lane(); what_ == fault::load_lanes && c < channels;
           c += team.lanes() + (team.lanes() > 4))
        store(c);
    }
  }
  template <class Team, class V>
  void encode_row(Team const& team, kvmeld::track t, kvmeld::slot_t slot, V value) const {
    kvmeld::float16* const x = row(t, slot);
    auto const store = [&](std::uint32_t c) {
      kvmeld::float16 h = traits::from_float(value(c));
      if (what_ == fault::truncates && traits::to_float(h) > value(c) && value(c) > 0) --h.bits;
      x[c] = h;
    };
    std::uint32_t const channels = what_ == fault::last_channel ? d - 1 : d;
    if (what_ == fault::encode_lanes) {
      for (std::uint32_t c = team.lane(); c < channels; c += max_of(2u, team.lanes())) store(c);
      if (team.lanes() == 1)
        for (std::uint32_t c = 1; c < channels; c += 2) store(c);
      if (team.lanes() == 3 && team.lane() == 2) x[5] = traits::from_float(0.0f);
    } else {
      team.for_each(channels, store);
    }
    if (what_ == fault::next_row && slot + 1 < s_.capacity) x[d] = traits::from_float(value(d - 1));
    if (what_ == fault::previous_row && slot > 0) x[-1] = traits::from_float(value(0));
  }
  template <class Team>
  void copy_row(Team const& team, kvmeld::track t, kvmeld::slot_t dst, kvmeld::slot_t src) const {
    if (what_ == fault::copy_swaps) std::swap(dst, src);
    kvmeld::float16 *const to = row(t, dst), *const from = row(t, src);
    std::uint32_t const turn = what_ == fault::copy_lanes ? dst : 0;
    team.for_each(what_ == fault::copy_short ? d - 1 : d, [&](std::uint32_t i) {
      std::uint32_t const c = (i + turn) % d;
      to[c] = what_ == fault::copy_rounds ? traits::from_float(traits::to_float(from[c])) : from[c];
      if (what_ == fault::copy_spoils && dst != src) from[c] = traits::from_float(0.0f);
    });
  }
  std::uint32_t channels() const { return what_ == fault::channels ? d + 1 : d; }
  bool writable(kvmeld::track, kvmeld::slot_t slot) const {
    return what_ != fault::lies_about_write || slot != 7;
  }

private:
  static constexpr std::uint32_t d = extent.key_dim;
  static std::uint32_t max_of(std::uint32_t a, std::uint32_t b) { return a < b ? b : a; }
  kvmeld::float16* row(kvmeld::track t, kvmeld::slot_t slot) const {
    if (what_ != fault::other_address) return locate(t, slot).base;
    return base_ + (std::size_t{t.index} * s_.capacity + slot) * d;
  }
  fault what_;
  kvmeld::float16* base_;
  kvmeld::shape s_;
};

std::vector<kvmeld::float16> tensor() {
  std::vector<kvmeld::float16> x(2 * extent.slots() * extent.key_dim);  // room for what strays
  return x;
}

// What the check says of a fault, the memory's bounds given or not.
std::string found(fault what, bool bounds = false) {
  auto memory = tensor();
  kvmeld::testing::layout_options o;
  if (bounds) o.memory = memory.data() + extent.key_dim;
  o.bytes = extent.slots() * extent.key_dim * sizeof(kvmeld::float16);
  return kvmeld::testing::layout_problem(broken(what, memory.data() + extent.key_dim), extent, extent.key_dim,
                                         o);
}

void names(std::string const& text, std::string const& what) {
  INFO(text);
  CHECK(text.find(what) != std::string::npos);
}

// Shared pages are not writable; one that is claimed twice as one's own is an overlap.
struct shared_pages : layout_test::paged_tensor<kvmeld::float16, 7> {
  shared_pages() : paged_tensor(layout_cases::extent, 24) {
    for (std::uint32_t page = 0; page < 2; ++page) table[page] = table[pages(layout_cases::extent) + page];
  }
};

// Pages said to go on where the next one begins.
struct long_pages : support::paged<kvmeld::float16> {
  explicit long_pages(support::paged<kvmeld::float16> const& p) : support::paged<kvmeld::float16>(p) {}
  kvmeld::segment<kvmeld::float16> locate(kvmeld::track t, kvmeld::slot_t slot) const {
    auto at = support::paged<kvmeld::float16>::locate(t, slot);
    at.remaining = extent.capacity - slot;
    return at;
  }
};

// A shared page that another row's write reaches.
struct leaking : support::paged<kvmeld::float16> {
  explicit leaking(support::paged<kvmeld::float16> const& p) : support::paged<kvmeld::float16>(p) {}
  template <class Team, class V>
  void encode_row(Team const& team, kvmeld::track t, kvmeld::slot_t slot, V v) const {
    support::paged<kvmeld::float16>::encode_row(team, t, slot, v);
    if (slot == 14) *locate(t, 0).base = kvmeld::element_traits<kvmeld::float16>::from_float(v(0));
  }
};

// Rows of int8 whose scale stays behind when they move.
struct scale_stays : support::int8_rows {
  using support::int8_rows::int8_rows;
  template <class Team>
  void copy_row(Team const& team, kvmeld::track t, kvmeld::slot_t dst, kvmeld::slot_t src) const {
    std::vector<float> row(channels());
    load_tile(team, t, dst, 1, 0, channels(), row.data(), channels());
    support::int8_rows::copy_row(team, t, dst, src);
    float most = 0;
    for (float x : row) most = std::max(most, std::fabs(x));
    encode_row(team, t, dst, [&](std::uint32_t c) { return c == 0 ? most : row[c]; });
  }
};

// Lanes that meet: nothing can be said of them, and nothing wrong is.
struct meeting : kvmeld::strided<float> {
  using kvmeld::strided<float>::strided;
  template <class Team, class V>
  void encode_row(Team const& team, kvmeld::track t, kvmeld::slot_t slot, V v) const {
    team.sync();
    kvmeld::strided<float>::encode_row(team, t, slot, v);
  }
};

}  // namespace

TEST_CASE("sound layouts have no problem, and are left with zeros") {
  using kvmeld::testing::layout_problem;
  auto const sound = [](auto&& tensor, kvmeld::testing::layout_options const& o = {}) {
    auto const layout = tensor.view();
    CHECK(layout_problem(layout, extent, extent.key_dim, o) == "");
    bool zero = true;
    for (std::byte b : tensor.bytes()) zero = zero && b == std::byte{0};
    CHECK(zero);
  };
  using namespace layout_test;
  sound(strided_tensor<float>(extent, 24));
  sound(strided_tensor<kvmeld::float16>(extent, 24));
  sound(token_major_tensor<kvmeld::bfloat16>(extent, 24));
  sound(transposed_tensor<kvmeld::bfloat16>(extent, 24));
  sound(transposed_tensor<float>(extent, 24));
  sound(paged_tensor<float, 7>(extent, 24));
  sound(paged_tensor<kvmeld::float16, 16>(extent, 24));
  sound(interleaved_tensor<kvmeld::float16>(extent, 24));
  sound(paged_tensor<float, 1>(extent, 24));
  sound(paged_tensor<float, 256>(extent, 24));
  sound(vllm_keys_tensor<kvmeld::bfloat16, 16>(extent, 24));
  sound(vllm_values_tensor<kvmeld::float16, 7>(extent, 24));
  sound(blocks_tensor<kvmeld::float16>(extent, 24));
  sound(ring_tensor<float>(extent, 24));
  sound(int8_tensor(extent, 24));
  kvmeld::testing::layout_options eighth;
  eighth.coarseness = 0.13f;
  sound(scaled_tensor<kvmeld::fp8_e4m3>(extent, 24), eighth);
  sound(scaled_tensor<kvmeld::fp8_e5m2>(extent, 24), eighth);
  kvmeld::testing::layout_options fine;
  fine.coarseness = 0.005f;
  sound(int8_tensor(extent, 24), fine);
  sound(int8_rows_tensor(extent, 24), fine);
  {
    kvmeld::shape const s{1, 2, 2, 1, 64, 64, 9};
    q8_0_tensor blocks(s, 64);
    CHECK(layout_problem(blocks.view(), s, 64, fine) == "");
    kvmeld::testing::layout_options coarse;
    coarse.coarseness = 0.13f;  // an eighth of the largest
    layout_test::ggml_tensor<kvmeld::q4_0_rows, 18> four(s, 64);
    CHECK(layout_problem(four.view(), s, 64, coarse) == "");
    layout_test::ggml_tensor<kvmeld::q5_1_rows, 24> five(s, 64);
    coarse.coarseness = 0.04f;
    CHECK(layout_problem(five.view(), s, 64, coarse) == "");
  }
  CHECK(found(fault::none) == "");
  CHECK(found(fault::none, true) == "");
  std::vector<float> memory(extent.slots() * 24);
  CHECK(layout_problem(meeting(memory.data(), "LSHTC", extent, 24), extent, 24) == "");
  kvmeld::shape const one{1, 1, 1, 1, 1, 1, 1};
  CHECK(layout_problem(kvmeld::strided<float>(memory.data(), "LSHTC", one, 1), one, 1) == "");
}

TEST_CASE("broken addresses are caught, with their slot") {
  names(found(fault::slot_stride),
        "channel 23 holds what was written to slot 1 of track (layer 0, sequence 0, "
        "head 0), channel 0: they overlap");
  names(found(fault::heads),
        "slot 0 of track (layer 0, sequence 0, head 0), channel 0 holds what was written "
        "to slot 0 of track (layer 0, sequence 0, head 1), channel 0: they overlap");
  names(found(fault::sequences), "they overlap");
  CHECK(found(fault::layer_stride) == "");  // sound in itself, and out of bounds
  names(found(fault::layer_stride, true),
        "slot 0 of track (layer 1, sequence 0, head 0), channel 0 lies at byte "
        "8832 of memory that has 8832: a stride or the base is wrong");
  names(found(fault::none_remaining), "locate says that 0 slots remain; it must be at least 1");
  names(found(fault::wrong_run), "slot 1 of track (layer 0, sequence 0, head 0) does not lie where locate of "
                                 "slot 0 says: its strides are to hold for 23 slots");
  names(found(fault::other_address), ", but where locate shows it is ");
  names(found(fault::lies_about_write), "slot 7 of track (layer 0, sequence 0, head 0) is not writable, but "
                                        "always_writable is set");
  CHECK(found(fault::channels) == "channels() is 25; expected are 24");
  // Transposed means that one segment holds the whole track.
  struct short_runs : kvmeld::transposed<float> {
    using kvmeld::transposed<float>::transposed;
    kvmeld::segment<float> locate(kvmeld::track t, kvmeld::slot_t s) const {
      auto at = kvmeld::transposed<float>::locate(t, s);
      at.remaining = 1;
      return at;
    }
  };
  std::vector<float> memory(extent.slots() * 24);
  names(kvmeld::testing::layout_problem(short_runs(memory.data(), "LSHCT", extent, 24), extent, 24),
        "token_run is 0 (the whole track), but locate says that 1 slots remain of 23");
}

TEST_CASE("broken reads and writes are caught, with their element") {
  names(found(fault::last_channel), "slot 0 of track (layer 0, sequence 0, head 0), channel 23 reads 0 right "
                                    "after encode_row wrote ");
  names(found(fault::next_row), "overlap");
  names(found(fault::previous_row), "overlap");
  names(found(fault::truncates), ", which element_type rounds to ");
  names(found(fault::channel_offset), "load_tile of 1 tokens from slot 0 of track (layer 0, sequence 0, head "
                                      "0) on, channels 1 to 1, ld ");
  names(found(fault::channel_count), "is written, but is not of the tile");
  names(found(fault::token_offset), "load_tile of 2 tokens from slot 1 ");
  names(found(fault::row_length), "load_tile of ");
  names(found(fault::one_row_only), "token 1, channel 0 is ");
  kvmeld::testing::layout_options fine;
  fine.coarseness = 0.001f;
  layout_test::int8_tensor coarse(extent, 24);
  names(kvmeld::testing::layout_problem(coarse.view(), extent, 24, fine), "; the error must be at most ");
}

TEST_CASE("broken copies are caught") {
  names(found(fault::copy_rounds), "copy_row from slot 2 does not move raw bits");
  names(found(fault::copy_swaps), "copy_row from slot 2 does not move raw bits");
  names(found(fault::copy_short), "channel 23 has the bits ");
  names(found(fault::copy_spoils), "copy_row");
  layout_test::int8_tensor x(extent, 24);
  names(kvmeld::testing::layout_problem(scale_stays(x.codes.data(), x.scales.data(), extent, 24), extent, 24),
        "does not move raw bits");
}

TEST_CASE("what only several lanes get wrong is caught") {
  names(found(fault::copy_lanes), "encode_row or copy_row differ on 2 lanes");
  names(found(fault::encode_lanes), "encode_row or copy_row differ on 3 lanes");
  names(found(fault::load_lanes), "load_tile of track (layer 0, sequence 0, head 0) differs on 8 lanes");
}

TEST_CASE("shared pages are left alone, and have to be") {
  using kvmeld::testing::layout_problem;
  shared_pages x;
  names(layout_problem(x.view(), extent, 24), "they overlap");
  for (std::uint32_t page = 0; page < 2; ++page) x.shared[static_cast<std::size_t>(x.table[page])] = 1;
  CHECK(layout_problem(x.view(), extent, 24) == "");
  leaking const bad(x.view());
  names(layout_problem(bad, extent, 24),
        "slot 0 of track (layer 0, sequence 0, head 0), channel 0 has the bits ");
  names(layout_problem(bad, extent, 24), "it is not writable, but changed when other rows were written");
  names(layout_problem(long_pages(x.view()), extent, 24),
        "slot 7 of track (layer 0, sequence 0, head 0) does not lie where locate of slot 6 says: its strides "
        "are to "
        "hold for 17 slots");
  for (auto& page : x.shared) page = 1;
  CHECK(layout_problem(x.view(), extent, 24) == "no slot is writable, so that nothing can be checked");
}

}  // namespace layout_cases
