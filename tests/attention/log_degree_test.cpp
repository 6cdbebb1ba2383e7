// The written bias: logarithms of degrees, a finite floor behind the entries, and the attention it makes.
#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "reference/attention.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 3, 16, 12, 70};

// A prompt in sequences 0 and 2, merged by Chelsea to ragged lengths of which no head is full.
struct merged {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, kvmeld::preset::chelsea::llama2())) cache;

  merged() : cache(support::make_cache(memory, policy())) {
    support::dice d(19);
    for (std::uint32_t sequence : {0u, 2u}) {
      memory.fill_sequence(d, sequence, 0, 60, support::texture::walk);
      cache.open(sequence, 60);
      std::vector<std::uint32_t> table(extent.tracks());
      for (std::uint32_t i = 0; i < extent.tracks(); ++i) table[i] = 30 + i;
      cache.compress({sequence}, kvmeld::budget::per_track(table.data()));
    }
  }
  static kvmeld::preset::chelsea::type policy() {
    return kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, kvmeld::quantity::entries(2),
                                                  kvmeld::quantity::entries(4));
  }
};

// Rows [sequence of the list][head][slot].
template <class T>
std::vector<T> written(merged& x, std::uint32_t layer, std::vector<std::uint32_t> const& sequences,
                       std::uint32_t heads_per_track) {
  std::uint32_t const heads = extent.kv_heads * heads_per_track;
  std::vector<T> out(sequences.size() * heads * extent.capacity);
  kvmeld::attention::write_log_degree(x.cache.executor(), x.cache.ref(), layer, sequences,
                                      kvmeld::rows_by_head(out.data(), 1, heads, extent.capacity),
                                      heads_per_track);
  return out;
}

// Rows written once after a compression stay right for tokens that come one at a time, whose degree is 1.
template <class T> void check_single_tokens(merged& x) {
  kvmeld::shape const& s = extent;
  std::vector<T> bias(s.kv_heads * s.capacity);
  kvmeld::attention::write_log_degree(x.cache.executor(), x.cache.ref(), 1, {2},
                                      kvmeld::rows_by_head(bias.data(), 1, s.kv_heads, s.capacity), 1,
                                      kvmeld::attention::behind_end::unmerged);
  for (std::uint32_t token = 0; token < 5; ++token) {
    std::size_t merged_entries = 0;
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(s, 1, 2, head);
      for (std::uint32_t slot = 0; slot < s.capacity; ++slot) {
        double const got = static_cast<double>(
            kvmeld::element_traits<T>::to_float(bias[head * std::size_t{s.capacity} + slot]));
        bool const held = slot < x.cache.ref().length(t);
        double const wanted = held ? std::log(static_cast<double>(x.cache.ref().degree(t, slot))) : 0.0;
        merged_entries += wanted > 0 ? 1 : 0;
        REQUIRE(std::fabs(got - wanted) <= 0x1p-7 * wanted);
      }
    }
    CHECK(merged_entries > 10);
    x.cache.append({2}, {1});
    x.cache.commit({2}, {1});
  }
}

template <class T> void check_written(merged& x, double relative) {
  std::vector<std::uint32_t> const sequences{2, 0, 1};  // 1 was never opened: all floor
  for (std::uint32_t heads_per_track : {1u, extent.queries_per_kv_head}) {
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      auto const out = written<T>(x, layer, sequences, heads_per_track);
      std::size_t merged_entries = 0, i = 0;
      for (std::uint32_t sequence : sequences) {
        for (std::uint32_t head = 0; head < extent.kv_heads * heads_per_track; ++head) {
          kvmeld::track const t = kvmeld::make_track(extent, layer, sequence, head / heads_per_track);
          for (std::uint32_t slot = 0; slot < extent.capacity; ++slot, ++i) {
            float const got = kvmeld::element_traits<T>::to_float(out[i]);
            if (slot >= x.cache.ref().length(t)) {
              REQUIRE(got == kvmeld::element_traits<T>::lowest);
              REQUIRE(kvmeld::is_finite(got));
              continue;
            }
            double const wanted = std::log(static_cast<double>(x.cache.ref().degree(t, slot)));
            merged_entries += wanted > 0 ? 1 : 0;
            REQUIRE(std::fabs(static_cast<double>(got) - wanted) <= relative * wanted);
          }
        }
      }
      CHECK(merged_entries > 50);
    }
  }
}

}  // namespace

TEST_CASE("behind_end::unmerged: engines that read token by token write the bias once per compression") {
  merged x;
  check_single_tokens<float>(x);
  check_single_tokens<kvmeld::float16>(x);
}

