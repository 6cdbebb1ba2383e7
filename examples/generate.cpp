// A decode loop: every token's entry is appended, attention adds log degrees to its logits, and the cache
// shrinks when it has grown by 64 entries. Attention is kvmeld's, and beside it a kernel of the engine's own
// with the bias written out.
#include "all_printed.h"
#include "support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

// The engine's own attention of one query and one head: plain loops, and a bias that somebody gives it.
std::vector<float> own_attention(examples::engine_tensors& engine, kvmeld::track head, std::uint32_t length,
                                 float const* q, float const* bias) {
  std::uint32_t const d = engine.extent.key_dim;
  float const scale = 1 / std::sqrt(static_cast<float>(d));
  std::vector<float> weights(length), out(d);
  float highest = bias[0] - 1e30f, sum = 0;
  for (std::uint32_t slot = 0; slot < length; ++slot) {
    float const* const key = engine.keys().locate(head, slot).base;
    float dot = 0;
    for (std::uint32_t c = 0; c < d; ++c) dot += q[c] * key[c];
    weights[slot] = scale * dot + bias[slot];
    highest = std::max(highest, weights[slot]);
  }
  for (float& w : weights) sum += w = std::exp(w - highest);
  for (std::uint32_t slot = 0; slot < length; ++slot) {
    float const* const value = engine.values().locate(head, slot).base;
    for (std::uint32_t c = 0; c < d; ++c) out[c] += weights[slot] / sum * value[c];
  }
  return out;
}

int main() {
  using namespace kvmeld;
  examples::engine_tensors engine({1, 1, 2, 2, 64, 64, 600});
  shape const& extent = engine.extent;
  merged_cache cache{host_executor{1}, preset::chelsea::llama3(), kv{engine.keys(), engine.values()},
                     cache_options{extent}};
  cache.open(0, 500);
  std::uint32_t const heads = extent.query_heads(), d = extent.key_dim;
  std::vector<float> q(heads * d), out(heads * d), bias(extent.kv_heads * extent.capacity);
  float furthest = 0;
  for (std::uint32_t token = 0; token < 200; ++token) {
    trigger const full{256, 64};  // compress at 320 entries, down to 256
    if (cache.due(0, full)) cache.compress({0}, budget::entries(full.limit));

    cache.append({0}, {1});  // a row more in every track, behind its last entry: the engine writes it
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      slot_t const last = cache.length(0, 0, head) - 1;
      for (strided<float> const& rows : {engine.keys(), engine.values()}) {
        float* const row = rows.locate(cache.ref().where(0, 0, head), last).base;
        for (std::uint32_t c = 0; c < d; ++c) row[c] = uniform01({7, 0, 0, token, head * d + c}) - 0.5f;
      }
    }
    cache.commit({0}, {1});

    for (std::uint32_t i = 0; i < q.size(); ++i) q[i] = 2 * uniform01({3, 0, 0, token, i}) - 1;
    attention::attend(cache.executor(), {0, 0, 1}, rows_by_token(q.data(), 1, heads, d), cache.ref(),
                      rows_by_token(out.data(), 1, heads, d));

    attention::write_log_degree(cache.executor(), cache.ref(), 0, {0},
                                rows_by_head(bias.data(), 1, extent.kv_heads, extent.capacity));
    for (std::uint32_t head = 0; head < heads; ++head) {
      track const t = cache.ref().where(0, 0, head / extent.queries_per_kv_head);
      std::vector<float> const own = own_attention(engine, t, cache.ref().length(t), q.data() + head * d,
                                                   bias.data() + t.kv_head * extent.capacity);
      for (std::uint32_t c = 0; c < d; ++c)
        furthest = std::max(furthest, std::abs(own[c] - out[head * d + c]));
    }
  }
  std::cout << cache.tokens(0) << " tokens in " << cache.longest(0)
            << " entries per head; the two attentions differ by " << furthest << " at most\n";
  return cache.tokens(0) == 700 && cache.longest(0) < 320 && furthest < 1e-5f && all_printed() ? 0 : 1;
}
