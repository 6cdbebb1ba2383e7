// The layouts of docs/engines/*.md over memory as each engine lays it out. Where an element lies is said
// twice: by the recipe, and here in the engine's own arithmetic; the rows that a compression leaves must be
// where the engine looks.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "../examples/engines/llama_cpp/sequence_state.hpp"
#include "support/random_cache.hpp"

namespace {

using kvmeld::float16;
using idx = std::size_t;

auto const policy = kvmeld::preset::chelsea::with_schedule({0.4, 0.05, 3, 0.05}, kvmeld::quantity::entries(2),
                                                           kvmeld::quantity::entries(4));
constexpr std::uint32_t kept = 20;

// Bits of an element.
template <class T> std::uint32_t bits(T const& x) {
  std::uint32_t out = 0;
  std::memcpy(&out, &x, sizeof x);
  return out;
}

// Fills sequences of these lengths through `key(layer, sequence, head, token, channel)` and `value(..)`,
// which return T&, compresses them, and reads what is left through the same. Beside it the same rows in a
// plain tensor: lengths, degrees and bits must agree, and what belongs to no sequence must stay as it was.
template <class T, class Keys, class Values, class Key, class Value>
void serves(kvmeld::shape const& s, Keys const& keys, Values const& values,
            std::vector<std::vector<T>*> memory, std::vector<std::uint32_t> const& lengths, Key key,
            Value value) {
  using traits = kvmeld::element_traits<T>;
  support::dice d(17);
  std::vector<T> plain_keys(s.slots() * s.key_dim), plain_values(s.slots() * s.value_dim);
  kvmeld::strided<T> const pk(plain_keys.data(), "LSHTC", s, s.key_dim),
      pv(plain_values.data(), "LSHTC", s, s.value_dim);
  T const canary = traits::from_float(-7.5f);
  for (std::vector<T>* m : memory) m->assign(m->size(), canary);
  std::size_t written = 0;
  auto const each = [&](auto f) {
    for (std::uint32_t layer = 0; layer < s.layers; ++layer)
      for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence)
        for (std::uint32_t head = 0; head < s.kv_heads; ++head)
          f(kvmeld::make_track(s, layer, sequence, head));
  };
  auto const write = [&](T& engine, T& plain, std::uint32_t token, std::uint32_t channel) {
    REQUIRE(bits(engine) == bits(canary));  // elements do not share memory
    float const base = static_cast<float>((token / 4 * 5 + channel) % 7) - 3.25f;
    engine = plain = traits::from_float(base + 0.125f * static_cast<float>(d.normal()));
    ++written;
  };
  each([&](kvmeld::track t) {
    for (std::uint32_t token = 0; token < lengths[t.sequence]; ++token) {
      for (std::uint32_t c = 0; c < s.key_dim; ++c)
        write(key(t.layer, t.sequence, t.kv_head, token, c), pk.locate(t, token).base[c], token, c);
      for (std::uint32_t c = 0; c < s.value_dim; ++c)
        write(value(t.layer, t.sequence, t.kv_head, token, c), pv.locate(t, token).base[c], token, c);
    }
  });
  std::size_t untouched = 0;
  for (std::vector<T>* m : memory) untouched += m->size();
  untouched -= written;

