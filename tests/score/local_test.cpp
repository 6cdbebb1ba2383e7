// The local window: exact after a block that fills it, rotating while tokens come one by one, and its
// pooling.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "reference/scores.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using support::dice;

namespace {

// Attention rows [row][slot] seen so far, one head; numbers that float adds without error.
struct history {
  std::vector<std::vector<float>> rows;

  std::vector<double> last(std::size_t count, std::uint32_t n) const {
    std::vector<double> sums(n, 0.0);
    for (std::size_t r = rows.size() - std::min(count, rows.size()); r < rows.size(); ++r)
      for (std::uint32_t j = 0; j < n; ++j) sums[j] += static_cast<double>(rows[r][j]);
    return sums;
  }
};

template <class Cache> void observe(dice& d, Cache& cache, history& seen, std::uint32_t count) {
  std::uint32_t const width = cache.options().extent.capacity;
  std::vector<float> p(std::size_t{count} * width);
  for (float& x : p) x = static_cast<float>(d.below(1024)) / 1024.0f;
  for (std::uint32_t r = 0; r < count; ++r)
    seen.rows.emplace_back(p.begin() + r * width, p.begin() + (r + 1) * width);
  kvmeld::attention_params all;
  all.causal = false;
  cache.observe_rows({0, 0, count}, kvmeld::rows_by_head<float const>(p.data(), count, 1, width), all);
}

template <class Cache> std::vector<double> held(Cache const& cache, std::uint32_t n) {
  std::vector<double> out;
  for (std::uint32_t j = 0; j < n; ++j)
    out.push_back(support::score_of(cache.ledger(), kvmeld::make_track(cache.options().extent, 0, 0, 0), j));
  return out;
}

}  // namespace

TEST_CASE("a block of at least a window is the window, whatever came before") {
  dice d(31);
  for (int i = 0; i < 40; ++i) {
    std::uint32_t const window = d.between(1, 40), n = 90;
    support::engine_memory<float> memory({1, 1, 1, 1, 4, 4, n});
    auto cache = make_cache(memory, kvmeld::preset::snapkv::with_window(window));
    cache.open(0, n);
    history seen;
    for (int before = 0; before < 3; ++before) observe(d, cache, seen, d.between(1, 30));
    observe(d, cache, seen, window + d.below(20));
    CHECK(held(cache, n) == seen.last(window, n));
  }
}

TEST_CASE("shorter blocks: never fewer rows than the window, at most one less than two") {
  // Token by token the rows that count go W, W + 1, ... 2 W - 1, W, ...: a half that is full counts alone.
  dice d(32);
  for (std::uint32_t window : {1u, 2u, 5u, 16u, 32u}) {
    for (bool prompt : {false, true}) {
      std::uint32_t const n = 100;
      support::engine_memory<float> memory({1, 1, 1, 1, 4, 4, n});
      auto cache = make_cache(memory, kvmeld::preset::snapkv::with_window(window));
      cache.open(0, n);
      history seen;
      if (prompt) observe(d, cache, seen, window + 3);
      std::uint32_t counted = prompt ? window : 0;
      for (std::uint32_t step = 0; step < 5 * window + 3; ++step) {
        observe(d, cache, seen, 1);
        counted = counted + 1 == 2 * window ? window : counted + 1;
        CHECK(held(cache, n) == seen.last(counted, n));
      }
    }
  }
}

TEST_CASE("blocks of several tokens: a run of the last rows, in the same bounds") {
  dice d(33);
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const window = d.between(2, 24), n = 60;
    support::engine_memory<float> memory({1, 1, 1, 1, 4, 4, n});
    auto cache = make_cache(memory, kvmeld::preset::snapkv::with_window(window));
    cache.open(0, n);
    history seen;
    for (int step = 0; step < 30; ++step) {
      std::uint32_t const rows = d.between(1, window);
      observe(d, cache, seen, rows);
      auto const got = held(cache, n);
      std::size_t counted = 0;
      while (counted <= seen.rows.size() && seen.last(counted, n) != got) ++counted;
      REQUIRE(counted <= seen.rows.size());
      CHECK(counted >= std::min<std::size_t>(window, seen.rows.size()));
      CHECK(counted < 2 * std::size_t{window});
    }
  }
}

TEST_CASE("a window over query heads is their mean, from queries as from rows") {
  // Twenty rows, window 8: only the last 8 count. Zero queries over n equal keys give 1/n each: 8/n in every
  // slot that all of them see.
  std::uint32_t const n = 30;
  kvmeld::shape const s{1, 1, 2, 3, 4, 4, n};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, kvmeld::preset::snapkv::with_window(8));
  cache.open(0, n);
  std::vector<float> const zeros(20 * 6 * 4, 0.0f), lse(20 * 6, std::log(static_cast<float>(n)));
  kvmeld::attention_params all;
  all.causal = false;
  cache.observe({0, 0, 20}, kvmeld::rows_by_token(zeros.data(), 20, 6, 4),
                kvmeld::rows_by_head(lse.data(), 20, 6, 1), all);
  for (double x : held(cache, n)) CHECK(x == Approx(8.0 / n));
}

TEST_CASE("pooling is the reference's at every kernel") {
  dice d(34);
  for (int i = 0; i < 200; ++i) {
    std::uint32_t const n = d.between(1, 40), kernel = 2 * d.below(8) + 1;
    std::vector<double> raw;
    for (std::uint32_t j = 0; j < n; ++j) raw.push_back(static_cast<double>(d.below(4096)) / 64);
    auto const value = [&](std::uint32_t j) { return static_cast<float>(raw[j]); };
    auto const mean = reference::pool(raw, n, reference::pooling::mean, kernel);
    auto const padded = reference::pool(raw, n, reference::pooling::zero_padded_mean, kernel);
    auto const highest = reference::pool(raw, n, reference::pooling::maximum, kernel);
    for (std::uint32_t j = 0; j < n; ++j) {
      using kvmeld::pooling_mode;
      CHECK(kvmeld::pooling{kernel, pooling_mode::mean}.at(j, n, value) == Approx(mean[j]));
      CHECK(kvmeld::pooling{kernel, pooling_mode::zero_padded}.at(j, n, value) == Approx(padded[j]));
      CHECK(static_cast<double>(kvmeld::pooling{kernel, pooling_mode::max}.at(j, n, value)) == highest[j]);
    }
  }
  // NaN counts as lowest under max.
  float const nan = kvmeld::bits_float(0x7fc00000u);
  auto const some = [&](std::uint32_t j) { return j == 1 ? 2.0f : nan; };
  CHECK(kvmeld::pooling{3, kvmeld::pooling_mode::max}.at(0, 3, some) == 2.0f);
}

TEST_CASE("score parts refuse windows and kernels that cannot be") {
  CHECK(kvmeld::score::local{0, {}}.problem() == "policy: score::local.window is 0; it must be at least 1");
  CHECK(kvmeld::score::local{8, {4, kvmeld::pooling_mode::mean}}.problem() ==
        "policy: pooling.kernel is 4; it must be an odd number (1 means no pooling)");
  CHECK(kvmeld::score::local{}.problem().empty());
}