TEST_CASE("write_log_degree writes logarithms of degrees and a finite floor") {
  merged x;
  check_written<float>(x, 1e-6);
  check_written<kvmeld::float16>(x, 0x1p-11 * 1.001);
  check_written<kvmeld::bfloat16>(x, 0x1p-8 * 1.001);
}

TEST_CASE("attention over the full capacity with the written bias equals attend") {
  merged x;
  support::dice d(23);
  std::vector<std::uint32_t> const sequences{0, 2}, counts{1, 1};
  std::vector<float> q(2 * extent.query_heads() * extent.key_dim);
  for (float& v : q) v = static_cast<float>(d.normal());
  std::vector<float> out(2 * extent.query_heads() * extent.value_dim);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    kvmeld::attention::attend(
        x.cache.executor(), {layer, sequences, counts},
        kvmeld::rows_by_token<float const>(q.data(), 1, extent.query_heads(), extent.key_dim), x.cache.ref(),
        kvmeld::rows_by_token(out.data(), 1, extent.query_heads(), extent.value_dim));
    auto const bias = written<float>(x, layer, sequences, extent.queries_per_kv_head);
    double worst = 0;
    for (std::size_t row = 0; row < sequences.size() * extent.query_heads(); ++row) {
      kvmeld::track const t = kvmeld::make_track(extent, layer, sequences[row / extent.query_heads()],
                                                 static_cast<std::uint32_t>(row % extent.query_heads()) /
                                                     extent.queries_per_kv_head);
      // What an engine does that adds a mask to all of its slots: no lengths, no degrees.
      std::vector<double> logit(extent.capacity);
      double largest = -1e300, total = 0;
      for (std::uint32_t slot = 0; slot < extent.capacity; ++slot) {
        double product = 0;
        auto const key = support::get_row(x.cache.ref().keys, t, slot);
        for (std::uint32_t c = 0; c < extent.key_dim; ++c)
          product += static_cast<double>(q[row * extent.key_dim + c]) * static_cast<double>(key[c]);
        logit[slot] = product / 4 + static_cast<double>(bias[row * extent.capacity + slot]);
        largest = std::max(largest, logit[slot]);
      }
      std::vector<double> expected(extent.value_dim, 0.0);
      for (std::uint32_t slot = 0; slot < extent.capacity; ++slot) {
        double const p = std::exp(logit[slot] - largest);
        total += p;
        auto const value = support::get_row(x.cache.ref().values, t, slot);
        for (std::uint32_t c = 0; c < extent.value_dim; ++c) expected[c] += p * static_cast<double>(value[c]);
      }
      for (std::uint32_t c = 0; c < extent.value_dim; ++c)
        worst = std::max(
            worst, std::fabs(expected[c] / total - static_cast<double>(out[row * extent.value_dim + c])));
    }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("as many columns as are asked for, and nothing behind them") {
  merged x;
  std::uint32_t const heads = extent.query_heads(), stride = extent.capacity + 20;
  std::vector<float> const all = written<float>(x, 1, {2, 0}, extent.queries_per_kv_head);
  for (std::uint32_t columns : {1u, 33u, extent.capacity, extent.capacity + 9}) {
    std::vector<float> out(std::size_t{2} * heads * stride, 123.0f);
    kvmeld::attention::write_log_degree(
        x.cache.executor(), x.cache.ref(), 1, {2, 0}, kvmeld::rows_by_head(out.data(), 1, heads, stride),
        extent.queries_per_kv_head, kvmeld::attention::behind_end::masked, columns);
    for (std::size_t row = 0; row < std::size_t{2} * heads; ++row) {
      for (std::uint32_t s = 0; s < stride; ++s) {
        float const wanted = s >= columns           ? 123.0f
                             : s >= extent.capacity ? kvmeld::element_traits<float>::lowest
                                                    : all[row * extent.capacity + s];
        REQUIRE(out[row * stride + s] == wanted);
      }
    }
  }
}

TEST_CASE("write_log_degree refuses what does not fit") {
  merged x;
  std::vector<float> out(extent.capacity);
  auto const refused = [&](std::uint32_t layer, std::uint32_t sequence) {
    try {
      kvmeld::attention::write_log_degree(x.cache.executor(), x.cache.ref(), layer, {sequence},
                                          kvmeld::rows_by_head(out.data(), 1, 0, extent.capacity), 1);
    } catch (kvmeld::invalid_argument const& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused(2, 0) == "attention::write_log_degree: layer is 2; it must be 0 to 1");
  CHECK(refused(0, 3) == "attention::write_log_degree: sequence is 3; it must be 0 to 2");
}