  kvmeld::cache_options const options{s};
  kvmeld::merged_cache engine{kvmeld::host_executor(1), policy, kvmeld::kv{keys, values}, options};
  kvmeld::merged_cache plain{kvmeld::host_executor(1), policy, kvmeld::kv{pk, pv}, options};
  for (std::uint32_t slot = 0; slot < s.sequences; ++slot) {
    engine.open(slot, lengths[slot]);
    plain.open(slot, lengths[slot]);
    engine.compress({slot}, kvmeld::budget::entries(kept));
    plain.compress({slot}, kvmeld::budget::entries(kept));
  }
  std::size_t different = 0;
  each([&](kvmeld::track t) {
    std::uint32_t const length = engine.ref().length(t);
    CHECK(length == kvmeld::min_of(kept, lengths[t.sequence]));
    REQUIRE(length == plain.ref().length(t));
    for (std::uint32_t slot = 0; slot < length; ++slot) {
      different += engine.ref().degree(t, slot) != plain.ref().degree(t, slot);
      different += engine.ref().position(t, slot) != plain.ref().position(t, slot);
      for (std::uint32_t c = 0; c < s.key_dim; ++c)
        different += bits(key(t.layer, t.sequence, t.kv_head, slot, c)) != bits(pk.locate(t, slot).base[c]);
      for (std::uint32_t c = 0; c < s.value_dim; ++c)
        different += bits(value(t.layer, t.sequence, t.kv_head, slot, c)) != bits(pv.locate(t, slot).base[c]);
    }
  });
  CHECK(different == 0);
  std::size_t nobodys = 0;
  for (std::vector<T>* m : memory)
    for (T const& x : *m) nobodys += bits(x) == bits(canary);
  CHECK(nobodys == untouched);
}

}  // namespace

TEST_CASE("llama2.c: [layer][token][head x channel], floats") {
  kvmeld::shape const s{2, 1, 3, 2, 16, 16, 60};
  std::uint32_t const seq_len = 60, kv_dim = 3 * 16;
  std::vector<float> key_cache(2 * seq_len * kv_dim), value_cache(key_cache.size());
  // recipe
  kvmeld::strided<float> const keys(key_cache.data(), "LSTHC", s, s.key_dim);
  kvmeld::strided<float> const values(value_cache.data(), "LSTHC", s, s.value_dim);
  //
  auto const at = [&](std::vector<float>& x) {
    return [&](idx l, idx, idx h, idx t, idx c) -> float& {
      return x[l * seq_len * kv_dim + t * kv_dim + h * 16 + c];
    };
  };
  serves<float>(s, keys, values, {&key_cache, &value_cache}, {55}, at(key_cache), at(value_cache));
}

TEST_CASE("calm on CUDA: keys in tiles of 16 channels, values transposed") {
  kvmeld::shape const s{2, 1, 2, 2, 32, 32, 52};
  idx const seq_len = 52, kv_dim = 2 * 32;
  std::vector<float16> key_cache(2 * seq_len * kv_dim), value_cache(key_cache.size());
  // recipe
  std::int64_t const head = std::int64_t{s.capacity} * s.key_dim, layer = head * s.kv_heads;
  kvmeld::cache_strides const groups{layer, layer, head, 16, std::int64_t{s.capacity} * 16};
  kvmeld::tiled const keys(kvmeld::strided<float16>(key_cache.data(), groups, s, s.key_dim / 16), 16);
  kvmeld::transposed<float16> const values(value_cache.data(), "LSHCT", s, s.value_dim);
  //
  auto const key = [&](idx l, idx, idx h, idx t, idx c) -> float16& {
    return key_cache[l * seq_len * kv_dim + h * 32 * seq_len + c / 16 * seq_len * 16 + t * 16 + c % 16];
  };
  auto const value = [&](idx l, idx, idx h, idx t, idx c) -> float16& {
    return value_cache[l * seq_len * kv_dim + (h * 32 + c) * seq_len + t];
  };
  serves<float16>(s, keys, values, {&key_cache, &value_cache}, {49}, key, value);
}

TEST_CASE("calm past its context: a ring behind two sinks") {
  kvmeld::shape const s{1, 1, 2, 1, 16, 16, 48};
  std::vector<float16> key_cache(48 * 2 * 16), value_cache(key_cache.size());
  std::uint32_t const sinks = 2, start = 13;
  // recipe
  auto const in_ring = [&](std::vector<float16>& x) {
    return kvmeld::ring(kvmeld::strided<float16>(x.data(), "LSTHC", s, 16), s.capacity, sinks, &start);
  };
  //
  auto const at = [&](std::vector<float16>& x) {
    return [&](idx, idx, idx h, idx t, idx c) -> float16& {
      idx const place = t < sinks ? t : sinks + (t - sinks + start) % (48 - sinks);
      return x[place * 2 * 16 + h * 16 + c];
    };
  };
  serves<float16>(s, in_ring(key_cache), in_ring(value_cache), {&key_cache, &value_cache}, {48},
                  at(key_cache), at(value_cache));
}

