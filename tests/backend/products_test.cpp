// Tuned dot products, norms and matching against double loops, over every instruction set of this processor.
#include <doctest/doctest.h>

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/tile_similarity.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/random_cache.hpp"

using support::dice;

namespace {

float uniform(dice& d) { return static_cast<float>(d.between(0, 2000000)) * 1e-6f - 1.0f; }

std::vector<float> noise(dice& d, std::size_t n) {
  std::vector<float> x(n);
  for (float& v : x) v = uniform(d);
  return x;
}

// As storage of type T would give them back.
template <class T> void round_to(std::vector<float>& x) {
  for (float& v : x) v = kvmeld::element_traits<T>::to_float(kvmeld::element_traits<T>::from_float(v));
}

double exact(float const* a, float const* b, std::uint32_t n, double& size) {
  double sum = 0;
  size = 0;
  for (std::uint32_t c = 0; c < n; ++c) {
    sum += double{a[c]} * double{b[c]};
    size += std::fabs(double{a[c]} * double{b[c]});
  }
  return sum;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

constexpr double unit = 1.0 / (1 << 24);

}  // namespace

TEST_CASE("products of any shape are those of double loops, and a pair's bits do not depend on its place") {
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(11);
    for (int i = 0; i < 250; ++i) {
      std::uint32_t const dim = i < 40 ? static_cast<std::uint32_t>(i) + 1 : d.between(1, 256);
      std::uint32_t const rows = d.between(1, 13), columns = d.between(1, 13);
      std::uint32_t const lda = dim + d.below(3), ldb = dim + d.below(3), ldo = columns + d.below(3);
      // As long as the rows need it and no longer: AddressSanitizer sees what reads on.
      std::vector<float> const a = noise(d, std::size_t{rows - 1} * lda + dim);
      std::vector<float> const b = noise(d, std::size_t{columns - 1} * ldb + dim);
      std::vector<float> out(std::size_t{rows} * ldo, 7.0f);
      k.products(a.data(), rows, lda, b.data(), columns, ldb, dim, out.data(), ldo);
      std::vector<std::uint32_t> const place{0};
      for (std::uint32_t r = 0; r < rows; ++r) {
        for (std::uint32_t c = 0; c < columns; ++c) {
          float const* const x = a.data() + std::size_t{r} * lda;
          float const* const y = b.data() + std::size_t{c} * ldb;
          float const got = out[std::size_t{r} * ldo + c];
          double size = 0;
          double const wanted = exact(x, y, dim, size);
          CHECK(std::fabs(got - wanted) <= unit * (dim / 16.0 + 8) * size + 1e-30);
          float alone = 0, listed = 0;
          k.products(x, 1, dim, y, 1, dim, dim, &alone, 1);
          k.dots(y, x, dim, place.data(), 1, dim, &listed);
          CHECK(same(alone, got));
#if !defined(__FAST_MATH__)  // which may sum in another order
          CHECK(same(listed, got));
#endif
        }
        for (std::uint32_t c = columns; c < ldo; ++c) CHECK(out[std::size_t{r} * ldo + c] == 7.0f);
      }
    }
  }
}

#if !defined(__FAST_MATH__)
TEST_CASE("16-bit rows give the bits of the generic loops") {
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    kvmeld::host_kernels const& k = *kvmeld::kernels_of(set);
    dice d(12);
    for (int i = 0; i < 120; ++i) {
      std::uint32_t const dim = d.between(1, 200), rows = d.between(1, 9), columns = d.between(1, 9);
      std::vector<float> a = noise(d, std::size_t{rows} * dim), b = noise(d, std::size_t{columns} * dim);
      if (i % 2 == 0) {
        round_to<kvmeld::bfloat16>(a);
        round_to<kvmeld::bfloat16>(b);
      } else {
        round_to<kvmeld::float16>(a);
        round_to<kvmeld::float16>(b);
      }
      std::vector<float> out(std::size_t{rows} * columns), squares(rows), by(rows);
      k.products(a.data(), rows, dim, b.data(), columns, dim, dim, out.data(), columns);
      k.measures(a.data(), dim, rows, dim, b.data(), squares.data(), by.data());
      for (std::uint32_t r = 0; r < rows; ++r) {
        float const* const x = a.data() + std::size_t{r} * dim;
        CHECK(same(squares[r], kvmeld::dot(x, x, dim)));
        CHECK(same(by[r], kvmeld::dot(x, b.data(), dim)));
        for (std::uint32_t c = 0; c < columns; ++c) {
          CHECK(
              same(out[std::size_t{r} * columns + c], kvmeld::dot(x, b.data() + std::size_t{c} * dim, dim)));
        }
      }
    }
  }
}
#endif

