// EMS's resemblance of a tile, against loops: the generic form, and every tuned form that this processor has.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/random_cache.hpp"

namespace redundancy_cases {

using support::dice;

namespace {

double cosine(std::vector<float> const& a, std::vector<float> const& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    ab += double{a[c]} * double{b[c]};
    aa += double{a[c]} * double{a[c]};
    bb += double{b[c]} * double{b[c]};
  }
  return ab / std::sqrt(aa * bb);
}

std::vector<float> flat(support::rows const& x) {
  std::vector<float> out;
  for (auto const& row : x) out.insert(out.end(), row.begin(), row.end());
  return out;
}

}  // namespace

TEST_CASE("every row finds the column with the largest product of cosines") {
  dice d(41);
  for (int round = 0; round < 60; ++round) {
    bool const by_sign = round % 2 == 0;
    std::uint32_t const rows = d.between(1, 12), columns = d.between(1, 12);
    CAPTURE(round);
    support::rows const ak = support::random_rows(d, rows, 5, support::texture::noise);
    support::rows const av = support::random_rows(d, rows, 4, support::texture::noise);
    support::rows const bk = support::random_rows(d, columns, 5, support::texture::noise);
    support::rows const bv = support::random_rows(d, columns, 4, support::texture::noise);
    std::vector<float> const fak = flat(ak), fav = flat(av), fbk = flat(bk), fbv = flat(bv);
    std::vector<std::max_align_t> room(1024);
    kvmeld::serial_team const team(room.data(), room.size() * sizeof(std::max_align_t));
    std::uint32_t const most = rows > columns ? rows : columns;
    kvmeld::detail::row_match const keys(team, most), values(team, most);
    keys.begin(team, fak.data(), rows, 5);
    values.begin(team, fav.data(), rows, 4);
    std::vector<kvmeld::slot_t> slots;
    for (std::uint32_t j = 0; j < columns; ++j) slots.push_back(100 + j);
    kvmeld::tile_redundancy(team, {fak.data(), 5}, {fav.data(), 4}, rows, {fbk.data(), 5}, {fbv.data(), 4},
                            columns, slots.data(), by_sign, keys, values, nullptr);
    for (std::uint32_t i = 0; i < rows; ++i) {
      double best = -2;
      std::uint32_t column = 0;
      for (std::uint32_t j = 0; j < columns; ++j) {
        double const ck = cosine(ak[i], bk[j]), cv = cosine(av[i], bv[j]);
        if (!by_sign && !(ck > 0 && cv > 0)) continue;
        if (ck * cv > best) {
          best = ck * cv;
          column = 100 + j;
        }
      }
      CHECK((keys.best_key[i] == 0) == (best < -1.5));
      if (best < -1.5) continue;
      CHECK(keys.best_column[i] == column);
      CHECK(std::abs(static_cast<double>(kvmeld::order_value(keys.best_key[i])) - best) < 1e-5);
    }
  }
}

#if !defined(__FAST_MATH__)  // which may round the cosines of two forms differently
namespace {

// Rows of small whole numbers: their products are exact, so that every form has to give the same bits. Many
// resemble each other exactly, some are zero, some hold NaN.
std::vector<float> whole_rows(dice& d, std::uint32_t count, std::uint32_t channels) {
  std::vector<float> out(std::size_t{count} * channels);
  for (float& x : out) x = static_cast<float>(d.between(0, 4)) - 2.0f;
  if (d.between(0, 3) == 0) out[d.between(0, count * channels - 1)] = std::numeric_limits<float>::quiet_NaN();
  return out;
}

struct matches {
  std::vector<std::uint32_t> key, column;
  bool operator==(matches const& other) const { return key == other.key && column == other.column; }
};

// The columns come in blocks that end at `ends`.
template <class Team>
matches matched(Team const& team, std::vector<float> const& ak, std::vector<float> const& av,
                std::vector<float> const& bk, std::vector<float> const& bv, std::uint32_t dk,
                std::uint32_t dv, std::vector<std::uint32_t> const& ends, bool by_sign) {
  auto const rows = static_cast<std::uint32_t>(ak.size()) / dk;
  kvmeld::detail::row_match const keys(team, 64), values(team, 64);
  float* const products = team.template scratch<float>(2 * 64 * 64);
  keys.begin(team, ak.data(), rows, dk);
  values.begin(team, av.data(), rows, dv);
  std::vector<kvmeld::slot_t> slots;
  for (std::uint32_t j = 0; j < ends.back(); ++j) slots.push_back(1000 + j);
  std::uint32_t from = 0;
  for (std::uint32_t to : ends) {
    kvmeld::tile_redundancy(team, {ak.data(), dk}, {av.data(), dv}, rows, {bk.data() + from * dk, dk},
                            {bv.data() + from * dv, dv}, to - from, slots.data() + from, by_sign, keys,
                            values, products);
    from = to;
  }
  return {{keys.best_key, keys.best_key + rows}, {keys.best_column, keys.best_column + rows}};
}

}  // namespace