TEST_CASE("Hugging Face DynamicCache, one layer: [batch][head][tokens so far][channel]") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 100};  // room for more than the tensor has now
  idx const tokens = 57;
  std::vector<float16> k(2 * 3 * tokens * 16), v(k.size());
  // recipe
  auto const stride = [](auto x) { return static_cast<std::int64_t>(x); };
  kvmeld::cache_strides const now{0, stride(3 * tokens * 16), stride(tokens * 16), 16, 1};  // tensor.stride()
  kvmeld::strided<float16> const keys(k.data(), now, s, s.key_dim), values(v.data(), now, s, s.value_dim);
  //
  auto const at = [&](std::vector<float16>& x) {
    return
        [&](idx, idx b, idx h, idx t, idx c) -> float16& { return x[((b * 3 + h) * tokens + t) * 16 + c]; };
  };
  serves<float16>(s, keys, values, {&k, &v}, {57, 57}, at(k), at(v));
}

TEST_CASE("llama.cpp, one layer: cells of all heads, values transposed without flash attention") {
  kvmeld::shape const s{1, 1, 3, 2, 16, 16, 64};
  idx const cells = 64, row = 3 * 16;
  std::vector<float16> k(cells * row), v(cells * row);
  // recipe
  kvmeld::strided<float16> const keys(k.data(), "LSTHC", s, s.key_dim);
  kvmeld::strided<float16> const flash(v.data(), "LSTHC", s, s.value_dim);
  kvmeld::transposed<float16> const no_flash(v.data(), "LSHCT", s, s.value_dim);
  //
  auto const by_cell = [&](std::vector<float16>& x) {
    return [&](idx, idx, idx h, idx t, idx c) -> float16& { return x[t * row + h * 16 + c]; };
  };
  auto const along_cells = [&](idx, idx, idx h, idx t, idx c) -> float16& {
    return v[(h * 16 + c) * cells + t];
  };
  serves<float16>(s, keys, flash, {&k, &v}, {61}, by_cell(k), by_cell(v));
  serves<float16>(s, keys, no_flash, {&k, &v}, {61}, by_cell(k), along_cells);
}

