// Attention of few queries on teams made of warps, against softmax attention in double precision.
#include <kvmeld/backend/warps/attend_few.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/ragged_call.hpp"
#include "attention/shared_cache.hpp"
#include "support/random_cache.hpp"
#include "support/sanitizer.hpp"
#include "support/warp_executor.hpp"

namespace warps_attention_cases {

using namespace attention_test;

namespace {

// A cache as another executor attends to it.
template <class Cache> struct on_warps {
  Cache& cache;
  support::warp_executor executor_;
  auto& executor() { return executor_; }
  auto ref() const { return cache.ref(); }
};
template <class Cache> on_warps(Cache&, support::warp_executor) -> on_warps<Cache>;

template <class T, class Out, class Q = T> void against_reference(std::uint64_t seed, double tolerance) {
  CAPTURE(seed);
  support::dice d(seed);
  kvmeld::shape const s{2,
                        3,
                        d.between(1, 2),
                        d.pick({1u, 3u, 4u, 16u}),
                        d.between(1, d.pick({128u, 128u, 256u})),
                        d.between(1, d.pick({128u, 128u, 256u})),
                        d.between(2, 190)};
  ragged_cache<T> x(s, d);
  call<Q, Out> c(s, d, d.pick({1u, 4u, 9u}));
  kvmeld::attention_params params;
  params.causal = d.chance(0.7);
  params.use_degree = d.chance(0.7);
  if (d.chance(0.5)) params.scale = static_cast<float>(0.05 + 0.2 * d.uniform());
  if (d.chance(0.5)) params.softcap = static_cast<float>(0.5 + 4 * d.uniform());
  std::vector<float> sinks;
  for (std::uint32_t h = 0; h < s.query_heads(); ++h) sinks.push_back(static_cast<float>(3 * d.normal()));
  if (d.chance(0.3)) params.sink = sinks.data();
  if (params.causal && d.chance(0.5)) {
    params.window = d.between(1, 80);
    params.window_sinks = static_cast<kvmeld::position_t>(d.below(2) * d.below(40));
  }
  on_warps cache{x.cache, support::warp_executor(d.between(1, 2))};
  std::uint32_t const parts = d.pick({1u, 2u, 5u});
  compare(cache, params, d.below(2), c, d.chance(0.8), tolerance, parts);
  CHECK(cache.executor().tuned_launches() == 1);
}

template <class T, class Q = T> void shared_against_reference(std::uint64_t seed, double tolerance) {
  CAPTURE(seed);
  support::dice d(seed);
  kvmeld::shape const s{2,
                        3,
                        d.between(1, 2),
                        d.pick({1u, 3u, 16u}),
                        d.between(1, d.pick({128u, 128u, 256u})),
                        d.between(1, d.pick({128u, 128u, 256u})),
                        d.between(8, 190)};
  shared_cache<T> x(s, d, d.pick({1u, 10u, 70u, 2000u}), d.below(7));
  call<Q, float> c(s, d, d.pick({1u, 4u, 9u}));
  kvmeld::attention_params params;
  params.causal = d.chance(0.7);
  if (d.chance(0.5)) params.scale = static_cast<float>(0.05 + 0.2 * d.uniform());
  if (d.chance(0.5)) params.softcap = static_cast<float>(0.5 + 4 * d.uniform());
  std::vector<float> sinks;
  for (std::uint32_t h = 0; h < s.query_heads(); ++h) sinks.push_back(static_cast<float>(3 * d.normal()));
  if (d.chance(0.3)) params.sink = sinks.data();
  on_warps cache{x.cache, support::warp_executor(d.between(1, 2))};
  compare_shared(cache, params, d.below(2), c, tolerance, d.pick({1u, 2u, 5u}));
  CHECK(cache.executor().tuned_launches() == 1);
}

// What a call gives on warps, and whether a tuned form gave it.
template <class T, class Q> bool replaced(kvmeld::shape const& s, kvmeld::attention_params const& params) {
  support::dice d(3);
  ragged_cache<T> x(s, d);
  call<Q, float> c(s, d, 2);
  on_warps cache{x.cache, support::warp_executor(1)};
  compare(cache, params, 0, c, true, 1e-4);
  return cache.executor().tuned_launches() != 0;
}

// The same of shared entries.
template <class T> bool replaced_if_shared(kvmeld::attention_params const& params) {
  support::dice d(4);
  shared_cache<T> x({1, 3, 1, 2, 24, 20, 70}, d, 60, 0);
  call<T, float> c(x.cache.ref().extent(), d, 2);
  on_warps cache{x.cache, support::warp_executor(1)};
  compare_shared(cache, params, 0, c, 1e-4);
  return cache.executor().tuned_launches() != 0;
}

// Whether a tuned form takes a call on a cache whose tracks may have empty slots.
bool replaced_if_padded(kvmeld::attention_params const& params) {
  kvmeld::shape const s{1, 1, 1, 1, 8, 8, 40};
  std::vector<kvmeld::float16> keys(s.slots() * 8), values(keys), q(8);
  kvmeld::cache_options options;
  options.extent = s;
  options.padded = true;
  kvmeld::kv const tensors{kvmeld::strided<kvmeld::float16>(keys.data(), "LSHTC", s, 8),
                           kvmeld::strided<kvmeld::float16>(values.data(), "LSHTC", s, 8)};
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2), tensors,
                             options};
  cache.open(0, 30);
  std::vector<float> out(8);
  support::warp_executor executor(1);
  kvmeld::attention::attend(executor, {0, 0, 1},
                            kvmeld::rows_by_token<kvmeld::float16 const>(q.data(), 1, 1, 8), cache.ref(),
                            kvmeld::rows_by_token(out.data(), 1, 1, 8), {}, params);
  return executor.tuned_launches() != 0;
}