namespace {

// Squares and products of rows in storage, also of listed rows: the bits of `products`, and no byte behind
// the rows or the results.
template <class T> void check_measures(kvmeld::host_kernels const& k, dice& d) {
  std::uint32_t const dim = d.between(1, 200), rows = d.between(1, 40), ld = dim + d.below(3);
  std::vector<float> const x = noise(d, dim), all = noise(d, std::size_t{rows - 1} * ld + dim);
  std::vector<T> stored;
  for (float v : all) stored.push_back(kvmeld::element_traits<T>::from_float(v));
  std::vector<float> square(rows), product(rows), alone(rows);
  k.measures(stored.data(), ld, rows, dim, x.data(), square.data(), product.data());
  k.measures(stored.data(), ld, rows, dim, nullptr, alone.data(), nullptr);
  std::vector<std::uint32_t> at;  // every row twice, the last first
  for (std::uint32_t i = 0; i < 2 * rows; ++i) at.push_back((2 * rows - 1 - i) % rows);
  std::vector<float> listed(at.size());
  k.dots(x.data(), stored.data(), ld, at.data(), 2 * rows, dim, listed.data());
  for (std::uint32_t r = 0; r < rows; ++r) {
    T const* const row = stored.data() + std::size_t{r} * ld;
    std::vector<float> own(dim);
    for (std::uint32_t c = 0; c < dim; ++c) own[c] = kvmeld::element_traits<T>::to_float(row[c]);
    double size = 0, wanted = exact(own.data(), own.data(), dim, size);
    CHECK(std::fabs(square[r] - wanted) <= unit * (dim / 16.0 + 8) * size + 1e-30);
    wanted = exact(own.data(), x.data(), dim, size);
    CHECK(std::fabs(product[r] - wanted) <= unit * (dim / 16.0 + 8) * size + 1e-30);
    CHECK(same(alone[r], square[r]));
#if !defined(__FAST_MATH__)  // which may sum in another order
    float by = 0;
    k.products(x.data(), 1, dim, row, 1, dim, dim, &by, 1);
    CHECK(same(by, product[r]));
    for (std::uint32_t i : {rows - 1 - r, 2 * rows - 1 - r}) CHECK(same(by, listed[i]));
#endif
  }
}

}  // namespace

TEST_CASE("squares and products of rows in storage") {
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    dice d(14);
    for (int i = 0; i < 60; ++i) {
      check_measures<float>(*kvmeld::kernels_of(set), d);
      check_measures<kvmeld::float16>(*kvmeld::kernels_of(set), d);
      check_measures<kvmeld::bfloat16>(*kvmeld::kernels_of(set), d);
    }
  }
}