TEST_CASE("llama.cpp: the state of a sequence, shortened") {
  kvmeld::shape const s{2, 1, 2, 2, 8, 8, 50};
  std::uint32_t const cells = 40, row = 2 * 8;
  for (bool transposed : {false, true}) {
    CAPTURE(transposed);
    support::dice d(23);
    std::vector<std::uint8_t> bytes;
    auto const put = [&](auto x) {
      std::uint8_t raw[sizeof x];
      std::memcpy(raw, &x, sizeof x);
      bytes.insert(bytes.end(), raw, raw + sizeof x);
    };
    for (std::uint32_t word : {0x1234u, 0u, 1u, cells}) put(word);
    for (std::uint32_t i = 0; i < cells; ++i)
      for (std::uint32_t word : {(i + 11) % cells, 1u, 0u}) put(word);  // positions begin in the middle
    put(static_cast<std::uint32_t>(transposed));
    put(s.layers);
    // The number of (layer, token, column) is all it takes to know an element again.
    auto const number = [](std::uint32_t layer, std::uint32_t token, std::uint32_t column, float offset) {
      float const x =
          offset + static_cast<float>(token / 8) + 0.25f * static_cast<float>((column + layer) % 5);
      return kvmeld::element_traits<float16>::from_float(x);
    };
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      put(1);
      put(std::uint64_t{row * sizeof(float16)});
      for (std::uint32_t i = 0; i < cells; ++i)
        for (std::uint32_t c = 0; c < row; ++c) put(number(layer, (i + 11) % cells, c, 1.0f));
    }
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      put(1);
      if (transposed) {
        put(static_cast<std::uint32_t>(sizeof(float16)));
        put(row);
        for (std::uint32_t c = 0; c < row; ++c)
          for (std::uint32_t i = 0; i < cells; ++i) put(number(layer, (i + 11) % cells, c, 9.0f));
      } else {
        put(std::uint64_t{row * sizeof(float16)});
        for (std::uint32_t i = 0; i < cells; ++i)
          for (std::uint32_t c = 0; c < row; ++c) put(number(layer, (i + 11) % cells, c, 9.0f));
      }
    }
    auto const evict =
        kvmeld::preset::streaming_llm::with_sinks(2);  // so that rows left are rows as they were
    llama_cpp::sequence_shortener<float16, std::decay_t<decltype(evict)>> shortener(s, evict);
    std::vector<std::uint8_t> const shorter = shortener.shorten(bytes, 0.25);
    llama_cpp::sequence_state state(shorter);
    CHECK(state.cells() == 10);
    CHECK(state.transposed() == transposed);
    std::vector<std::int32_t> const order = state.order();
    auto const left = state.layouts<float16>(s, order.data());
    for (std::uint32_t slot = 0; slot < 10; ++slot) {
      std::uint32_t const token = slot < 2 ? slot : 30 + slot;
      CHECK(state.position(slot) == static_cast<std::int32_t>(token));
      for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
        for (std::uint32_t column = 0; column < row; ++column) {
          auto const t = kvmeld::make_track(s, layer, 0, column / 8);
          auto const key = left.keys.locate(t, slot), value = left.values.locate(t, slot);
          CHECK(bits(key.base[column % 8]) == bits(number(layer, token, column, 1.0f)));
          CHECK(bits(value.base[static_cast<std::int64_t>(column % 8) * value.channel_stride]) ==
                bits(number(layer, token, column, 9.0f)));
        }
      }
    }
    CHECK(shortener.shorten(shorter, 0.25) == shorter);  // nothing new, nothing to do
    CHECK_THROWS(llama_cpp::sequence_state(std::vector<std::uint8_t>(bytes.begin(), bytes.end() - 1)));
  }
}

namespace {

// Block tables of two sequences in a pool of 12 blocks of 16 tokens; block 3 and others are nobody's.
std::vector<std::int32_t> const blocks_of = {7, 2, 11, 0, 9, 4, 1, 10};
constexpr idx max_pages = 4, page = 16;

idx block_of(idx sequence, idx token) {
  return static_cast<idx>(blocks_of[sequence * max_pages + token / page]);
}

}  // namespace

TEST_CASE("vLLM's FlashAttention backend, once: [2][block][token][head][channel], NHD or HND") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  std::int64_t const P = 16, heads = 3, d = 16, blocks = 12;
  std::vector<float16> pool(2 * 12 * 16 * 3 * 16);
  auto const table = kvmeld::table_rows(blocks_of.data(), 4);
  float16* const value_pool = pool.data() + blocks * P * heads * d;
  std::uint32_t const page_size = 16;
  for (bool nhd : {true, false}) {
    CAPTURE(nhd);
    // recipe
    kvmeld::page_strides const strides = nhd ? kvmeld::page_strides{P * heads * d, 0, d, heads * d, 1}
                                             : kvmeld::page_strides{P * heads * d, 0, P * d, d, 1};
    kvmeld::paged const keys(kvmeld::pool_pages(pool.data(), table), page_size, strides, s, s.key_dim);
    kvmeld::paged const values(kvmeld::pool_pages(value_pool, table), page_size, strides, s, s.value_dim);
    //
    auto const at = [&](idx which) {
      return [&pool, nhd, which](idx, idx b, idx h, idx t, idx c) -> float16& {
        idx const block = which * 12 + block_of(b, t);
        return nhd ? pool[((block * 16 + t % 16) * 3 + h) * 16 + c]
                   : pool[((block * 3 + h) * 16 + t % 16) * 16 + c];
      };
    };
    serves<float16>(s, keys, values, {&pool}, {60, 33}, at(0), at(1));
  }
}