// How rows of `channels` channels lie: one behind the other, with as many elements between them, or in pages.
template <class T> struct rows_apart {
  std::uint32_t padding, shift;
  auto operator()(T* memory, kvmeld::shape const& s, std::uint32_t channels) const {
    std::int64_t const token = channels + padding, head = token * s.capacity;
    kvmeld::cache_strides const strides{head * s.kv_heads, head * s.kv_heads, head, token, 1};
    return kvmeld::strided<T>(memory + shift, strides, s, channels);
  }
};
template <class T> struct rows_in_pages {
  auto operator()(T* memory, kvmeld::shape const& s, std::uint32_t channels) const {
    static std::int32_t const table[] = {3, 1, 0, 2, 7, 5, 4, 6, 9, 8};
    return kvmeld::paged(kvmeld::pool_pages(memory, kvmeld::table_rows(table, 10)), 10,
                         kvmeld::dense_pages("LPTHC", 10, 10, s, channels), s, channels);
  }
};

// Codes with a scale of their own.
template <class Rows> struct with_scale {
  Rows rows;
  float scale;
  template <class T> auto operator()(T* memory, kvmeld::shape const& s, std::uint32_t channels) const {
    return kvmeld::scaled(rows(memory, s, channels), scale);
  }
};

// The tuned form beside the generic one, with as many warps and tokens. Queries are `size` times as large as
// usual, and products as much smaller.
template <class T, class Q = T, class Rows>
void beside_generic(Rows rows, std::uint32_t channels, std::uint32_t tokens, std::uint32_t warps,
                    float size = 1.0f) {
  CAPTURE(channels);
  CAPTURE(tokens);
  CAPTURE(warps);
  kvmeld::shape const s{1, 1, 1, 4, channels, channels, 100};
  support::dice d(channels + tokens);
  std::vector<T> keys(s.slots() * (channels + 24)), values(keys.size());
  for (auto* const v : {&keys, &values}) {
    for (T& x : *v) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
  }
  std::vector<Q> q(2 * 4 * channels);
  for (Q& x : q) x = kvmeld::element_traits<Q>::from_float(size * static_cast<float>(d.normal()));
  kvmeld::attention_params params;
  params.scale = 1.0f / (std::sqrt(static_cast<float>(channels)) * size);
  kvmeld::kv const tensors{rows(keys.data(), s, channels), rows(values.data(), s, channels)};
  kvmeld::cache_options options;
  options.extent = s;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2), tensors,
                             options};
  cache.open(0, tokens);
  for (kvmeld::slot_t slot = 0; slot < tokens; slot += 3)
    cache.ledger().degree[slot] = static_cast<float>(d.between(2, 90));
  auto const attend = [&](kvmeld::tuning tuning) {
    std::vector<float> out(q.size());
    support::warp_executor executor(warps, tuning);
    kvmeld::attention::attend(executor, {0, 0, 2}, kvmeld::rows_by_token<Q const>(q.data(), 2, 4, channels),
                              cache.ref(), kvmeld::rows_by_token(out.data(), 2, 4, channels), {}, params);
    CHECK(executor.tuned_launches() == (tuning == kvmeld::tuning::on ? 1 : 0));
    return out;
  };
  auto const tuned = attend(kvmeld::tuning::on), generic = attend(kvmeld::tuning::off);
  double far = 0;
  for (std::size_t i = 0; i < tuned.size(); ++i)
    far = std::max(far, std::fabs(static_cast<double>(tuned[i]) - static_cast<double>(generic[i])));
  CHECK(far < 1e-3);
}

}  // namespace

