// EMS's resemblance of a tile in its generic form, against double loops.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace redundancy_cases
