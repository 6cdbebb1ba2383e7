// Random tensors as an engine would hand them over, and a cache over them.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

// The same numbers on every machine: splitmix64.
class dice {
public:
  explicit dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Of mean 0 and deviation 1.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() >> 32) % n; }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return uniform() < p; }
  template <class T> T const& pick(std::vector<T> const& list) {
    return list[below(static_cast<std::uint32_t>(list.size()))];
  }
  template <class T, std::size_t N> T const& pick(T const (&list)[N]) {
    return list[below(static_cast<std::uint32_t>(N))];
  }

private:
  std::uint64_t state_;
};

using rows = std::vector<std::vector<float>>;

enum class texture {
  noise,     // independent rows: cosines near 0
  walk,      // each row resembles the one before, as keys along a text do
  clusters,  // runs around few centres
};

inline rows random_rows(dice& d, std::uint32_t n, std::uint32_t channels, texture how) {
  rows out(n, std::vector<float>(channels));
  double const keep = 0.75 + 0.2 * d.uniform();  // cosine of neighbours in a walk
  rows centre(1 + n / 12, std::vector<float>(channels));
  for (auto& c : centre) {
    for (float& x : c) x = static_cast<float>(d.normal());
  }
  double const spread = 0.3 + 0.5 * d.uniform();
  std::uint32_t at = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (d.chance(0.2)) at = d.below(static_cast<std::uint32_t>(centre.size()));
    for (std::uint32_t c = 0; c < channels; ++c) {
      double x = d.normal();
      if (how == texture::walk && i > 0)
        x = keep * static_cast<double>(out[i - 1][c]) + std::sqrt(1 - keep * keep) * x;
      if (how == texture::clusters) x = static_cast<double>(centre[at][c]) + spread * x;
      out[i][c] = static_cast<float>(x);
    }
  }
  return out;
}

// Writes a row through a layout's addresses, rounded to storage.
template <class Layout>
void write_row(Layout const& layout, kvmeld::track where, std::uint32_t slot, std::vector<float> const& row) {
  auto const s = layout.locate(where, slot);
  for (std::size_t c = 0; c < row.size(); ++c) {
    s.base[static_cast<std::int64_t>(c) * s.channel_stride] =
        kvmeld::element_traits<typename Layout::element_type>::from_float(row[c]);
  }
}

// An engine's K and V. Copies are deep; `tensors` gives views of this object's own memory.
template <class T> struct engine_memory {
  kvmeld::shape extent;
  std::string order;
  std::vector<T> keys, values;

  explicit engine_memory(kvmeld::shape const& s, char const* letters = "LSHTC")
      : extent(s),
        order(letters),
        keys(s.slots() * s.key_dim, kvmeld::element_traits<T>::from_float(0.0f)),
        values(s.slots() * s.value_dim, kvmeld::element_traits<T>::from_float(0.0f)) {}

  auto tensors() {
    return kvmeld::kv{kvmeld::strided<T>(keys.data(), order.c_str(), extent, extent.key_dim),
                      kvmeld::strided<T>(values.data(), order.c_str(), extent, extent.value_dim)};
  }
  // Rows from slot `first` on of one track.
  void fill(kvmeld::track where, std::uint32_t first, rows const& k, rows const& v) {
    auto const x = tensors();
    for (std::uint32_t i = 0; i < k.size(); ++i) {
      write_row(x.keys, where, first + i, k[i]);
      write_row(x.values, where, first + i, v[i]);
    }
  }
  // Keys of the given texture and noisy values in every track of a sequence.
  void fill_sequence(dice& d, std::uint32_t sequence, std::uint32_t first, std::uint32_t n, texture how) {
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        rows const k = random_rows(d, n, extent.key_dim, how);
        fill(kvmeld::make_track(extent, layer, sequence, head), first, k,
             random_rows(d, n, extent.value_dim, texture::noise));
      }
    }
  }
  // Every row, used or not.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(keys.size() * sizeof(T) + values.size() * sizeof(T));
    std::memcpy(out.data(), keys.data(), keys.size() * sizeof(T));
    std::memcpy(out.data() + keys.size() * sizeof(T), values.data(), values.size() * sizeof(T));
    return out;
  }
  bool operator==(engine_memory const& other) const {
    return same(keys, other.keys) && same(values, other.values);
  }

private:
  static bool same(std::vector<T> const& a, std::vector<T> const& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }
};

// Waves of two tracks per thread unless `sizes` says otherwise, so that there are several: by default, tracks
// as short as these make one wave.
template <class T, class Policy>
auto make_cache(engine_memory<T>& memory, Policy const& policy, kvmeld::cache_options options = {},
                std::uint32_t threads = 1) {
  options.extent = memory.extent;
  if (options.wave_tracks == 0) options.wave_tracks = 2 * threads;
  return kvmeld::merged_cache{kvmeld::host_executor(threads), policy, memory.tensors(), options};
}

inline kvmeld::cache_options with_plan(std::uint32_t members = 0) {
  kvmeld::cache_options options;
  options.whole_plan = true;
  options.members = members;
  return options;
}

// Calls f(track) for the tracks of one sequence.
template <class F> void for_tracks(kvmeld::shape const& s, std::uint32_t sequence, F f) {
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) f(kvmeld::make_track(s, layer, sequence, head));
  }
}

// Scores as if attention had been observed: into one channel, bit by bit.
inline void set_scores(kvmeld::ledger_ref const& l, kvmeld::track where, std::vector<float> const& scores,
                       std::uint32_t channel = 0) {
  for (std::uint32_t i = 0; i < scores.size(); ++i) l.channel_data[channel][l.at(where, i)] = scores[i];
  l.word(where, kvmeld::track_word::observed_rows) = 1;
}

// Shows numbers[sequence][query head][query][width] as rows of attention; to a score that needs queries, the
// first of each row as a query, with the first number as log-sum-exp if it also keeps numbers per entry.
template <class Cache>
void observe_numbers(Cache& cache, kvmeld::query_batch const& batch, float const* numbers,
                     std::uint32_t queries, std::uint32_t width) {
  std::uint32_t const heads = cache.ledger().extent.query_heads();
  auto const given = kvmeld::rows_by_head(numbers, queries, heads, width);
  bool const asks = cache.needs_observation().queries;
  if (asks && cache.ledger().channels.count != 0) {
    cache.observe(batch, given, given);
  } else if (asks) {
    cache.observe(batch, given, {});
  } else {
    cache.observe_rows(batch, given);
  }
}

inline std::vector<float> random_scores(dice& d, std::uint32_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(d.uniform() * (d.chance(0.1) ? 20 : 1));
  return out;
}

// The score's table as if queries had been observed; nothing if there is none.
inline void set_table(kvmeld::ledger_ref const& l, kvmeld::track where, dice& d) {
  if (l.table_floats == 0) return;
  auto const numbers = random_scores(d, l.table_floats);
  std::memcpy(l.table_of(where), numbers.data(), numbers.size() * sizeof(float));
  l.word(where, kvmeld::track_word::observed_rows) = 1;
}

// A copy over the same tensors, for tests that use only one of the two from then on, or look at its ledger
// alone.
template <class Cache> Cache twin_of(Cache const& cache) {
  auto const ref = cache.ref();
  return cache.clone({ref.keys, ref.values});
}

}  // namespace support
