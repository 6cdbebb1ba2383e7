// The C++ of docs/engines/*.md, block by block, so that it compiles: the test docs_snippets looks for every
// block here. What it does is tested in recipes_test.cpp and serving_test.cpp.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../examples/engines/llama_cpp/sequence_state.hpp"

namespace snippets_cases {

namespace {

using kvmeld::float16;
using kvmeld::shape;
using page = std::uint32_t const;
using count = std::int64_t const;

template <class Cache, class Keys> void serving(Cache& cache, Keys const& keys, page slot, page other_slot) {
  std::vector<std::byte> const ledger = cache.save(slot);
  std::uint32_t const pages = keys.pages_of(cache.longest(slot));
  cache.close(slot);
  (void)pages;

  cache.resume(other_slot, {ledger.data(), ledger.size()});
}

auto paged_ledger(kvmeld::shape const& extent, std::int32_t const* block_table, page blocks_per_sequence,
                  page number_of_blocks, page block_size) {
  kvmeld::cache_options options{extent};
  kvmeld::page_table<> const table = kvmeld::table_rows(block_table, blocks_per_sequence);
  options.ledger_pages = {number_of_blocks, kvmeld::dense_places(table, block_size, extent)};
  return options;
}

template <class Cache, class Reduce>
void replicas(Cache& cache, page slot, float* scores, page layers, page heads, page channels,
              Reduce all_reduce_mean) {
  std::uint32_t const columns = cache.length_bound(slot);
  cache.read_scores({slot}, scores, columns);
  all_reduce_mean(scores, layers * heads * channels * columns);
  cache.write_scores({slot}, scores, columns);
}

auto plain_c(page layers, page kv_heads, page heads, page head_dim, page seq_len, float* key_cache,
             float* value_cache, float16* half_keys, float16* half_values, page sinks, page start) {
  kvmeld::shape s{layers, 1, kv_heads, heads / kv_heads, head_dim, head_dim, seq_len};
  kvmeld::strided<float> keys(key_cache, "LSTHC", s, head_dim), values(value_cache, "LSTHC", s, head_dim);

  std::int64_t const head = std::int64_t{s.capacity} * s.key_dim, layer = head * s.kv_heads;
  kvmeld::cache_strides const groups{layer, layer, head, 16, std::int64_t{s.capacity} * 16};
  kvmeld::tiled const tile_keys(kvmeld::strided<float16>(half_keys, groups, s, s.key_dim / 16), 16);
  kvmeld::transposed<float16> const column_values(half_values, "LSHCT", s, s.value_dim);

  kvmeld::ring const ring_keys(kvmeld::strided<float16>(half_keys, "LSTHC", s, head_dim), s.capacity, sinks,
                               &start);
  return keys.channels() + values.channels() + tile_keys.channels() + column_values.channels() +
         ring_keys.channels();
}

auto hugging_face(float16* k, float16* v, shape const& s, count sequence, count head, count slot) {
  kvmeld::cache_strides const now{0, sequence, head, slot, 1};
  kvmeld::strided<float16> const keys(k, now, s, s.key_dim), values(v, now, s, s.value_dim);
  return keys.channels() + values.channels();
}

auto llama_cpp_layouts(float16* k, float16* v, float16* rows, std::int32_t const* cells_by_position,
                       kvmeld::page_strides const& strides, shape const& s) {
  kvmeld::strided<float16> const keys(k, "LSTHC", s, s.key_dim);
  kvmeld::transposed<float16> const values(v, "LSHCT", s, s.value_dim);

  kvmeld::pool_pages const cells(rows, kvmeld::table_rows(cells_by_position, s.capacity));
  kvmeld::paged const state_keys(cells, 1, strides, s, s.key_dim);
  return keys.channels() + values.channels() + state_keys.channels();
}

// As llama.h declares them.
struct llama_context;
std::size_t llama_state_seq_get_size(llama_context*, int) { return 0; }
std::size_t llama_state_seq_get_data(llama_context*, std::uint8_t*, std::size_t, int) { return 0; }
std::size_t llama_state_seq_set_data(llama_context*, std::uint8_t const*, std::size_t, int) { return 0; }

template <class policy_type>
void llama_cpp_calls(llama_context* ctx, int seq, shape const& extent, policy_type const& policy) {
  llama_cpp::sequence_shortener<float16, policy_type> shortener(extent, policy);

  std::vector<std::uint8_t> bytes(llama_state_seq_get_size(ctx, seq));
  llama_state_seq_get_data(ctx, bytes.data(), bytes.size(), seq);
  bytes = shortener.shorten(std::move(bytes), 0.2);
  llama_state_seq_set_data(ctx, bytes.data(), bytes.size(), seq);
}

auto flashinfer(float16* k, float16* v, std::int32_t const* indptr, std::int32_t const* indices,
                std::uint8_t const* shared, page pages, page P, shape const& s, page d) {
  auto const table = kvmeld::table_csr(indptr, indices);
  auto const nhd = kvmeld::dense_pages("LPTHC", pages, P, s, d);
  kvmeld::paged const keys(kvmeld::pool_pages(k, table, shared), P, nhd, s, d);
  kvmeld::paged const values(kvmeld::pool_pages(v, table, shared), P, nhd, s, d);

  auto const by_head = kvmeld::table_csr(indptr, indices, s.kv_heads);
  return keys.channels() + values.channels() + static_cast<std::uint32_t>(by_head.head_stride);
}

auto vllm(float16* pool, float16* k, float16* v, kvmeld::fp8_e4m3* codes, std::int32_t const* block_table,
          page max_blocks, std::uint8_t const* shared, page blocks, page P, page heads, page d, page x,
          shape const& s, float k_scale) {
  kvmeld::page_strides const nhd{P * heads * 2 * d, 0, 2 * d, heads * 2 * d, 1};
  auto const table = kvmeld::table_rows(block_table, max_blocks);
  kvmeld::paged const keys(kvmeld::pool_pages(pool, table, shared), P, nhd, s, d);
  kvmeld::paged const values(kvmeld::pool_pages(pool + d, table, shared), P, nhd, s, d);

  kvmeld::page_strides const key_part{heads * P * 2 * d, 0, P * 2 * d, 1, P};
  kvmeld::page_strides const value_part{heads * P * 2 * d, 0, P * 2 * d, d, 1};
  kvmeld::paged const cpu_keys(kvmeld::pool_pages(k, table), P, key_part, s, d);
  kvmeld::paged const cpu_values(kvmeld::pool_pages(k + P * d, table), P, value_part, s, d);

  kvmeld::page_strides const groups{heads * d * P, 0, d * P, x, P * x};
  kvmeld::tiled const old_keys(kvmeld::paged(kvmeld::pool_pages(k, table), P, groups, s, d / x), x);
  kvmeld::paged const old_values(kvmeld::pool_pages(v, table), P,
                                 kvmeld::dense_pages("LPHCT", blocks, P, s, d), s, d);

  kvmeld::scaled const fp8_keys(kvmeld::paged(kvmeld::pool_pages(codes, table), P, nhd, s, d), k_scale);
  return keys.channels() + values.channels() + cpu_keys.channels() + cpu_values.channels() +
         old_keys.channels() + old_values.channels() + fp8_keys.channels();
}

auto sglang(float16* k, float16* v, std::int32_t const* req_to_token, page max_context_len,
            std::uint8_t const* shared, page heads, page d, shape const& s) {
  auto const table = kvmeld::table_rows(req_to_token, max_context_len);
  kvmeld::page_strides const row{heads * d, 0, d, 0, 1};
  kvmeld::paged const keys(kvmeld::pool_pages(k, table, shared), 1, row, s, d);
  kvmeld::paged const values(kvmeld::pool_pages(v, table, shared), 1, row, s, d);
  return keys.channels() + values.channels();
}

auto tensorrt_llm(float16* pool, std::int32_t const* offsets, count most, std::uint8_t const* shared, page H,
                  page P, page d, shape const& s) {
  kvmeld::page_table<std::int32_t> const key_rows{offsets, 2 * most}, value_rows{offsets + most, 2 * most};
  kvmeld::page_strides const hnd{H * P * d, 0, P * d, d, 1};
  kvmeld::paged const keys(kvmeld::pool_pages(pool, key_rows, shared), P, hnd, s, d);
  kvmeld::paged const values(kvmeld::pool_pages(pool, value_rows, shared), P, hnd, s, d);
  return keys.channels() + values.channels();
}

auto lmdeploy(std::int32_t const* cu_block_nums, void* const* blocks, page heads, page P, page d,
              shape const& s) {
  auto const table = kvmeld::table_csr(cu_block_nums, blocks);
  std::int64_t const layer = heads * 2 * P * d;
  kvmeld::page_strides const strides{0, layer, 2 * P * d, d, 1};
  kvmeld::paged const keys(kvmeld::pointed_pages<float16>{table, 0}, P, strides, s, d);
  kvmeld::paged const values(kvmeld::pointed_pages<float16>{table, P * d * sizeof(float16)}, P, strides, s,
                             d);
  return keys.channels() + values.channels();
}

}  // namespace

TEST_CASE("the blocks of the engines' pages compile and run") {
  shape const s{1, 1, 2, 1, 16, 16, 16};
  std::vector<float16> memory(4096);
  std::vector<float> floats(4096);
  std::vector<kvmeld::fp8_e4m3> codes(4096);
  std::vector<std::int32_t> const zeros(64, 0);
  std::vector<std::uint8_t> const marks(64, 0);
  std::vector<void*> const pointers(4, memory.data());
  float16* const m = memory.data();
  std::int32_t const* const z = zeros.data();
  CHECK(plain_c(1, 2, 2, 16, 16, floats.data(), floats.data(), m, m, 2, 0) == 80);
  CHECK(hugging_face(m, m, s, 512, 256, 16) == 32);
  CHECK(llama_cpp_layouts(m, m, m, z, {32, 0, 16, 0, 1}, s) == 48);
  CHECK_THROWS(
      llama_cpp_calls(nullptr, 0, s, kvmeld::preset::streaming_llm::with_sinks()));  // an empty state
  CHECK(flashinfer(m, m, z, z, marks.data(), 1, 8, s, 16) == 33);
  CHECK(vllm(m, m, m, codes.data(), z, 2, marks.data(), 1, 8, 2, 16, 8, s, 0.5f) == 112);
  CHECK(sglang(m, m, z, 16, marks.data(), 2, 16, s) == 32);
  CHECK(tensorrt_llm(m, z, 2, marks.data(), 2, 8, 16, s) == 32);
  CHECK(lmdeploy(z, pointers.data(), 2, 8, 16, s) == 32);

  std::vector<std::int32_t> const table = {0, 1};
  auto const keys = kvmeld::paged(kvmeld::pool_pages(m, kvmeld::table_rows(table.data(), 2)), 8,
                                  {256, 0, 16, 32, 1}, s, 16);
  auto const values = kvmeld::paged(kvmeld::pool_pages(m + 1024, kvmeld::table_rows(table.data(), 2)), 8,
                                    {256, 0, 16, 32, 1}, s, 16);
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(),
                             kvmeld::kv{keys, values}, paged_ledger(s, table.data(), 2, 2, 8)};
  cache.open(0, 3);
  serving(cache, keys, 0, 0);
  CHECK(cache.longest(0) == 3);
  std::size_t reduced = 0;
  std::vector<float> scores(s.kv_heads * 3);
  replicas(cache, 0, scores.data(), s.layers, s.kv_heads, 1,
           [&](float const*, std::size_t elements) { reduced += elements; });
  CHECK(reduced == scores.size());
}

}  // namespace snippets_cases