TEST_CASE(
    "all forms choose the same columns to the bit where products are exact, ties to the lowest column") {
  dice d(43);
  for (int round = 0; round < 200; ++round) {
    bool const by_sign = round % 2 == 0;
    std::uint32_t const rows = d.between(1, 64), dk = d.between(1, 20), dv = d.between(1, 20);
    std::vector<std::uint32_t> ends;
    for (std::uint32_t to = 0, blocks = d.between(1, 4); ends.size() < blocks;)
      ends.push_back(to += d.between(1, 64));
    std::uint32_t const columns = ends.back();
    auto const ak = whole_rows(d, rows, dk), av = whole_rows(d, rows, dv);
    auto const bk = whole_rows(d, columns, dk), bv = whole_rows(d, columns, dv);
    auto const inverse = [](float const* row, std::uint32_t n) {
      return kvmeld::inverse_norm(kvmeld::dot(row, row, n));
    };
    matches wanted;
    for (std::uint32_t i = 0; i < rows; ++i) {
      std::uint32_t best = 0, column = 0;
      float const *const ki = ak.data() + i * dk, *const vi = av.data() + i * dv;
      for (std::uint32_t j = 0; j < columns; ++j) {
        float const *const kj = bk.data() + j * dk, *const vj = bv.data() + j * dv;
        float const ck = kvmeld::cosine(kvmeld::dot(ki, kj, dk), inverse(ki, dk), inverse(kj, dk));
        float const cv = kvmeld::cosine(kvmeld::dot(vi, vj, dv), inverse(vi, dv), inverse(vj, dv));
        if (!by_sign && !(ck > 0 && cv > 0)) continue;
        if (std::uint32_t const key = kvmeld::order_key(ck * cv); key > best) {
          best = key;
          column = 1000 + j;
        }
      }
      wanted.key.push_back(best);
      wanted.column.push_back(column);
    }
    CAPTURE(round);
    std::vector<std::max_align_t> room(8192);
    kvmeld::serial_team const generic(room.data(), room.size() * sizeof(std::max_align_t));
    CHECK(matched(generic, ak, av, bk, bv, dk, dv, ends, by_sign) == wanted);
    for (kvmeld::instruction_set set : instruction_sets()) {
      CAPTURE(static_cast<int>(set));
      tuned_lane const lane(kvmeld::kernels_of(set), room.size() * sizeof(std::max_align_t));
      CHECK(matched(lane.team(), ak, av, bk, bv, dk, dv, ends, by_sign) == wanted);
    }
  }
}
#endif

TEST_CASE("the column with the highest bound is one of the columns, also where no product is a number") {
  float const none = std::numeric_limits<float>::quiet_NaN();
  for (kvmeld::instruction_set set : instruction_sets()) {
    CAPTURE(static_cast<int>(set));
    for (std::uint32_t n = 1; n <= 40; ++n) {
      CAPTURE(n);
      std::vector<float> products(n, none), inverse(n, 1.0f);
      std::vector<std::uint32_t> bound(n);
      auto const first = [&] {
        return kvmeld::kernels_of(set)->bound_cosines(products.data(), n, 1.0f, inverse.data(), 1.0f, false,
                                                      bound.data());
      };
      CHECK(first() < n);
      products[n - 1] = 0.5f;
      CHECK(first() == n - 1);
      products[n / 2] = 0.75f;
      CHECK(first() == n / 2);
    }
  }
}

}  // namespace redundancy_cases
