// Calibrations and shares that hold no numbers, and tables for sequences that are not there.
#include <kvmeld/calibrate.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"

namespace refused_calibration_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::calibrate::calibration;

constexpr kvmeld::shape extent{2, 3, 2, 1, 8, 8, 64};
constexpr double none = std::numeric_limits<double>::quiet_NaN();

calibration sound() {
  calibration c;
  c.of = kvmeld::calibrate::model_shape::of(extent);
  c.thresholds = {{0.5, {{0.1, 0.2}, {0.3}}}};
  return c;
}

}  // namespace

TEST_CASE("tables for sequences and entries that are not there") {
  using kvmeld::calibrate::budget_table;
  std::vector<std::uint32_t> const entries{1, 2, 3, 4};
  for (std::uint32_t sequence : {3u, 99u}) {
    check_text(refusal_of([&] { budget_table(extent, sequence, entries); }),
               {"budget_table: sequence is ", "it must be 0 to 2"});
  }
  check_text(refusal_of([&] {
               budget_table(extent, 0, {1, 2, 3});
             }),
             {"budget_table: number of entries is 3; it must be 4, one per head of every layer"});
  check_text(refusal_of([&] { budget_table(kvmeld::shape{}, 0, {1}); }),
             {"budget_table: shape: key_dim is 0"});
  CHECK(budget_table(extent, 2, entries) == std::vector<std::uint32_t>{0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 4});
}

TEST_CASE("shares that are none") {
  using kvmeld::calibrate::entries_of;
  check_text(refusal_of([&] {
               entries_of({0.5, none}, 100);
             }),
             {"entries_of: share[1] is nan; it must be 0 to 1"});
  check_text(refusal_of([&] { entries_of({-1.0}, 100); }), {"entries_of: share[0] is -1"});
  check_text(refusal_of([&] { entries_of({1e9}, 100); }),
             {"entries_of: share[0] is 1000000000; it must be 0 to 1"});
  check_text(refusal_of([&] { entries_of({0.5}, 0xffffffffu); }), {"entries_of: tokens is 4294967295"});
  CHECK(entries_of({0.5, 1.0}, 100) == std::vector<std::uint32_t>{50, 100});
}

TEST_CASE("calibrations of no numbers") {
  CHECK(kvmeld::calibrate::calibration_problem(sound(), extent).empty());
  auto const text = [](calibration const& c) { return kvmeld::calibrate::calibration_problem(c, extent); };
  for (double bad : {none, 0.0, 1.5}) {
    calibration c = sound();
    c.thresholds[0].ratio = bad;
    check_text(text(c), {"calibration: ratio of thresholds is ", "above 0 and at most 1"});
  }
  for (double bad : {none, -1.5, 2.0}) {
    calibration c = sound();
    c.thresholds[0].theta[0][1] = bad;
    check_text(text(c), {"calibration: threshold of layer 0 for the ratio 0.5 is ", "-1 to 1"});
  }
  calibration c = sound();
  c.thresholds[0].theta[1].clear();
  check_text(text(c),
             {"calibration: number of samples of layer 1 for the ratio 0.5 is 0; it must be at least 1"});
  c = sound();
  c.unmatched = {0.1, 0.2, none, 0.4};
  check_text(text(c), {"calibration: unmatched[2] is nan; it must be 0 to 1"});
}

TEST_CASE("means of layers that have no samples") {
  kvmeld::calibrate::layer_thresholds t{0.5, {{0.25, 0.75}, {}}};
  CHECK(t.mean(0) == doctest::Approx(0.5));
  check_text(refusal_of([&] { (void)t.mean(1); }), {"mean: number of samples of layer 1 is 0"});
  check_text(refusal_of([&] { (void)t.mean(2); }), {"mean: layer is 2; it must be less than 2"});
}

}  // namespace refused_calibration_cases
