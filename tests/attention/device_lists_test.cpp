// Lists of sequences and queries that the host does not read: the bits of lists that it reads.
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "ragged_call.hpp"
#include "shared_cache.hpp"
#include "support/cache_bytes.hpp"
#include "support/fenced_executor.hpp"

namespace attention_lists_cases {

using namespace attention_test;
using kvmeld::device_list;
using kvmeld::head_rows;
using kvmeld::query_batch;

namespace {

constexpr std::uint32_t listed = 6, most = 4;

// Numbers of sequences, some of which are none, and counts, some of which are above the most.
struct random_lists {
  std::vector<std::uint32_t> sequences, counts;
  random_lists(support::dice& d, kvmeld::shape const& s) {
    for (std::uint32_t i = 0; i < listed; ++i) {
      sequences.push_back(d.chance(0.3) ? d.pick({s.sequences, 1000u, kvmeld::idle_sequence})
                                        : d.below(s.sequences));
      counts.push_back(d.below(most + 3));
    }
  }
  query_batch batch(std::uint32_t layer, bool counted) const {
    device_list const at{sequences.data()};
    return counted ? query_batch(layer, at, device_list{counts.data()}, listed, most)
                   : query_batch(layer, at, listed, most);
  }
};

template <class T> head_rows<T> rows_of(head_rows<T> const& all, std::uint32_t i) {
  return {all.row(i, 0, 0), all.sequence_stride, all.head_stride, all.row_stride};
}

// Attention by lists on the device, and row by row.
template <class Cache> void attends(Cache& cache, support::dice& d, std::uint32_t parts) {
  kvmeld::shape const s = cache.ref().extent();
  random_lists const lists(d, s);
  bool const counted = d.chance(0.7);
  std::uint32_t const heads = s.query_heads();
  std::vector<float> q(std::size_t{listed} * most * heads * s.key_dim), out, lse, alone, lse_alone;
  for (float& x : q) x = static_cast<float>(d.normal());
  out.assign(std::size_t{listed} * most * heads * s.value_dim, -77.0f);
  lse.assign(std::size_t{listed} * most * heads, -77.0f);
  alone = out;
  lse_alone = lse;
  auto const from = kvmeld::rows_by_token<float const>(q.data(), most, heads, s.key_dim);
  auto const to = [&](std::vector<float>& x) {
    return kvmeld::rows_by_token(x.data(), most, heads, s.value_dim);
  };
  auto const sums = [&](std::vector<float>& x) { return kvmeld::rows_by_head(x.data(), most, heads, 1); };
  std::vector<float> memory(kvmeld::attention::split_floats(s, parts, listed, most));
  // Parts of 64 entries, as many as a track can have, whatever the other tracks are.
  kvmeld::attention::split_keys const split{parts, memory, 64};
  kvmeld::attention::attend(cache.executor(), lists.batch(s.layers - 1, counted), from, cache.ref(), to(out),
                            sums(lse), {}, split);
  for (std::uint32_t i = 0; i < listed; ++i) {
    if (lists.sequences[i] >= s.sequences) continue;
    std::uint32_t const n = counted ? std::min(lists.counts[i], most) : most;
    kvmeld::attention::attend(cache.executor(), query_batch(s.layers - 1, lists.sequences[i], n),
                              rows_of(from, i), cache.ref(), rows_of(to(alone), i),
                              rows_of(sums(lse_alone), i), {}, split);
  }
  CHECK(out == alone);
  CHECK(lse == lse_alone);
}

kvmeld::shape some_shape(support::dice& d) {
  return {2, 3, d.between(1, 2), d.between(1, 3), d.between(1, 20), d.between(1, 20), d.between(10, 150)};
}

// The same policy, shown attention by lists that the host reads and by lists that it does not.
template <class Policy>
void observes(Policy const& policy, std::uint64_t seed, kvmeld::cache_options const& options = {}) {
  support::dice d(seed);
  kvmeld::shape const s = some_shape(d);
  support::engine_memory<float> memory(s);
  auto told = support::make_cache(memory, policy, options),
       read = support::make_cache(memory, policy, options);
  for (std::uint32_t sequence = 0; sequence < 3; ++sequence) {
    memory.fill_sequence(d, sequence, 0, 10, support::texture::clusters);
    told.open(sequence, 10);
    read.open(sequence, 10);
  }
  std::uint32_t const heads = s.query_heads();
  std::vector<float> q(3 * most * heads * s.key_dim), lse(3 * most * heads, 2.0f);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const from = kvmeld::rows_by_token<float const>(q.data(), most, heads, s.key_dim);
  auto const sums = kvmeld::rows_by_head<float const>(lse.data(), most, heads, 1);
  std::vector<std::uint32_t> const sequences{2, kvmeld::idle_sequence, 0}, counts{3, 2, 9};
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    told.observe({layer, {2}, {3}}, from, sums);
    told.observe({layer, {0}, {most}}, rows_of(from, 2), rows_of(sums, 2));
    read.observe({layer, device_list{sequences.data()}, device_list{counts.data()}, 3, most}, from, sums);
  }
  CHECK(support::ledger_bytes(told) == support::ledger_bytes(read));
}

}  // namespace

