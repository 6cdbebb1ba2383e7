// The life of life.h with merged_cache: policies fixed at compile time, dense tensors.
#include "life.h"

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

kvmeld::shape const extent{LAYERS, SEQUENCES, KV_HEADS, GROUP, KEY_DIM, VALUE_DIM, CAPACITY};

template <class T> std::uint32_t bits_of(T const& x) {
  if constexpr (sizeof(T) == 4) {
    std::uint32_t out;
    std::memcpy(&out, &x, 4);
    return out;
  } else {
    std::uint16_t out;
    std::memcpy(&out, &x, 2);
    return out;
  }
}
template <class T> T element_of(float x) { return kvmeld::element_traits<T>::from_float(x); }

/// An engine with dense tensors, [layer][sequence][head][slot][channel].
template <class T, class Policy> struct engine {
  std::vector<T> keys = std::vector<T>(extent.slots() * KEY_DIM);
  std::vector<T> values = std::vector<T>(extent.slots() * VALUE_DIM);
  kvmeld::merged_cache<kvmeld::host_executor, Policy, kvmeld::strided<T>, kvmeld::strided<T>> cache;

  explicit engine(Policy const& policy)
      : cache(kvmeld::host_executor(1), policy,
              kvmeld::kv{kvmeld::strided<T>(keys.data(), "LSHTC", extent, KEY_DIM),
                         kvmeld::strided<T>(values.data(), "LSHTC", extent, VALUE_DIM)},
              kvmeld::cache_options{extent}) {}

  std::size_t row(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head, std::uint32_t slot) const {
    return ((std::size_t{layer} * SEQUENCES + sequence) * KV_HEADS + head) * CAPACITY + slot;
  }
  template <class F> void each_track(F f) {
    for (std::uint32_t layer = 0; layer < LAYERS; ++layer) {
      for (std::uint32_t head = 0; head < KV_HEADS; ++head) f(layer, head);
    }
  }
  /// Writes the rows of `count` tokens from `first` on, which lie in the last slots of each track.
  void write(std::uint32_t sequence, std::uint32_t first, std::uint32_t count) {
    each_track([&](std::uint32_t layer, std::uint32_t head) {
      std::uint32_t const slot = cache.length(layer, sequence, head) - count;
      for (std::uint32_t i = 0; i < count; ++i) {
        std::size_t const at = row(layer, sequence, head, slot + i);
        for (std::uint32_t c = 0; c < KEY_DIM; ++c)
          keys[at * KEY_DIM + c] = element_of<T>(key_at(layer, head, first + i, c));
        for (std::uint32_t c = 0; c < VALUE_DIM; ++c)
          values[at * VALUE_DIM + c] = element_of<T>(value_at(layer, head, first + i, c));
      }
    });
  }
  std::vector<T> queries(std::uint32_t layer, std::uint32_t tokens, std::uint32_t n) const {
    std::vector<T> out;
    for (std::uint32_t head = 0; head < QUERY_HEADS; ++head) {
      for (std::uint32_t i = 0; i < n; ++i) {
        for (std::uint32_t c = 0; c < KEY_DIM; ++c)
          out.push_back(element_of<T>(query_at(layer, head, tokens - n + i, c)));
      }
    }
    return out;
  }
  void observe(int policy, std::uint32_t sequence, std::uint32_t n) {
    for (std::uint32_t layer = 0; layer < LAYERS; ++layer) {
      if (policy == LIFE_H2O) {
        std::vector<float> rows;
        for (std::uint32_t head = 0; head < QUERY_HEADS; ++head) {
          for (std::uint32_t i = 0; i < n; ++i) {
            for (std::uint32_t s = 0; s < CAPACITY; ++s) rows.push_back(probability_at(layer, head, i, s));
          }
        }
        cache.observe_rows({layer, sequence, n}, kvmeld::rows_by_head(rows.data(), n, QUERY_HEADS, CAPACITY));
        continue;
      }
      std::vector<T> const q = queries(layer, cache.tokens(sequence), n);
      std::vector<float> out(std::size_t{QUERY_HEADS} * n * VALUE_DIM), lse(std::size_t{QUERY_HEADS} * n);
      auto const rows = kvmeld::rows_by_head(q.data(), n, QUERY_HEADS, KEY_DIM);
      auto const sums = kvmeld::rows_by_head(lse.data(), n, QUERY_HEADS, 1);
      kvmeld::attention::attend(cache.executor(), {layer, sequence, n}, rows, cache.ref(),
                                kvmeld::rows_by_head(out.data(), n, QUERY_HEADS, VALUE_DIM), sums);
      kvmeld::log_sums<float> const given(sums);
      cache.observe({layer, sequence, n}, rows, given);
    }
  }
  void set_scores(std::uint32_t sequence) {
    if constexpr (std::is_same_v<typename Policy::score_type, kvmeld::score::given>) {
      for (std::uint32_t layer = 0; layer < LAYERS; ++layer) {
        std::vector<float> scores;
        for (std::uint32_t head = 0; head < KV_HEADS; ++head) {
          for (std::uint32_t s = 0; s < CAPACITY; ++s) scores.push_back(score_at(layer, head, s));
        }
        cache.set_scores(layer, {sequence}, kvmeld::rows_by_head(scores.data(), 1, KV_HEADS, CAPACITY));
      }
    } else {
      (void)sequence;
    }
  }
  void look(std::uint32_t sequence, std::uint32_t n, checkpoint& out) {
    out.tokens = cache.tokens(sequence);
    out.longest = cache.longest(sequence);
    out.warnings = cache.warnings(sequence);
    auto const ref = cache.ref();
    each_track([&](std::uint32_t layer, std::uint32_t head) {
      kvmeld::track const where = ref.where(layer, sequence, head);
      std::uint32_t const length = ref.length(where);
      out.lengths[layer][head] = length;
      for (std::uint32_t s = 0; s < CAPACITY; ++s) {
        float const bias = s < length ? ref.log_degree(where, s) : kvmeld::element_traits<float>::lowest;
        for (std::uint32_t g = 0; g < GROUP; ++g) out.log_degrees[layer][head * GROUP + g][s] = bias;
        if (s >= length) continue;
        out.degrees[layer][head][s] = cache.ledger().degree[cache.ledger().at(where, s)];
        out.positions[layer][head][s] = cache.ledger().position[cache.ledger().at(where, s)];
        std::size_t const at = row(layer, sequence, head, s);
        for (std::uint32_t c = 0; c < KEY_DIM; ++c)
          out.keys[layer][head][s][c] = bits_of(keys[at * KEY_DIM + c]);
        for (std::uint32_t c = 0; c < VALUE_DIM; ++c)
          out.values[layer][head][s][c] = bits_of(values[at * VALUE_DIM + c]);
      }
    });
    for (std::uint32_t layer = 0; layer < LAYERS; ++layer) {
      std::vector<T> const q = queries(layer, out.tokens, n);
      kvmeld::head_rows<float> const o{out.outputs[layer][0][0], 0, QUERIES * VALUE_DIM, VALUE_DIM};
      kvmeld::head_rows<float> const lse{out.log_sums[layer][0], 0, QUERIES, 1};
      kvmeld::attention::attend(cache.executor(), {layer, sequence, n},
                                kvmeld::rows_by_head(q.data(), n, QUERY_HEADS, KEY_DIM), ref, o, lse);
    }
  }
};

