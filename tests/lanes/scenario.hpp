// One life of a small cache: prompt, attention, compression, more tokens, compression again. Whatever
// executor runs it, the same bytes have to come out.
#pragma once

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace lanes_test {

struct result {
  support::byte_list keys, values, ledger, attention;
  std::vector<std::uint32_t> lengths;
};

inline bool operator==(result const& a, result const& b) {
  return a.keys == b.keys && a.values == b.values && a.ledger == b.ledger && a.attention == b.attention &&
         a.lengths == b.lengths;
}

// Lengths of the two sequences' prompts, and what they are compressed to.
struct sizes_of_life {
  kvmeld::shape extent;
  std::uint32_t first, second, budget, last_budget;
  kvmeld::budget_scope over = kvmeld::budget_scope::head;  // which tracks share their budgets
};
inline constexpr sizes_of_life short_life{{1, 2, 2, 2, 20, 19, 64}, 51, 44, 24, 20};
inline constexpr sizes_of_life long_life{
    {1, 2, 1, 1, 17, 18, 600}, 560, 44, 200, 150};  // several tiles per track

// Keys in float, row by row; values in half, along tokens.
struct row_keys {
  using key_type = float;
  using value_type = kvmeld::float16;
  static auto view(float* k, kvmeld::float16* v, kvmeld::shape const& s) {
    return kvmeld::kv{kvmeld::strided<float>(k, "LSHTC", s, s.key_dim),
                      kvmeld::transposed<kvmeld::float16>(v, "LSHCT", s, s.value_dim)};
  }
};

// Keys in bfloat16 along tokens; values in float with heads innermost of the tokens.
struct token_keys {
  using key_type = kvmeld::bfloat16;
  using value_type = float;
  static auto view(kvmeld::bfloat16* k, float* v, kvmeld::shape const& s) {
    return kvmeld::kv{kvmeld::transposed<kvmeld::bfloat16>(k, "LSHCT", s, s.key_dim),
                      kvmeld::strided<float>(v, "LSTHC", s, s.value_dim)};
  }
};

template <class Storage> class world {
public:
  explicit world(kvmeld::shape const& s)
      : extent(s), keys(s.slots() * s.key_dim), values(s.slots() * s.value_dim) {}

  auto tensors() { return Storage::view(keys.data(), values.data(), extent); }

  void write(support::dice& d, std::uint32_t sequence, std::uint32_t first, std::uint32_t n) {
    auto const x = tensors();
    support::for_tracks(extent, sequence, [&](kvmeld::track t) {
      auto const k = support::random_rows(d, n, extent.key_dim, support::texture::walk);
      auto const v = support::random_rows(d, n, extent.value_dim, support::texture::noise);
      for (std::uint32_t i = 0; i < n; ++i) {
        support::put_row(x.keys, t, first + i, k[i]);
        support::put_row(x.values, t, first + i, v[i]);
      }
    });
  }
  void poison(std::uint32_t sequence, std::uint32_t head, std::uint32_t slot) {
    kvmeld::track const t = kvmeld::make_track(extent, 0, sequence, head);
    std::vector<float> row(extent.key_dim, 1.0f);
    row[extent.key_dim / 2] = kvmeld::bits_float(0x7fc00000u);
    support::put_row(tensors().keys, t, slot, row);
  }

  kvmeld::shape extent;
  std::vector<typename Storage::key_type> keys;
  std::vector<typename Storage::value_type> values;
};

// Attention of the last `counts` tokens, whose log-sum-exps feed the score; the outputs are part of the
// result.
template <class Cache>
void observe(Cache& cache, support::dice& d, std::vector<std::uint32_t> const& sequences,
             std::vector<std::uint32_t> const& counts, support::byte_list& outputs) {
  kvmeld::shape const& s = cache.options().extent;
  std::uint32_t most = 0;
  for (std::uint32_t n : counts) most = kvmeld::max_of(most, n);
  std::size_t const rows = sequences.size() * most * s.query_heads();
  std::vector<float> q(rows * s.key_dim), out(rows * s.value_dim), lse(rows);
  for (float& x : q) x = static_cast<float>(d.normal());
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    kvmeld::query_batch const batch{layer, sequences, counts};
    auto const queries = kvmeld::rows_by_token<float const>(q.data(), most, s.query_heads(), s.key_dim);
    kvmeld::attention_params params;
    params.softcap = layer == 0 ? 0.0f : 4.0f;
    kvmeld::attention::attend(cache.executor(), batch, queries, cache.ref(),
                              kvmeld::rows_by_token(out.data(), most, s.query_heads(), s.value_dim),
                              kvmeld::rows_by_head(lse.data(), most, s.query_heads(), 1), params);
    cache.observe(batch, queries, kvmeld::rows_by_head<float const>(lse.data(), most, s.query_heads(), 1),
                  params);
    for (auto const& part : {support::bytes_of(out), support::bytes_of(lse)})
      outputs.insert(outputs.end(), part.begin(), part.end());
  }
}

template <class Storage, class Executor, class Policy>
result play(Executor executor, Policy const& policy, kvmeld::shortfall fallback, sizes_of_life const& life) {
  kvmeld::shape const s = life.extent;
  std::uint32_t const last_head = s.kv_heads - 1;
  support::dice d(7);
  world<Storage> w(s);
  result r;
  kvmeld::cache_options options{};
  options.extent = s;
  options.wave_tracks = 3;
  options.budgets_over = life.over;
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? 2 * life.budget : 0;
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
  w.write(d, 0, 0, life.first);
  w.write(d, 1, 0, life.second);
  w.poison(0, last_head, 20);
  w.poison(0, last_head, 21);
  cache.open(0, life.first, 4, kvmeld::sequence_id{0});
  cache.open(1, life.second, 0, kvmeld::sequence_id{1});
  observe(cache, d, {0, 1}, {17, 9}, r.attention);
  cache.compress({0, 1}, kvmeld::budget::entries(life.budget).over(life.over), fallback);
  w.write(d, 1, cache.longest(1), 9);
  cache.append({1}, {9});
  cache.commit({1}, {7});
  observe(cache, d, {1}, {3}, r.attention);
  cache.compress({1, 0}, kvmeld::budget::entries(life.last_budget).over(life.over), fallback);
  r.keys = support::bytes_of(w.keys);
  r.values = support::bytes_of(w.values);
  r.ledger = support::ledger_bytes(cache);
  support::for_tracks(s, 0, [&](kvmeld::track t) { r.lengths.push_back(cache.ref().length(t)); });
  support::for_tracks(s, 1, [&](kvmeld::track t) { r.lengths.push_back(cache.ref().length(t)); });
  return r;
}

// Equal to the host on 1, 2, 5 and 8 lanes; with several teams at once; with tiles from the last to the
// first.
template <class Storage, class Policy>
void same_on_all_lanes(char const* name, Policy const& policy,
                       kvmeld::shortfall fallback = kvmeld::shortfall::keep,
                       sizes_of_life const& life = short_life) {
  CAPTURE(std::string(name));
  result const host = play<Storage>(kvmeld::host_executor(1, kvmeld::tuning::off), policy, fallback, life);
  bool shrunk = false;
  for (std::uint32_t n : host.lengths) shrunk = shrunk || n + 10 < life.first;
  CHECK(shrunk);
  for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == play<Storage>(kvmeld::testing::lane_executor(lanes), policy, fallback, life));
  }
  using kvmeld::testing::tile_order;
  CHECK(host ==
        play<Storage>(kvmeld::testing::lane_executor(2, 3, tile_order::descending), policy, fallback, life));
}

}  // namespace lanes_test