TEST_CASE("a row's match is within the stated bound of the best one, near ties included") {
  double worst = 0;
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    dice d(13);
    for (int i = 0; i < 200; ++i) {
      std::uint32_t const dim = d.between(1, 160), rows = d.between(1, 64), columns = d.between(1, 64);
      std::vector<float> a = noise(d, std::size_t{rows} * dim), b = noise(d, std::size_t{columns} * dim);
      if (i % 3 == 0) {  // near ties: columns that differ in the last places
        for (std::uint32_t c = 1; c < columns; ++c) {
          for (std::uint32_t j = 0; j < dim; ++j) b[c * dim + j] = b[j] * (1.0f + 1e-7f * uniform(d));
        }
      }
      tuned_lane lane(kvmeld::kernels_of(set), kvmeld::detail::row_match_scratch(64));
      auto const team = lane.team();
      kvmeld::detail::row_match const match(team, 64);
      match.begin(team, a.data(), rows, dim);
      std::uint32_t const first = columns / 2;  // in two pieces
      if (first != 0) kvmeld::tile_similarity(team, a.data(), rows, b.data(), first, dim, 0, match);
      kvmeld::tile_similarity(team, a.data(), rows, b.data() + std::size_t{first} * dim, columns - first, dim,
                              first, match);
      for (std::uint32_t r = 0; r < rows; ++r) {
        auto const cosine = [&](std::uint32_t c) {
          float const* const x = a.data() + std::size_t{r} * dim;
          float const* const y = b.data() + std::size_t{c} * dim;
          double size = 0;
          double const norms = exact(x, x, dim, size) * exact(y, y, dim, size);
          return norms > 0 ? exact(x, y, dim, size) / std::sqrt(norms) : 0.0;
        };
        double best = -2;
        for (std::uint32_t c = 0; c < columns; ++c) best = std::max(best, cosine(c));
        REQUIRE(match.best_column[r] < columns);
        double const regret = best - cosine(match.best_column[r]);
        worst = std::max(worst, regret);
        CHECK(regret <= 2 * 2 * unit * (dim / 16.0 + 8));
      }
    }
  }
  MESSAGE("largest regret: " << worst);
}

TEST_CASE("equal columns match the lowest, zero rows the first, and what is not a number nothing") {
  float const nan = kvmeld::bits_float(0x7fc00000u), inf = kvmeld::bits_float(0x7f800000u);
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    for (std::uint32_t dim : {1u, 5u, 16u, 33u}) {
      for (std::uint32_t columns : {1u, 3u, 4u, 7u, 64u, 70u}) {
        std::vector<float> a(3 * std::size_t{dim}), b(columns * std::size_t{dim}, 0.5f);
        for (std::uint32_t c = 0; c < dim; ++c) {
          a[c] = 0.25f;
          a[dim + c] = 0.0f;
          a[2 * dim + c] = c % 2 == 0 ? nan : inf;
        }
        tuned_lane lane(kvmeld::kernels_of(set), kvmeld::detail::row_match_scratch(96));
        auto const team = lane.team();
        kvmeld::detail::row_match const match(team, 96);
        match.begin(team, a.data(), 3, dim);
        kvmeld::tile_similarity(team, a.data(), 3, b.data(), columns, dim, 10, match);
        CHECK(match.best_column[0] == 10);
        CHECK(match.best_column[1] == 10);
        CHECK(match.best_key[1] == kvmeld::order_key(0.0f));
#if !defined(__FAST_MATH__)
        CHECK(match.best_key[2] == 0);
        std::vector<float> const huge(dim, 3e38f);
        match.begin(team, huge.data(), 1, dim);
        kvmeld::tile_similarity(team, huge.data(), 1, huge.data(), 1, dim, 0, match);
        kvmeld::serial_team const plain(lane.scratch.data(), lane.scratch.size());
        kvmeld::detail::row_match const wanted(plain, 96);
        wanted.begin(plain, huge.data(), 1, dim);
        kvmeld::tile_similarity(plain, huge.data(), 1, huge.data(), 1, dim, 0, wanted);
        CHECK(match.best_key[0] == wanted.best_key[0]);
#endif
      }
    }
  }
}

TEST_CASE("without kernels a host team is a serial team, bit for bit") {
  dice d(14);
  for (int i = 0; i < 30; ++i) {
    std::uint32_t const dim = d.between(1, 100), rows = d.between(1, 20), columns = d.between(1, 20);
    std::vector<float> const a = noise(d, std::size_t{rows} * dim), b = noise(d, std::size_t{columns} * dim);
    tuned_lane lane(nullptr, kvmeld::detail::row_match_scratch(32));
    kvmeld::host_memory other(kvmeld::detail::row_match_scratch(32));
    auto const run = [&](auto const& team) {
      kvmeld::detail::row_match const match(team, 32);
      match.begin(team, a.data(), rows, dim);
      kvmeld::tile_similarity(team, a.data(), rows, b.data(), columns, dim, 0, match);
      std::vector<std::uint32_t> all(match.best_key, match.best_key + rows);
      all.insert(all.end(), match.best_column, match.best_column + rows);
      return all;
    };
    CHECK(run(lane.team()) == run(kvmeld::serial_team(other.data(), other.size())));
  }
}