template <class T, class Policy> void live(Policy const& policy, int kind, checkpoint* out) {
  engine<T, Policy> e(policy);
  auto& cache = e.cache;
  cache.open(0, 200, FROZEN);
  e.write(0, 0, 200);
  e.observe(kind, 0, QUERIES);
  e.set_scores(0);
  cache.compress({0}, kvmeld::budget::ratio(0.25));
  e.look(0, 1, out[0]);

  cache.append({0}, {6});
  e.write(0, 200, 6);
  cache.commit({0}, {4});
  e.observe(kind, 0, 4);
  e.set_scores(0);
  cache.compress({0}, kvmeld::budget::entries(40), kvmeld::shortfall::keep);
  e.look(0, 1, out[1]);

  cache.fork(0, 1);
  cache.append({1}, {3});
  e.write(1, 204, 3);
  cache.commit({1}, {3});
  cache.truncate(1, 205);
  e.look(1, 1, out[2]);

  std::vector<std::byte> const saved = cache.save(1);
  cache.resume(2, {saved.data(), saved.size()});
  e.each_track([&](std::uint32_t layer, std::uint32_t head) {
    std::size_t const from = e.row(layer, 1, head, 0), to = e.row(layer, 2, head, 0);
    std::copy_n(&e.keys[from * KEY_DIM], std::size_t{CAPACITY} * KEY_DIM, &e.keys[to * KEY_DIM]);
    std::copy_n(&e.values[from * VALUE_DIM], std::size_t{CAPACITY} * VALUE_DIM, &e.values[to * VALUE_DIM]);
  });
  e.look(2, 1, out[3]);

  e.observe(kind, 2, 1);
  e.set_scores(2);
  cache.compress({1, 2}, kvmeld::budget::entries(24));
  e.look(2, 1, out[4]);

  float const frequencies[] = {1.0f, 0.03125f};
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::interleaved;
  rope.rotary_dim = 4;
  rope.frequencies = frequencies;
  cache.renumber(2, rope);
  e.look(2, 1, out[5]);

  cache.shift(2, 9, rope, 2);
  e.look(2, 1, out[6]);

  cache.drop_positions(2, 15, 22);
  e.look(2, 1, out[7]);
}

