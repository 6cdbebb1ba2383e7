// Products, distances and weighted sums of rows on teams made of warps have the bits of one lane.
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "support/any_track.hpp"
#include "support/random_cache.hpp"
#include "support/warp_executor.hpp"

namespace warps_products_cases {

namespace {

template <class T> std::vector<T> numbers(support::dice& d, std::size_t n) {
  std::vector<T> out(n);
  for (T& x : out) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
  return out;
}

// Rows of a are of float, those of b of T; both lie further apart than they are long.
template <class T> struct rows_case {
  rows_case(support::dice& d, std::uint32_t n, std::uint32_t m, std::uint32_t channels)
      : rows(n),
        columns(m),
        dim(channels),
        a(numbers<float>(d, std::size_t{n} * (channels + 3))),
        weights(numbers<float>(d, std::size_t{n} * (m + 1))),
        factors(numbers<float>(d, n)),
        totals(numbers<float>(d, std::size_t{n} * (channels + 5))),
        b(numbers<T>(d, std::size_t{m} * (channels + 2))) {}
  std::uint32_t rows, columns, dim;
  std::vector<float> a, weights, factors, totals;
  std::vector<T> b;
};

// What the primitives give, one after the other.
template <class T> struct products_phase {
  rows_case<T> const* c;
  std::vector<float>* products;
  std::vector<float>* some;
  std::vector<float>* distances;
  std::vector<float>* squares;
  std::vector<float>* with_first;
  std::vector<float>* totals;

  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    std::uint32_t const n = c->rows, m = c->columns, d = c->dim;
    kvmeld::row_products(team, c->a.data(), n, d + 3, c->b.data(), m, d + 2, d, products->data(), m + 1);
    kvmeld::row_products(team, c->a.data(), n, d + 3, c->b.data(), m, d + 2, d, some->data(), m,
                         [](std::uint32_t i, std::uint32_t j) { return (i + j) % 3 == 0; });
    kvmeld::row_distances(team, c->a.data(), n, d + 3, c->b.data(), m, d + 2, d, distances->data(), m);
    kvmeld::row_measures(team, c->b.data(), d + 2, m, d, c->a.data(), squares->data(), with_first->data());
    kvmeld::row_measures(team, c->b.data(), d + 2, m, d, static_cast<float const*>(nullptr), squares->data(),
                         static_cast<float*>(nullptr));
    kvmeld::add_weighted_rows(team, c->weights.data(), n, m + 1, c->factors.data(), c->b.data(), d + 2, m, d,
                              totals->data(), d + 5);
  }
};

using support::any_track;

// All results behind each other; what is not to be written keeps its number.
template <class T, class Executor> std::vector<float> results(Executor&& executor, rows_case<T> const& c) {
  std::size_t const n = c.rows, m = c.columns;
  std::vector<float> products(n * (m + 1), -7.0f), some(n * m, -7.0f), distances(n * m, -7.0f),
      squares(m + 1, -7.0f), with_first(m + 1, -7.0f), totals = c.totals;
  executor.run(products_phase<T>{&c, &products, &some, &distances, &squares, &with_first, &totals},
               kvmeld::shape{1, 1, 1, 1, 1, 1, 1}, 1, any_track{});
  std::vector<float> all;
  for (auto const* part : {&products, &some, &distances, &squares, &with_first, &totals})
    all.insert(all.end(), part->begin(), part->end());
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("rows on warps give the bits of one lane", T, float, kvmeld::bfloat16) {
  support::dice d(12);
  support::warp_executor one(1), three(3);
  for (std::uint32_t i = 0; i < 40; ++i) {
    rows_case<T> const c(d, 1 + d.below(i % 4 == 0 ? 3 : 20), 1 + d.below(40),
                         1 + d.below(i % 2 == 0 ? 20 : 150));
    CAPTURE(c.rows);
    CAPTURE(c.columns);
    CAPTURE(c.dim);
    std::vector<float> const expected = results(kvmeld::host_executor(1, kvmeld::tuning::off), c);
    std::size_t const bytes = expected.size() * sizeof(float);
    CHECK(std::memcmp(results(one, c).data(), expected.data(), bytes) == 0);
    CHECK(std::memcmp(results(three, c).data(), expected.data(), bytes) == 0);
  }
}

TEST_CASE("distances of rows are sums of squares") {
  support::dice d(13);
  rows_case<kvmeld::float16> const c(d, 5, 7, 33);
  std::vector<float> const all = results(kvmeld::host_executor(1, kvmeld::tuning::off), c);
  std::size_t const first = std::size_t{c.rows} * (c.columns + 1) + std::size_t{c.rows} * c.columns;
  for (std::uint32_t i = 0; i < c.rows; ++i) {
    for (std::uint32_t j = 0; j < c.columns; ++j) {
      double sum = 0.0;
      for (std::uint32_t k = 0; k < c.dim; ++k) {
        double const apart =
            double{c.a[i * (c.dim + 3) + k]} -
            double{kvmeld::element_traits<kvmeld::float16>::to_float(c.b[j * (c.dim + 2) + k])};
        sum += apart * apart;
      }
      CHECK(double{all[first + i * c.columns + j]} == doctest::Approx(sum).epsilon(1e-6));
    }
  }
}

}  // namespace warps_products_cases