TEST_CASE("tiles are copied ahead wherever rows lie") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  for (std::uint32_t tokens : {1u, 15u, 16u, 17u, 32u, 48u, 64u, 65u})
    beside_generic<float16>(rows_apart<float16>{0, 0}, 64, tokens, 1);
  for (std::uint32_t tokens : {33u, 64u, 97u})
    beside_generic<bfloat16>(rows_in_pages<bfloat16>{}, 128, tokens, 2);
  for (std::uint32_t channels : {64u, 96u, 128u}) {
    beside_generic<float16>(rows_in_pages<float16>{}, channels, 50, 1);
    beside_generic<bfloat16>(rows_apart<bfloat16>{8, 0}, channels, 50, 1);  // at multiples of 16 bytes
    beside_generic<float16>(rows_apart<float16>{4, 0}, channels, 50, 1);    // every other row
    beside_generic<float16>(rows_apart<float16>{0, 2}, channels, 50, 1);    // no row
  }
}

TEST_CASE("long rows take two tiles of keys, and two of values") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  using kvmeld::fp8_e4m3;
  for (std::uint32_t channels : {136u, 192u, 256u}) {
    beside_generic<bfloat16>(rows_in_pages<bfloat16>{}, channels, 50, 1);
    beside_generic<float16>(rows_apart<float16>{4, 0}, channels, 33, 2);  // every other row
    beside_generic<fp8_e4m3, bfloat16>(rows_in_pages<fp8_e4m3>{}, channels, 40, 1);
  }
}

TEST_CASE("rows of 8-bit floats are read as binary16") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  using kvmeld::fp8_e4m3;
  using kvmeld::fp8_e5m2;
  for (std::uint32_t channels : {64u, 96u, 128u}) {
    beside_generic<fp8_e4m3, bfloat16>(rows_in_pages<fp8_e4m3>{}, channels, 50, 1);
    beside_generic<fp8_e5m2, float16>(rows_apart<fp8_e5m2>{16, 0}, channels, 33, 1);  // multiples of 16 bytes
    beside_generic<fp8_e4m3, float16>(rows_apart<fp8_e4m3>{8, 0}, channels, 50, 1);   // every other row
    beside_generic<fp8_e4m3, bfloat16>(with_scale<rows_apart<fp8_e4m3>>{{0, 0}, 0.75f}, channels, 17, 2);
    beside_generic<fp8_e5m2, bfloat16>(with_scale<rows_in_pages<fp8_e5m2>>{{}, 1.25f}, channels, 50, 1);
  }
  for (float size : {0x1p-100f, 0x1p-60f, 0x1p60f, 0x1p100f})
    beside_generic<fp8_e4m3, bfloat16>(rows_in_pages<fp8_e4m3>{}, 128, 40, 1, size);
}

TEST_CASE_TEMPLATE("every 8-bit float becomes its binary16", T, kvmeld::fp8_e4m3, kvmeld::fp8_e5m2) {
  using halves = kvmeld::element_traits<kvmeld::float16>;
  for (std::uint32_t code = 0; code < 256; ++code) {
    CAPTURE(code);
    float const x = kvmeld::element_traits<T>::to_float(T{static_cast<std::uint8_t>(code)});
    for (std::uint32_t at = 0; at < 8; ++at) {
      std::uint32_t codes[2] = {0x38383838u, 0x38383838u};
      codes[at / 4] = (codes[at / 4] & ~(0xffu << 8 * (at % 4))) | code << 8 * (at % 4);
      kvmeld::tuned_form::piece_words const w = kvmeld::tuned_form::as_halves<T>(codes);
      for (std::uint32_t c = 0; c < 8; ++c) {
        kvmeld::float16 const half{static_cast<std::uint16_t>(w.w[c / 2] >> 16 * (c % 2))};
        float const y = kvmeld::tuned_form::scale_of_halves<T> * halves::to_float(half);
        float const wanted = c == at ? x : kvmeld::element_traits<T>::to_float(T{0x38});
        CHECK((kvmeld::is_finite(wanted) ? y == wanted : std::isnan(y) == std::isnan(wanted)));
        CHECK(kvmeld::is_finite(y) == kvmeld::is_finite(wanted));
      }
    }
  }
}

