// The engine's own attention: what an integration changes in it are the length, which is each head's own, and
// one bias.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paged_engine {

/// Room for the rows of one head, in float.
struct head_scratch {
  std::vector<float> keys, values, bias, weights;
};

/// Rows [rows][dim] of the queries of one query head, `stride` apart; the last of them sees all `length`
/// entries, the one before it one entry less. log_sum_exp is written per row, `heads` apart. One order of
/// summation, so that results do not depend on how a prompt was cut into chunks.
struct head_queries {
  float const* query;
  float* out;
  float* log_sum_exp;
  std::uint32_t rows, stride, heads;
};

/// K, V and biases of one head: what a decode kernel reads page by page.
template <class Ref> void gather(Ref const& ref, kvmeld::track head, head_scratch& room) {
  using element = kvmeld::element_traits<kvmeld::float16>;
  std::uint32_t const length = ref.length(head), dim = ref.keys.channels();
  room.keys.resize(std::size_t{length} * dim);
  room.values.resize(std::size_t{length} * dim);
  room.bias.resize(length);
  for (std::uint32_t slot = 0; slot < length;) {
    auto const k = ref.keys.locate(head, slot), v = ref.values.locate(head, slot);
    std::uint32_t const run = std::min(length - slot, k.remaining);  // to the end of the page
    for (std::uint32_t i = 0; i < run; ++i) {
      for (std::uint32_t c = 0; c < dim; ++c) {
        room.keys[std::size_t{slot + i} * dim + c] = element::to_float(k.base[i * k.token_stride + c]);
        room.values[std::size_t{slot + i} * dim + c] = element::to_float(v.base[i * v.token_stride + c]);
      }
      room.bias[slot + i] = ref.log_degree(head, slot + i);
    }
    slot += run;
  }
}

inline void attend(head_queries const& q, std::uint32_t dim, head_scratch& room) {
  auto const length = static_cast<std::uint32_t>(room.bias.size());
  float const scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (std::uint32_t row = 0; row < q.rows; ++row) {
    std::uint32_t const seen = length - (q.rows - 1 - row);
    float const* const query = q.query + std::size_t{row} * q.stride;
    room.weights.resize(seen);
    float most = -3.0e38f;
    for (std::uint32_t slot = 0; slot < seen; ++slot) {
      float const* const key = room.keys.data() + std::size_t{slot} * dim;
      float product = 0.0f;
      for (std::uint32_t c = 0; c < dim; ++c) product += query[c] * key[c];
      room.weights[slot] = product * scale + room.bias[slot];  // the log-degree bias
      most = std::max(most, room.weights[slot]);
    }
    float sum = 0.0f;
    float* const out = q.out + std::size_t{row} * q.stride;
    std::fill_n(out, dim, 0.0f);
    for (std::uint32_t slot = 0; slot < seen; ++slot) {
      float const weight = std::exp(room.weights[slot] - most);
      float const* const value = room.values.data() + std::size_t{slot} * dim;
      sum += weight;
      for (std::uint32_t c = 0; c < dim; ++c) out[c] += weight * value[c];
    }
    for (std::uint32_t c = 0; c < dim; ++c) out[c] /= sum;
    q.log_sum_exp[std::size_t{row} * q.heads] = most + std::log(sum);
  }
}

}  // namespace paged_engine