TEST_CASE("vLLM's FlashInfer backend, once: [block][2][token][head][channel] in a pool per layer") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  std::int64_t const P = 16, heads = 3, d = 16;
  std::vector<float16> pool(12 * 2 * 16 * 3 * 16);
  // recipe
  auto const table = kvmeld::table_rows(blocks_of.data(), 4);
  kvmeld::page_strides const strides{2 * P * heads * d, 0, d, heads * d, 1};
  kvmeld::paged const keys(kvmeld::pool_pages(pool.data(), table), 16, strides, s, s.key_dim);
  kvmeld::paged const values(kvmeld::pool_pages(pool.data() + P * heads * d, table), 16, strides, s,
                             s.value_dim);
  //
  auto const at = [&](idx which) {
    return [&pool, which](idx, idx b, idx h, idx t, idx c) -> float16& {
      return pool[(((block_of(b, t) * 2 + which) * 16 + t % 16) * 3 + h) * 16 + c];
    };
  };
  serves<float16>(s, keys, values, {&pool}, {60, 33}, at(0), at(1));
}

TEST_CASE("vLLM 0.32, one layer: [block][token][head][K, V], and on the CPU [block][head][K by channel, V by "
          "token]") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  std::int64_t const P = 16, heads = 3, d = 16;
  for (bool cpu : {false, true}) {
    CAPTURE(cpu);
    std::vector<float16> pool(12 * 16 * 3 * 2 * 16);
    auto const table = kvmeld::table_rows(blocks_of.data(), 4);
    // recipe
    std::int64_t const block = heads * P * 2 * d;
    kvmeld::page_strides const key_part = cpu ? kvmeld::page_strides{block, 0, P * 2 * d, 1, P}
                                              : kvmeld::page_strides{block, 0, 2 * d, heads * 2 * d, 1};
    kvmeld::page_strides const value_part = cpu ? kvmeld::page_strides{block, 0, P * 2 * d, d, 1} : key_part;
    float16* const value_pool = pool.data() + (cpu ? P * d : d);
    kvmeld::paged const keys(kvmeld::pool_pages(pool.data(), table), 16, key_part, s, s.key_dim);
    kvmeld::paged const values(kvmeld::pool_pages(value_pool, table), 16, value_part, s, s.value_dim);
    //
    auto const at = [&](idx which) {
      return [&pool, cpu, which](idx, idx b, idx h, idx t, idx c) -> float16& {
        idx const inner = which == 0 ? c * 16 + t % 16 : (t % 16) * 16 + c;
        return cpu ? pool[((block_of(b, t) * 3 + h) * 2 + which) * 256 + inner]
                   : pool[(((block_of(b, t) * 16 + t % 16) * 3 + h) * 2 + which) * 16 + c];
      };
    };
    serves<float16>(s, keys, values, {&pool}, {60, 33}, at(0), at(1));
  }
}

TEST_CASE("vLLM's paged attention v1, one layer: keys [block][head][d/x][token][x], values "
          "[block][head][d][token]") {
  kvmeld::shape const s{1, 2, 3, 2, 32, 32, 64};
  std::vector<float16> k(12 * 3 * 32 * 16), v(k.size());
  // recipe
  std::int64_t const P = 16, heads = 3, d = 32, x = 16 / sizeof(float16);
  auto const table = kvmeld::table_rows(blocks_of.data(), 4);
  kvmeld::page_strides const groups{heads * d * P, 0, d * P, x, P * x};
  kvmeld::paged const key_groups(kvmeld::pool_pages(k.data(), table), 16, groups, s, s.key_dim / 8);
  kvmeld::tiled const keys(key_groups, 8);
  kvmeld::paged const values(kvmeld::pool_pages(v.data(), table), 16,
                             kvmeld::dense_pages("LPHCT", 12, 16, s, s.value_dim), s, s.value_dim);
  //
  auto const key = [&](idx, idx b, idx h, idx t, idx c) -> float16& {
    return k[(((block_of(b, t) * 3 + h) * 4 + c / 8) * 16 + t % 16) * 8 + c % 8];
  };
  auto const value = [&](idx, idx b, idx h, idx t, idx c) -> float16& {
    return v[((block_of(b, t) * 3 + h) * 32 + c) * 16 + t % 16];
  };
  serves<float16>(s, keys, values, {&k, &v}, {60, 33}, key, value);
}