TEST_CASE("few queries on warps attend as softmax attention does") {
  for (std::uint64_t seed = 0; seed < 9; ++seed) against_reference<kvmeld::float16, float>(seed, 2e-4);
  for (std::uint64_t seed = 100; seed < 104; ++seed) against_reference<kvmeld::bfloat16, float>(seed, 2e-4);
  for (std::uint64_t seed = 200; seed < 202; ++seed)
    against_reference<kvmeld::bfloat16, kvmeld::bfloat16>(seed, 0.02);
  for (std::uint64_t seed = 300; seed < 304; ++seed)
    against_reference<kvmeld::fp8_e4m3, float, kvmeld::bfloat16>(seed, 2e-4);
  for (std::uint64_t seed = 400; seed < 402; ++seed)
    against_reference<kvmeld::fp8_e5m2, float, kvmeld::float16>(seed, 2e-4);
}

TEST_CASE("few queries on warps attend to every token of shared entries") {
  for (std::uint64_t seed = 0; seed < 9; ++seed) shared_against_reference<kvmeld::float16>(seed, 2e-4);
  for (std::uint64_t seed = 100; seed < 104; ++seed) shared_against_reference<kvmeld::bfloat16>(seed, 2e-4);
  for (std::uint64_t seed = 200; seed < 203; ++seed)
    shared_against_reference<kvmeld::fp8_e4m3, kvmeld::bfloat16>(seed, 2e-4);
}

TEST_CASE_TEMPLATE("many small weights beside a large one are not lost", T, kvmeld::float16,
                   kvmeld::bfloat16) {
  kvmeld::shape const s{1, 1, 1, 1, 8, 8, 3000};
  support::engine_memory<T> memory(s);
  support::rows keys(3000, std::vector<float>(8, 0.0f)), values(3000, std::vector<float>(8, 1.0f));
  keys[0].assign(8, 1.0f);  // one sink whose value is 0
  values[0].assign(8, 0.0f);
  memory.fill(kvmeld::make_track(s, 0, 0, 0), 0, keys, values);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 3000);
  std::vector<T> const q(8, kvmeld::element_traits<T>::from_float(1.0f));
  for (float logit : {10.0f, 17.0f, 17.4f, 20.0f}) {
    if (support::under_thread_sanitizer && logit != 17.0f) continue;  // races are alike
    CAPTURE(logit);
    kvmeld::attention_params params;
    params.scale = logit / 8.0f;
    std::vector<float> out(8);
    support::warp_executor executor(1);
    kvmeld::attention::attend(executor, {0, 0, 1}, kvmeld::rows_by_token<T const>(q.data(), 1, 1, 8),
                              cache.ref(), kvmeld::rows_by_token(out.data(), 1, 1, 8), {}, params);
    CHECK(executor.tuned_launches() == 1);
    double const small = 2999 * std::exp(-static_cast<double>(logit));
    for (float x : out)
      CHECK(static_cast<double>(x) ==
            doctest::Approx(small / (1 + small)).epsilon(logit < 18 ? 2e-4 : 2e-3).scale(0));
  }
}

