// K or V as some engine keeps it, behind one type: memory that starts as noise, a layout over it, and where
// rows lie by plain counting, which has nothing from the layout.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_bytes.hpp"
#include "support/erased_layout.hpp"
#include "support/random_cache.hpp"

namespace cross_test {

using kvmeld::shape;
using kvmeld::slot_t;
using kvmeld::track;
using support::dice;

// Some bytes of a row.
struct piece {
  std::size_t offset, bytes;
};

struct tensor {
  std::string name;
  kvmeld::host_memory memory;
  // The pieces of a row in the order of its channels.
  std::function<void(track, slot_t, std::vector<piece>&)> row;
  std::vector<support::erased_layout> views;  // one
  std::vector<std::shared_ptr<void>> kept;    // the layout and its tables

  support::erased_layout view() const { return views.front(); }
  std::byte* bytes() const { return static_cast<std::byte*>(memory.data()); }

  template <class X> X* keep(X x) {
    auto const held = std::make_shared<X>(std::move(x));
    kept.push_back(held);
    return held.get();
  }
  template <class X> X const* keep_list(std::vector<X> list) { return keep(std::move(list))->data(); }
  template <class Layout> void look_through(Layout const& layout) { views.emplace_back(keep(layout)); }

  std::vector<piece> pieces(track t, slot_t s) const {
    std::vector<piece> out;
    out.reserve(80);
    row(t, s, out);
    return out;
  }
};

using tensor_ptr = std::unique_ptr<tensor>;

// What is asked for: rows of `channels` for a cache of `extent`. Pages that lie in the first `frozen` slots
// of a sequence may be shared.
struct order {
  shape extent;
  std::uint32_t channels;
  std::vector<std::uint32_t> frozen;
};

inline void make_noise(tensor& x, dice& d) {
  for (std::size_t i = 0; i < x.memory.size(); i += 8) {
    std::uint64_t const noise = d.next() & 0x3f3f3f3f3f3f3f3fu;  // numbers in every format
    std::memcpy(x.bytes() + i, &noise, kvmeld::min_of<std::size_t>(8, x.memory.size() - i));
  }
}

// A tensor of `elements` elements of T that begins a few elements into its memory.
template <class T> struct memory_of {
  tensor_ptr out = std::make_unique<tensor>();
  T* base;

  memory_of(char const* name, std::size_t elements, dice& d) {
    std::size_t const shift = d.chance(0.5) ? 0 : d.below(9);
    out->name = name;
    out->memory = kvmeld::host_memory((shift + elements) * sizeof(T));
    make_noise(*out, d);
    base = static_cast<T*>(out->memory.data()) + shift;
  }
  // `place(track, slot, channel)` counts elements from `base`.
  template <class Layout, class Place>
  tensor_ptr finish(Layout const& layout, std::uint32_t channels, Place place) {
    std::size_t const begin = static_cast<std::size_t>(base - static_cast<T*>(out->memory.data()));
    out->look_through(layout);
    out->row = [=](track t, slot_t s, std::vector<piece>& to) {
      to.clear();
      for (std::uint32_t c = 0; c < channels; ++c) {
        std::size_t const at = (begin + place(t, s, c)) * sizeof(T);
        if (c != 0 && to.back().offset + to.back().bytes == at) {
          to.back().bytes += sizeof(T);
        } else {
          to.push_back({at, sizeof(T)});
        }
      }
    };
    return std::move(out);
  }
};

// Number of an element in a dense tensor, digit by digit in the order of the letters.
inline std::size_t count_up(std::string const& letters, shape const& s, std::uint32_t channels, track t,
                            std::size_t slot, std::size_t channel) {
  std::size_t index = 0;
  for (char letter : letters) {
    switch (letter) {
    case 'L': index = index * s.layers + t.layer; break;
    case 'S': index = index * s.sequences + t.sequence; break;
    case 'H': index = index * s.kv_heads + t.kv_head; break;
    case 'T': index = index * s.capacity + slot; break;
    default: index = index * channels + channel; break;
    }
  }
  return index;
}

template <class T>
tensor_ptr dense_tensor(char const* name, std::string const& letters, order const& o, dice& d) {
  memory_of<T> m(name, o.extent.slots() * o.channels, d);
  auto const place = [=](track t, slot_t s, std::uint32_t c) {
    return count_up(letters, o.extent, o.channels, t, s, c);
  };
  if (letters.back() == 'T')
    return m.finish(kvmeld::transposed<T>(m.base, letters.c_str(), o.extent, o.channels), o.channels, place);
  return m.finish(kvmeld::strided<T>(m.base, letters.c_str(), o.extent, o.channels), o.channels, place);
}

// K and V in one allocation [S][L][2][T][H][C]: the other half is somebody else's.
template <class T> tensor_ptr fused_tensor(order const& o, dice& d) {
  shape const& s = o.extent;
  memory_of<T> m("fused", 2 * s.slots() * o.channels, d);
  std::size_t const half = std::size_t{s.capacity} * s.kv_heads * o.channels, which = d.below(2);
  auto const at = static_cast<std::int64_t>(half);
  kvmeld::cache_strides const st{2 * at, 2 * at * s.layers, o.channels, std::int64_t{s.kv_heads} * o.channels,
                                 1};
  return m.finish(kvmeld::strided<T>(m.base + which * half, st, s, o.channels), o.channels,
                  [=](track t, slot_t slot, std::uint32_t c) {
                    std::size_t const part =
                        (t.sequence * std::size_t{o.extent.layers} + t.layer) * 2 + which;
                    return part * half + (slot * std::size_t{o.extent.kv_heads} + t.kv_head) * o.channels + c;
                  });
}

// The largest width up to `most` that divides the channels.
inline std::uint32_t group_width(std::uint32_t channels, std::uint32_t most) {
  while (channels % most != 0) --most;
  return most;
}

// [L][H][S][C / w][T][w]
template <class T> tensor_ptr tiled_tensor(char const* name, std::uint32_t most, order const& o, dice& d) {
  shape const& s = o.extent;
  memory_of<T> m(name, s.slots() * o.channels, d);
  std::uint32_t const w = group_width(o.channels, most);
  std::int64_t const track_size = std::int64_t{s.capacity} * o.channels;
  kvmeld::cache_strides const st{track_size * s.sequences * s.kv_heads, track_size, track_size * s.sequences,
                                 w, std::int64_t{s.capacity} * w};
  return m.finish(
      kvmeld::tiled(kvmeld::strided<T>(m.base, st, s, o.channels / w), w), o.channels,
      [=](track t, slot_t slot, std::uint32_t c) {
        return (count_up("LHSC", o.extent, o.channels / w, t, 0, c / w) * o.extent.capacity + slot) * w +
               c % w;
      });
}

// A ring behind sinks that begins elsewhere in every sequence, of rows by token or along tokens.
template <class T> tensor_ptr ring_tensor(std::string const& letters, order const& o, dice& d) {
  shape const& s = o.extent;
  memory_of<T> m(letters.back() == 'T' ? "ring along tokens" : "ring", s.slots() * o.channels, d);
  std::uint32_t const sinks = d.below(kvmeld::min_of(4u, s.capacity - 1) + 1);
  std::vector<std::uint32_t> start;
  for (std::uint32_t i = 0; i < s.sequences; ++i) start.push_back(d.below(3 * s.capacity));
  auto const* const starts = m.out->keep_list(start);
  auto const place = [=](track t, slot_t slot, std::uint32_t c) {
    std::size_t const behind = o.extent.capacity - sinks;
    std::size_t const at = slot < sinks ? slot : sinks + (slot - sinks + start[t.sequence]) % behind;
    return count_up(letters, o.extent, o.channels, t, at, c);
  };
  if (letters.back() == 'T') {
    kvmeld::transposed<T> const rows(m.base, letters.c_str(), s, o.channels);
    return m.finish(kvmeld::ring(rows, s.capacity, sinks, starts), o.channels, place);
  }
  kvmeld::strided<T> const rows(m.base, letters.c_str(), s, o.channels);
  return m.finish(kvmeld::ring(rows, s.capacity, sinks, starts), o.channels, place);
}

// A tensor [S][H][T][C] or [S][T][H][C] per layer, the last layer's first, each with strides of its own.
template <class T> tensor_ptr per_layer_tensor(order const& o, dice& d) {
  shape one = o.extent;
  one.layers = 1;
  std::size_t const size = one.slots() * o.channels + 3;
  memory_of<T> m("per layer", size * o.extent.layers, d);
  std::vector<kvmeld::strided<T>> layers;
  std::vector<std::string> letters;
  for (std::uint32_t l = 0; l < o.extent.layers; ++l) {
    letters.push_back(d.chance(0.5) ? "LSHTC" : "LSTHC");
    layers.emplace_back(m.base + (o.extent.layers - 1 - l) * size, letters.back().c_str(), one, o.channels);
  }
  auto const place = [=](track t, slot_t s, std::uint32_t c) {
    track const within{t.index, 0, t.sequence, t.kv_head};
    return (o.extent.layers - 1 - t.layer) * size + count_up(letters[t.layer], one, o.channels, within, s, c);
  };
  return m.finish(kvmeld::per_layer<kvmeld::strided<T>>(m.out->keep_list(layers), o.channels), o.channels,
                  place);
}

template <class T> tensor_ptr relocatable_tensor(std::string const& letters, order const& o, dice& d) {
  memory_of<T> m("relocatable", o.extent.slots() * o.channels, d);
  kvmeld::transposed<T> const rows(m.base, letters.c_str(), o.extent, o.channels);
  return m.finish(
      kvmeld::relocatable<kvmeld::transposed<T>>(m.out->keep(rows), o.channels), o.channels,
      [=](track t, slot_t s, std::uint32_t c) { return count_up(letters, o.extent, o.channels, t, s, c); });
}

}  // namespace cross_test