TEST_CASE("vLLM with an fp8 cache: codes and one scale") {
  kvmeld::shape const s{1, 1, 1, 1, 16, 16, 32};
  std::vector<kvmeld::fp8_e4m3> pool(2 * 16 * 16);
  std::int32_t const table[] = {1, 0};
  // recipe
  kvmeld::paged const codes(kvmeld::pool_pages(pool.data(), kvmeld::table_rows(table, 2)), 16,
                            {16 * 16, 0, 16, 16, 1}, s, s.key_dim);
  kvmeld::scaled const keys(codes, 0.25f);
  //
  keys.encode_row(kvmeld::serial_team(nullptr, 0), {}, 17,
                  [](std::uint32_t c) { return 0.5f * static_cast<float>(c); });
  CHECK(kvmeld::element_traits<kvmeld::fp8_e4m3>::to_float(pool[0 * 256 + 1 * 16 + 3]) == 1.5f / 0.25f);
}

TEST_CASE("FlashInfer: CSR tables, and the view that folds heads into the batch") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  std::vector<float16> k(12 * 16 * 3 * 16), v(k.size());
  std::vector<std::int32_t> const indptr = {0, 4, 7}, indices = {7, 2, 11, 0, 9, 4, 1};
  // recipe
  auto const table = kvmeld::table_csr(indptr.data(), indices.data());
  auto const nhd = kvmeld::dense_pages("LPTHC", 12, 16, s, 16);
  kvmeld::paged const keys(kvmeld::pool_pages(k.data(), table), 16, nhd, s, 16);
  kvmeld::paged const values(kvmeld::pool_pages(v.data(), table), 16, nhd, s, 16);
  //
  auto const at = [&](std::vector<float16>& x) {
    return [&](idx, idx b, idx h, idx t, idx c) -> float16& {
      auto const block = static_cast<idx>(indices[static_cast<idx>(indptr[b]) + t / 16]);
      return x[((block * 16 + t % 16) * 3 + h) * 16 + c];
    };
  };
  serves<float16>(s, keys, values, {&k, &v}, {60, 33}, at(k), at(v));
  // The folded view of the same memory: one head, pages of stride d (NHD) or P d (HND), numbers by page and
  // head.
  auto const hnd = kvmeld::dense_pages("LPHTC", 12, 16, s, 16);
  kvmeld::paged const hnd_keys(kvmeld::pool_pages(k.data(), table), 16, hnd, s, 16);
  for (std::uint32_t h = 0; h < 3; ++h) {
    for (std::uint32_t slot : {0u, 15u, 16u, 47u}) {
      std::int64_t const p = indices[4 * 0 + slot / 16], token = slot % 16;
      kvmeld::track const t = kvmeld::make_track(s, 0, 0, h);
      CHECK(keys.locate(t, slot).base == k.data() + (p * 16 * 3 + h) * 16 + token * 3 * 16);
      CHECK(hnd_keys.locate(t, slot).base == k.data() + (p * 3 + h) * 16 * 16 + token * 16);
    }
  }
}

TEST_CASE("SGLang, one layer: a slot per token, found by request") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  idx const slots = 150;
  std::vector<float16> k((slots + 1) * 3 * 16), v(k.size());
  std::vector<std::int32_t> req_to_token(2 * 64);
  for (std::size_t i = 0; i < req_to_token.size(); ++i)
    req_to_token[i] = static_cast<std::int32_t>(1 + i * 7 % slots);  // slot 0 is for padding
  // recipe
  auto const table = kvmeld::table_rows(req_to_token.data(), s.capacity);
  kvmeld::page_strides const row{3 * 16, 0, 16, 0, 1};
  kvmeld::paged const keys(kvmeld::pool_pages(k.data(), table), 1, row, s, s.key_dim);
  kvmeld::paged const values(kvmeld::pool_pages(v.data(), table), 1, row, s, s.value_dim);
  //
  auto const at = [&](std::vector<float16>& x) {
    return [&](idx, idx r, idx h, idx t, idx c) -> float16& {
      return x[(static_cast<idx>(req_to_token[r * 64 + t]) * 3 + h) * 16 + c];
    };
  };
  serves<float16>(s, keys, values, {&k, &v}, {60, 33}, at(k), at(v));
}