template <class T> void live_as(int policy, checkpoint* out) {
  using namespace kvmeld;
  auto const chelsea =
      preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25), quantity::at_most(64, 1.0 / 3));
  if constexpr (std::is_same_v<T, float>) {
    if (policy == LIFE_LEVERAGE_DROPKV) return live<T>(preset::leverage_dropkv::for_budget(), policy, out);
    if (policy == LIFE_H2O) return live<T>(preset::h2o::defaults(), policy, out);
    if (policy == LIFE_KVZAP) return live<T>(preset::kvzap::with_threshold(0.25f), policy, out);
    if (policy == LIFE_PARTS) {
      kvmeld::policy parts{
          score::key_difference{},
          select::top{quantity::entries(2), quantity::of_budget(0.25), quantity::of_budget(0.25)},
          identify::chunked_bipartite<admit::top_share>{64}, merge::degree_weighted{}};
      return live<T>(parts, policy, out);
    }
  }
  if (policy == LIFE_CHELSEA) return live<T>(chelsea, policy, out);
  live<T>(preset::snapkv::with_window(16), policy, out);
}

}  // namespace

extern "C" {

void expected_life(int policy, kvmeld_element element, checkpoint out[CHECKPOINTS]) {
  std::memset(out, 0, sizeof(checkpoint) * CHECKPOINTS);
  if (element == KVMELD_FLOAT16) return live_as<kvmeld::float16>(policy, out);
  if (element == KVMELD_BFLOAT16) return live_as<kvmeld::bfloat16>(policy, out);
  live_as<float>(policy, out);
}

void write_element(kvmeld_element element, float x, void* to) {
  auto const write = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  if (element == KVMELD_FLOAT16) return write(element_of<kvmeld::float16>(x));
  if (element == KVMELD_BFLOAT16) return write(element_of<kvmeld::bfloat16>(x));
  write(x);
}

uint32_t bits_of_element(kvmeld_element element, void const* from) {
  std::uint32_t out = 0;
  std::memcpy(&out, from, element == KVMELD_FLOAT32 ? 4 : 2);
  return out;
}

}  // extern "C"
