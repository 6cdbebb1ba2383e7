// The same cache in every layout, compressed by every preset, gives the same plan and the same rows: every
// ordered pair of layouts in random cases, against plain strided tensors.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "cross_case.hpp"
#include "support/brief.hpp"

namespace cross_layout_cases {

namespace {

using namespace cross_test;

using support::from_environment;

// Cases of every pair, other ones in every test_run(). KVMELD_CROSS_CASES asks for another number.
std::uint64_t cases_wanted() { return from_environment("KVMELD_CROSS_CASES", support::brief() ? 20 : 100); }

class tally {
public:
  // Runs a case on every pair; what fails can be had again with KVMELD_CROSS_SEED.
  void add(cross_case&& c) {
    ++caches_;
    shorter_ += c.shrinks() ? 1 : 0;
    c.compare([&](std::string const& keys, std::string const& values, std::string const& wrong) {
      ++pairs_[{keys, values}];
      ++cases_;
      if (wrong.empty() || ++failures_ > 20) return;
      INFO(c.description());
      FAIL_CHECK("keys " << keys << ", values " << values << ": " << wrong);
    });
  }
  void check(std::uint64_t wanted) const {
    if (from_environment("KVMELD_CROSS_SEED", 0) != 0) return;
    std::uint64_t least = ~std::uint64_t{0};
    for (auto const& [pair, n] : pairs_) least = std::min(least, n);
    MESSAGE(pairs_.size() << " pairs of layouts, " << cases_ << " cases, at least " << least
                          << " of each pair");
    CHECK(failures_ == 0);
    CHECK(least >= wanted);
    CHECK(10 * shorter_ > caches_);  // else nothing was tried; four of five are, but a run may draw few
  }

private:
  std::map<std::pair<std::string, std::string>, std::uint64_t> pairs_;
  std::uint64_t caches_ = 0, shorter_ = 0, cases_ = 0, failures_ = 0;
};

// Calls run(seed, preset) for as many cases as are wanted: presets take turns, so that every pair meets all
// of them, in several runs if need be.
template <class Run>
void each_case(std::uint64_t first_seed, std::uint64_t wanted, std::vector<preset> const& presets, Run run) {
  constexpr std::uint64_t seeds = 1000000;
  std::uint64_t const only = from_environment("KVMELD_CROSS_SEED", 0);
  std::uint64_t const first = support::test_run() * wanted;
  auto const run_one = [&](std::uint64_t i) { run(first_seed + i, presets[i % presets.size()]); };
  if (only == 0) {
    for (std::uint64_t i = 0; i < wanted; ++i) run_one((first + i) % seeds);
  } else if (only >= first_seed && only - first_seed < seeds) {
    run_one(only - first_seed);
  }
}

}  // namespace

TEST_CASE("the same cache in every pair of layouts") {
  auto const formats = exact_formats();
  auto const presets = every_preset();
  tally all;
  each_case(1000000, cases_wanted(), presets, [&](std::uint64_t seed, preset const& p) {
    dice d(~seed);
    format const &keys = d.pick(formats), &values = d.pick(formats);
    all.add({seed, p, keys, values});
  });
  all.check(cases_wanted());
}

TEST_CASE("the same cache in every layout, values being channels of the keys") {
  auto const formats = exact_formats();
  auto presets = every_preset();
  presets.erase(
      std::remove_if(presets.begin(), presets.end(), [](preset const& p) { return !p.values_as_keys; }),
      presets.end());
  tally all;
  each_case(2000000, cases_wanted(), presets, [&](std::uint64_t seed, preset const& p) {
    format const& f = dice(~seed).pick(formats);
    all.add({seed, p, f, f, true});
  });
  all.check(cases_wanted());
}

TEST_CASE("the same cache in every pair of layouts, quantised keys or values") {
  auto const exact = exact_formats(), quantised = quantised_formats();
  std::uint64_t const wanted =
      (cases_wanted() + 2) / 3;  // there are many formats, which differ in two functions
  auto const presets = every_preset();
  tally all;
  for (format const& f : quantised) {
    std::uint64_t const first_seed = 3000000 + 1000000 * static_cast<std::uint64_t>(&f - quantised.data());
    each_case(first_seed, wanted, presets, [&](std::uint64_t seed, preset const& p) {
      format const& other = dice(~seed).pick(exact);
      all.add({seed, p, f, other});
      all.add({seed, p, other, f});
    });
  }
  all.check(wanted);
}

}  // namespace cross_layout_cases