TEST_CASE("TensorRT-LLM, one layer: blocks [head][token][channel], a row of the table for K and one for V") {
  kvmeld::shape const s{1, 2, 3, 2, 16, 16, 64};
  std::vector<float16> pool(24 * 3 * 16 * 16);
  std::vector<std::int32_t> offsets;  // [sequence][2][max_pages]
  for (idx sequence : {0u, 1u})
    for (idx kv : {0u, 1u})
      for (idx i = 0; i < max_pages; ++i)
        offsets.push_back(2 * blocks_of[sequence * max_pages + i] + static_cast<std::int32_t>(kv));
  // recipe
  std::int64_t const P = 16, d = 16, block = 3 * P * d, most = 4;
  kvmeld::page_table<std::int32_t> const key_rows{offsets.data(), 2 * most},
      value_rows{offsets.data() + most, 2 * most};
  kvmeld::page_strides const hnd{block, 0, P * d, d, 1};
  kvmeld::paged const keys(kvmeld::pool_pages(pool.data(), key_rows), 16, hnd, s, s.key_dim);
  kvmeld::paged const values(kvmeld::pool_pages(pool.data(), value_rows), 16, hnd, s, s.value_dim);
  //
  auto const at = [&](idx kv) {
    return [&, kv](idx, idx b, idx h, idx t, idx c) -> float16& {
      auto const offset = static_cast<idx>(offsets[b * max_pages * 2 + kv * max_pages + t / 16]);
      return pool[offset * 3 * 16 * 16 + h * 16 * 16 + t % 16 * 16 + c];
    };
  };
  serves<float16>(s, keys, values, {&pool}, {60, 33}, at(0), at(1));
}

TEST_CASE("LMDeploy: a pointer per block, all layers in it, K and V side by side per head") {
  kvmeld::shape const s{2, 2, 3, 2, 16, 16, 64};
  idx const layer_size = 3 * 2 * 16 * 16;
  std::vector<float16> memory(7 * 2 * layer_size + 5);
  std::vector<char*> block_ptrs;
  for (idx i : {4u, 0u, 6u, 2u, 1u, 5u, 3u})
    block_ptrs.push_back(reinterpret_cast<char*>(memory.data() + 5 + i * 2 * layer_size));
  std::vector<std::int32_t> const cu_block_nums = {0, 4, 7};
  // recipe
  std::int64_t const P = 16, d = 16, layer = 3 * 2 * P * d;
  std::vector<void*> const blocks(block_ptrs.begin(), block_ptrs.end());
  auto const table = kvmeld::table_csr(cu_block_nums.data(), blocks.data());
  kvmeld::page_strides const strides{0, layer, 2 * P * d, d, 1};
  kvmeld::paged const keys(kvmeld::pointed_pages<float16>{table, 0}, 16, strides, s, s.key_dim);
  kvmeld::paged const values(kvmeld::pointed_pages<float16>{table, 16 * 16 * sizeof(float16)}, 16, strides, s,
                             s.value_dim);
  //
  auto const at = [&](idx kv) {
    return [&, kv](idx l, idx b, idx h, idx t, idx c) -> float16& {
      char* const block = block_ptrs[static_cast<idx>(cu_block_nums[b]) + t / 16];
      idx const bytes = (l * layer_size + h * 2 * 16 * 16 + kv * 16 * 16 + t % 16 * 16 + c) * sizeof(float16);
      return *reinterpret_cast<float16*>(block + bytes);
    };
  };
  serves<float16>(s, keys, values, {&memory}, {60, 33}, at(0), at(1));
}