TEST_CASE_TEMPLATE("what a query does not see is not even multiplied by zero", T, kvmeld::float16,
                   kvmeld::fp8_e4m3) {
  kvmeld::shape const s{1, 1, 1, 2, 16, 70, 60};
  support::dice d(8);
  support::engine_memory<T> memory(s);
  memory.fill_sequence(d, 0, 0, 41, support::texture::clusters);
  kvmeld::track const where = kvmeld::make_track(s, 0, 0, 0);
  float const nan = kvmeld::bits_float(0x7fc00000u);
  support::write_row(memory.tensors().values, where, 39, std::vector<float>(s.value_dim, nan));
  support::write_row(memory.tensors().keys, where, 40, std::vector<float>(s.key_dim, nan));
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 41);
  std::vector<kvmeld::float16> q;
  for (std::uint32_t i = 0; i < 4 * 2 * s.key_dim; ++i)
    q.push_back(kvmeld::element_traits<kvmeld::float16>::from_float(static_cast<float>(d.normal())));
  for (std::uint32_t warps : {1u, 2u}) {
    std::vector<float> out(4 * 2 * s.value_dim);
    support::warp_executor executor(warps);
    kvmeld::attention::attend(executor, {0, 0, 4},
                              kvmeld::rows_by_token<kvmeld::float16 const>(q.data(), 4, 2, s.key_dim),
                              cache.ref(), kvmeld::rows_by_token(out.data(), 4, 2, s.value_dim));
    CHECK(executor.tuned_launches() == 1);
    for (std::uint32_t query = 0; query < 4; ++query) {
      int finite = 0;
      for (std::uint32_t i = 0; i < 2 * s.value_dim; ++i)
        finite += kvmeld::is_finite(out[query * 2 * s.value_dim + i]) ? 1 : 0;
      CHECK(finite == (query < 2 ? int(2 * s.value_dim) : 0));  // the last two see a row of NaN
    }
  }
}

TEST_CASE_TEMPLATE("an infinite value shows in its channel of the queries that see it", T, kvmeld::float16,
                   kvmeld::bfloat16) {
  kvmeld::shape const s{1, 1, 1, 2, 16, 70, 60};
  support::dice d(9);
  support::engine_memory<T> memory(s);
  memory.fill_sequence(d, 0, 0, 41, support::texture::clusters);
  kvmeld::track const where = kvmeld::make_track(s, 0, 0, 0);
  std::vector<float> row(s.value_dim, 1.0f);
  row[66] = kvmeld::bits_float(0x7f800000u);
  support::write_row(memory.tensors().values, where, 39, row);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 41);
  std::vector<T> const q(4 * 2 * s.key_dim, kvmeld::element_traits<T>::from_float(0.1f));
  std::vector<float> out(4 * 2 * s.value_dim);
  support::warp_executor executor(1);
  kvmeld::attention::attend(executor, {0, 0, 4}, kvmeld::rows_by_token<T const>(q.data(), 4, 2, s.key_dim),
                            cache.ref(), kvmeld::rows_by_token(out.data(), 4, 2, s.value_dim));
  CHECK(executor.tuned_launches() == 1);
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    bool const sees = i / (2 * s.value_dim) >= 2 && i % s.value_dim == 66;
    wrong += kvmeld::is_finite(out[i]) == sees ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("attention that warps have no tuned form for is the generic one") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  kvmeld::shape const small{1, 3, 1, 2, 24, 20, 70};
  CHECK(replaced<float16, float16>(small, {}));
  CHECK(replaced<kvmeld::fp8_e4m3, bfloat16>(small, {}));
  CHECK(replaced<kvmeld::fp8_e5m2, float16>(small, {}));
  CHECK_FALSE(replaced<kvmeld::fp8_e4m3, float>(small, {}));
  CHECK_FALSE(replaced<float16, float>(small, {}));
  CHECK_FALSE(replaced<float16, bfloat16>(small, {}));
  CHECK_FALSE(replaced<float, float>(small, {}));
  kvmeld::attention_params windowed;
  windowed.window = 30;
  CHECK(replaced<float16, float16>(small, windowed));
  CHECK_FALSE(replaced_if_padded(windowed));
  CHECK(replaced_if_padded({}));
  CHECK(replaced_if_shared<float16>({}));
  CHECK_FALSE(replaced_if_shared<float16>(windowed));
  CHECK_FALSE(replaced_if_shared<float>({}));
  kvmeld::attention_params rotated;
  rotated.rope.pairing = kvmeld::rope_pairing::half_split;
  CHECK_FALSE(replaced<float16, float16>(small, rotated));
  CHECK_FALSE(replaced_if_shared<float16>(rotated));
  CHECK_FALSE(replaced<float16, float16>({1, 3, 1, 17, 24, 20, 70}, {}));
  CHECK(replaced<float16, float16>({1, 3, 1, 2, 256, 256, 40}, {}));
  CHECK_FALSE(replaced<float16, float16>({1, 3, 1, 2, 257, 20, 40}, {}));
  CHECK_FALSE(replaced<float16, float16>({1, 3, 1, 2, 24, 257, 40}, {}));
}

}  // namespace warps_attention_cases