TEST_CASE("attention by lists on the device is attention by lists") {
  support::dice d(261);
  for (int i = 0; i < 60; ++i) {
    kvmeld::shape const s = some_shape(d);
    ragged_cache<float> plain(s, d);
    attends(plain.cache, d, d.pick({1u, 3u}));
    shared_cache<float> shared(s, d, 50, 0);
    attends(shared.cache, d, d.pick({1u, 3u}));
  }
}

TEST_CASE("what is observed by lists on the device is what is observed by lists") {
  for (std::uint64_t seed = 262; seed < 272; ++seed) {
    observes(kvmeld::preset::h2o::defaults(), seed);
    observes(kvmeld::preset::snapkv::with_window(3), seed);
    observes(kvmeld::preset::ems::shared(), seed, with_members(20));
    observes(kvmeld::preset::leverage_dropkv::for_budget(), seed);
    observes(kvmeld::preset::expected_attention::with_rope({}), seed);
    observes(kvmeld::preset::compactor::with_rope({}), seed);
  }
}

TEST_CASE("the host takes sequences that it cannot read for observed") {
  kvmeld::shape const s{1, 2, 1, 1, 4, 4, 40};
  support::engine_memory<float> memory(s);
  auto const policy = kvmeld::preset::h2o::defaults();
  kvmeld::merged_cache cache{support::fenced_executor(), policy, memory.tensors(), kvmeld::cache_options{s}};
  for (std::uint32_t sequence : {0u, 1u}) cache.open(sequence, 30);
  std::vector<float> const q(4, 0.5f), lse(1, 4.0f);
  std::vector<std::uint32_t> const numbers{1};
  auto const place = cache.executor().allocate(sizeof(std::uint32_t));
  cache.executor().upload(place.data(), numbers.data(), sizeof(std::uint32_t));
  auto const compress = [&] { cache.compress({1}, kvmeld::budget::entries(20)); };
  cache_test::check_text(cache_test::refusal_of(compress), {"number of observed rows"});
  cache.observe({0, device_list{static_cast<std::uint32_t const*>(place.data())}, 1, 1},
                kvmeld::rows_by_token(q.data(), 1, 1, 4), kvmeld::rows_by_head(lse.data(), 1, 1, 1));
  CHECK(cache_test::refusal_of(compress) == "");
  cache.sync_lengths(1);
  CHECK(cache.length_bound(1) == 20);
  cache.close(1);  // a graph may observe what is opened after it was captured
  cache.open(1, 30);
  CHECK(cache_test::refusal_of(compress) == "");
}

TEST_CASE("what lists on the device are refused for") {
  kvmeld::shape const s{1, 2, 1, 1, 4, 4, 40};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  cache.open(0, 30);
  std::vector<float> const q(4, 0.5f);
  std::vector<float> out(4), lse(1);
  std::uint32_t const number = 0;
  std::uint32_t const* const nothing = nullptr;
  auto const refusal = [&](query_batch const& batch, float const* queries) {
    return cache_test::refusal_of([&] {
      kvmeld::attention::attend(cache.executor(), batch, kvmeld::rows_by_token(queries, 1, 1, 4), cache.ref(),
                                kvmeld::rows_by_token(out.data(), 1, 1, 4));
    });
  };
  CHECK(refusal({0, device_list{nothing}, 1, 1}, q.data()) ==
        "attention::attend: sequences.data is null; it must be an array of 1");
  CHECK(refusal({0, device_list{nothing}, 0, 1}, q.data()) == "");
  CHECK(refusal({1, device_list{&number}, 1, 1}, q.data()) ==
        "attention::attend: layer is 1; it must be 0 to 0");
  cache_test::check_text(refusal({0, device_list{&number}, 1, 0xffffffffu}, q.data()),
                         {"most queries of a sequence is 4294967295; it must be at most "});
  cache_test::check_text(refusal({0, device_list{&number}, 1, 1}, nullptr), {"query.data is null"});
  auto const unseen = cache_test::refusal_of([&] {
    cache.observe({0, device_list{&number}, 1, 1}, kvmeld::rows_by_token<float const>(nullptr, 1, 1, 4),
                  kvmeld::rows_by_head<float const>(lse.data(), 1, 1, 1));
  });
  CHECK(unseen == "observe: query.data is null; it must be the rows of the attention that is observed");
}

}  // namespace attention_lists_cases
