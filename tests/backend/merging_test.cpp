// Merging of long tracks along tokens and in groups of channels, by every instruction set: the bits of the
// generic loops.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "apply/hand_made.hpp"
#include "backend/instruction_sets.hpp"
#include "support/cache_bytes.hpp"
#include "support/contraction.hpp"
#include "support/random_cache.hpp"

namespace {

using support::dice;

// Sets around pivots that are `apart` slots from each other: members lie near them, a few anywhere; one set
// takes in thousands.
void merge_at_random(dice& d, kvmeld::plan_ref const& p, std::uint32_t n, std::uint32_t apart) {
  std::uint32_t const huge = d.below(n), most = d.chance(0.3) ? 2500 : 70;
  std::uint32_t joined = 0;
  for (std::uint32_t s = 0; s < n; ++s) {
    std::uint32_t const pivot = s / apart * apart + apart / 2, far = d.below(n) / apart * apart + apart / 2;
    auto const weight = static_cast<float>(d.normal());
    kvmeld::fate const how = s % apart == apart / 2 || s == huge ? kvmeld::fate::keep : kvmeld::fate::merge;
    std::uint32_t target = s;
    if (how == kvmeld::fate::merge) {
      bool const to_huge = joined < most && d.chance(0.5);
      joined += to_huge ? 1 : 0;
      target = to_huge ? huge : d.chance(0.02) ? far : pivot;
    }
    bool const stays = target >= n || (target == s && how == kvmeld::fate::merge) || d.chance(0.1);
    hand_made::send(p, 0, s, stays || how == kvmeld::fate::keep ? kvmeld::fate::keep : how,
                    stays ? s : target, weight, weight, 1.0f);
  }
  // Who was sent to somebody who left stays.
  for (std::uint32_t s = 0; s < n; ++s) {
    if (p.fates[p.at(0, s)] != kvmeld::fate::merge) continue;
    if (p.fates[p.at(0, p.target[p.at(0, s)])] == kvmeld::fate::keep) continue;
    p.fates[p.at(0, s)] = kvmeld::fate::drop;
    p.target[p.at(0, s)] = s;
  }
  hand_made::dump::renumber(p, 0);
}

// All rows after the plan of `seed`, as floats; then the memory.
template <class Layout, class T>
std::vector<float> merged(kvmeld::host_executor const& executor, Layout const& rows, std::vector<T>& memory,
                          std::uint32_t n, std::uint32_t capacity, std::uint32_t seed) {
  dice d(seed);
  std::uint32_t const channels = rows.channels(), apart = d.between(2, 40);
  kvmeld::shape const s{1, 1, 1, 1, channels, 1, capacity};
  kvmeld::track const t{};
  for (T& x : memory) x = kvmeld::element_traits<T>::from_float(-7.0f);
  for (kvmeld::slot_t slot = 0; slot < n; ++slot) {
    std::vector<float> row(channels);
    for (float& x : row) x = static_cast<float>(d.uniform()) - 0.5f;
    support::put_row(rows, t, slot, row);
  }
  std::vector<T> values(capacity);
  kvmeld::cache_options options = support::with_plan();
  options.extent = s;
  kvmeld::merged_cache cache{executor, hand_made::policy(),
                             kvmeld::kv{rows, kvmeld::strided<T>(values.data(), "LSHTC", s, 1)}, options};
  cache.open(0, n);
  cache.plan({0}, kvmeld::budget::entries(capacity));
  merge_at_random(d, cache.current_plan(), n, apart);
  cache.apply();
  std::vector<float> out{static_cast<float>(cache.ref().length(t))};
  for (kvmeld::slot_t slot = 0; slot < capacity;
       ++slot) {  // those behind the length too: nothing else was written
    for (float x : support::get_row(rows, t, slot)) out.push_back(x);
  }
  return out;
}

template <class T, class Check> void over_lengths(Check check) {
  dice d(61);
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const n = d.between(2900, 4100), capacity = n + (i % 2 == 0 ? 0 : d.below(40));
    for (std::uint32_t channels : {16u, 70u, 80u}) check(n, capacity, channels, d.below(1000));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("merging along tokens has the bits of merging row by row", T, float, kvmeld::float16,
                   kvmeld::bfloat16) {
  over_lengths<T>([](std::uint32_t n, std::uint32_t capacity, std::uint32_t channels, std::uint32_t seed) {
    kvmeld::shape const s{1, 1, 1, 1, channels, 1, capacity};
    std::vector<T> memory(std::size_t{capacity} * channels);
    auto const wanted =
        merged(kvmeld::host_executor(1, kvmeld::tuning::off),
               kvmeld::strided<T>(memory.data(), "LSHTC", s, channels), memory, n, capacity, seed);
    CHECK(wanted[0] < static_cast<float>(n) * 0.7f);
    for (auto set : instruction_sets()) {
      CAPTURE(kvmeld::name_of(set));
      auto const got =
          merged(kvmeld::host_executor(2, kvmeld::tuning::on, set),
                 kvmeld::transposed<T>(memory.data(), "LSHCT", s, channels), memory, n, capacity, seed);
      CHECK(support::same_sums(got, wanted));
    }
  });
}

TEST_CASE_TEMPLATE("merging in groups of channels has the bits of merging whole rows", T, float,
                   kvmeld::float16, kvmeld::bfloat16) {
  over_lengths<T>([](std::uint32_t n, std::uint32_t capacity, std::uint32_t channels, std::uint32_t seed) {
    kvmeld::shape const s{1, 1, 1, 1, channels, 1, capacity};
    std::vector<T> memory(std::size_t{capacity} * channels);
    auto const wanted =
        merged(kvmeld::host_executor(1, kvmeld::tuning::off),
               kvmeld::strided<T>(memory.data(), "LSHTC", s, channels), memory, n, capacity, seed);
    for (std::uint32_t width : {16u, 8u, 5u, 2u}) {
      if (channels % width != 0) continue;
      kvmeld::strided<T> const groups(memory.data(), {0, 0, 0, width, std::int64_t{capacity} * width}, s,
                                      channels / width);
      for (auto set : instruction_sets()) {
        CAPTURE(kvmeld::name_of(set));
        CAPTURE(width);
        auto const got = merged(kvmeld::host_executor(1, kvmeld::tuning::on, set),
                                kvmeld::tiled(groups, width), memory, n, capacity, seed);
        CHECK(support::same_sums(got, wanted));
      }
    }
  });
}
