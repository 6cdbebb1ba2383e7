// K and V of eight heads, filled with keys that resemble a model's: neighbours are alike, and topics come
// back.
#pragma once

#include "repeat.hpp"
#include "session.hpp"

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/score/learned.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvmeld_bench {

/// One layer, one sequence, eight KV heads (two of a million entries), every slot in use.
inline kvmeld::shape extent_of(std::uint32_t n, std::uint32_t layers = 1) {
  return {layers, 1, heads_of(n), group, head_dim, head_dim, n};
}

/// Uniform noise in [-1, 1) from a linear congruential generator; one per channel, so that loops vectorise.
inline float noise(std::uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(state >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

/// K and V in head-major order, and a copy of K to restore both from: what V holds is nothing to the timing.
template <class T> class tensors {
public:
  tensors(std::uint32_t n, std::uint32_t threads, char const* dtype)
      : of_{n, dtype}, threads_(threads), size_(std::size_t{heads_of(n)} * n * head_dim) {}

  /// K and V as they were made; the first call makes them. Before it there are none.
  void restore() {
    if (original_.size() == 0) {
      for (auto* memory : {&original_, &keys_, &values_}) *memory = kvmeld::host_memory(size_ * sizeof(T));
      parallel_for(threads_, heads_of(of_.n),
                   [&](std::int64_t head) { fill(static_cast<std::uint32_t>(head)); });
    }
    constexpr std::size_t piece = std::size_t{1} << 20;
    parallel_for(threads_, static_cast<std::int64_t>((size_ + piece - 1) / piece), [&](std::int64_t i) {
      std::size_t const begin = static_cast<std::size_t>(i) * piece;
      std::size_t const bytes = std::min(piece, size_ - begin) * sizeof(T);
      std::memcpy(keys() + begin, original() + begin, bytes);
      std::memcpy(values() + begin, original() + begin, bytes);
    });
  }

  input const& of() const { return of_; }
  kvmeld::shape extent() const { return extent_of(of_.n); }
  T* keys() const { return static_cast<T*>(keys_.data()); }
  T* values() const { return static_cast<T*>(values_.data()); }
  kvmeld::kv<kvmeld::strided<T>, kvmeld::strided<T>> rows() const {
    return {{keys(), "LSHTC", extent(), head_dim}, {values(), "LSHTC", extent(), head_dim}};
  }

private:
  T* original() const { return static_cast<T*>(original_.data()); }

  /// Keys are a topic's direction plus a first-order autoregressive walk (0.9) along the tokens. A topic
  /// lasts 64 tokens on average; there are 32 of them, and they come back.
  void fill(std::uint32_t head) {
    constexpr std::uint32_t topics = 32;
    std::array<std::uint32_t, head_dim> state;
    for (std::uint32_t c = 0; c < head_dim; ++c) state[c] = (head * head_dim + c + 1) * 2654435761u;
    std::array<std::array<float, head_dim>, topics> centre;
    for (auto& direction : centre) {
      for (std::uint32_t c = 0; c < head_dim; ++c) direction[c] = 1.2f * noise(state[c]);
    }
    std::array<float, head_dim> walk{};
    std::uint32_t choice = head + 1;
    std::uint32_t topic = 0;
    T* out = original() + std::size_t{head} * of_.n * head_dim;
    for (std::uint32_t t = 0; t < of_.n; ++t, out += head_dim) {
      if (noise(choice) > 1.0f - 2.0f / 64) {
        noise(choice);
        topic = (choice >> 16) % topics;
      }
      for (std::uint32_t c = 0; c < head_dim; ++c) {
        walk[c] = 0.9f * walk[c] + 0.6f * noise(state[c]);
        out[c] = kvmeld::element_traits<T>::from_float(centre[topic][c] + walk[c]);
      }
    }
  }

  input of_;
  std::uint32_t threads_;
  std::size_t size_;
  kvmeld::host_memory original_, keys_, values_;  // at whole lines of the cache, as engines have theirs
};

/// Weights of score::learned, of no model.
inline std::vector<float> random_weights(kvmeld::shape const& extent) {
  std::vector<float> out(std::size_t{extent.layers} * extent.kv_heads *
                         kvmeld::learned_weights::floats(extent.key_dim));
  std::uint32_t state = 11;
  for (float& w : out) w = noise(state);
  return out;
}
inline kvmeld::learned_weights weights_of(std::vector<float> const& floats, kvmeld::shape const& extent) {
  return {floats.data(), extent.layers, extent.kv_heads, extent.key_dim};
}

/// Scores as `observed_rows` queries leave them: most entries get little attention, a few get much.
inline void fill_scores(kvmeld::ledger_ref const& l) {
  std::uint32_t state = 7;
  for (std::uint32_t c = 0; c < l.channels.count; ++c) {
    kvmeld::channel const& of = l.channels.at[c];
    if (of.tag == kvmeld::channel_tag::learned_score) {  // computed once it is asked for
      std::fill_n(l.channel_data[c], l.extent.slots(), of.initial);
      continue;
    }
    for (std::size_t i = 0; i < l.extent.slots(); ++i) {
      float const u = noise(state) + 1.001f;
      l.channel_data[c][i] = 0.01f / (u * u);
    }
  }
  for (std::uint32_t track = 0; track < l.extent.tracks(); ++track) {
    kvmeld::track const where{track, 0, 0, track};
    for (std::uint32_t word : {kvmeld::track_word::observed_rows, kvmeld::track_word::window_rows}) {
      l.word(where, word) = observed_rows;
    }
  }
}

/// Rows and the cache's sequence as they were when `begun` was saved. The cache stays the same: the workspace
/// of a new one would be touched for the first time inside what is measured.
template <class T, class Cache>
void begin_again(tensors<T>& x, Cache& cache, std::vector<std::byte> const& begun) {
  x.restore();
  cache.close(0);
  cache.resume(0, begun);
}

}  // namespace kvmeld_bench
