// The tuned select_k against a stable sort, and the choice of instruction sets.
#include <doctest/doctest.h>

#include <kvmeld/core/bits.hpp>
#include <kvmeld/exec/select_k.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"

using support::dice;
using slot_list = std::vector<std::uint32_t>;

namespace {

// Indices of the k highest keys, 0 never among them, ties to the lower index; ascending.
slot_list best(slot_list const& keys, std::uint32_t k) {
  slot_list order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return keys[a] > keys[b]; });
  order.resize(std::min<std::size_t>(order.size(), k));
  order.erase(std::remove_if(order.begin(), order.end(), [&](std::uint32_t i) { return keys[i] == 0; }),
              order.end());
  std::sort(order.begin(), order.end());
  return order;
}

template <class Key>
slot_list selected(kvmeld::instruction_set set, std::uint32_t n, std::uint32_t k, Key key) {
  tuned_lane const lane(kvmeld::kernels_of(set), kvmeld::select_k_scratch());
  slot_list marks(n, 0);
  std::uint32_t const count = kvmeld::select_k(lane.team(), n, k, key, [&](std::uint32_t i) { ++marks[i]; });
  slot_list taken;
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t m = 0; m < marks[i]; ++m) taken.push_back(i);
  }
  CHECK(count == taken.size());
  return taken;
}

void check_keys(kvmeld::instruction_set set, slot_list const& keys, std::uint32_t k) {
  CAPTURE(keys.size());
  CAPTURE(k);
  CHECK(selected(set, static_cast<std::uint32_t>(keys.size()), k, [&](std::uint32_t i) { return keys[i]; }) ==
        best(keys, k));
}

void check_scores(kvmeld::instruction_set set, std::vector<float> const& scores, std::uint32_t k) {
  CAPTURE(scores.size());
  CAPTURE(k);
  auto const n = static_cast<std::uint32_t>(scores.size());
  slot_list keys;
  for (float x : scores) keys.push_back(std::max(1u, kvmeld::order_key(x)));
  std::vector<std::uint8_t> wanted(n + 1, 3);
  for (std::uint32_t i : best(keys, k)) wanted[i] = 5;
  wanted[n] = 7;
  std::vector<std::uint8_t> marks(n + 1, 9);
  marks[n] = 7;  // nothing is written behind the scores
  tuned_lane const lane(kvmeld::kernels_of(set), kvmeld::select_k_scratch());
  kvmeld::mark_best(lane.team(), n, k, scores.data(), std::uint8_t{5}, std::uint8_t{3}, marks.data());
  CHECK(marks == wanted);
}

}  // namespace

TEST_CASE("the tuned selection takes what a sort would, of any number of keys and of any kind") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(31);
    for (std::uint32_t n :
         {0u, 1u, 15u, 16u, 17u, 63u, 64u, 1000u, 5000u, 16320u, 16384u, 20000u, 70000u, 300000u}) {
      if (support::brief() && n > 20000) continue;
      for (std::uint32_t kind = 0; kind < 6; ++kind) {
        slot_list keys(n);
        for (std::uint32_t i = 0; i < n; ++i) {
          auto const any = static_cast<std::uint32_t>(d.next() >> 32);
          keys[i] = kind == 0   ? any
                    : kind == 1 ? any % 4
                    : kind == 2 ? 0xffffffffu - any % 3
                    : kind == 3 ? (i * 8 < n ? 0xf0000000u + any % 1000 : any % 1000)  // what a sample misses
                    : kind == 4 ? i + 1
                                : 77u;
          if (kind < 2 && d.chance(0.05)) keys[i] = 0;
        }
        for (std::uint32_t k : {0u, 1u, n / 10, n / 2, n - (n != 0), n, n + 5}) check_keys(set, keys, k);
      }
    }
  }
}

TEST_CASE("scores are marked as their order keys rank, with NaN, infinities and both zeros among them") {
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(32);
    for (std::uint32_t n : {0u, 1u, 16u, 33u, 3000u, 16320u, 16321u, 50000u, 270000u}) {
      if (support::brief() && n > 20000) continue;
      for (int kind = 0; kind < 7; ++kind) {
        std::vector<float> scores(n);
        std::uint32_t i = 0;
        for (float& x : scores) {
          x = static_cast<float>(kind == 0   ? d.uniform()
                                 : kind == 1 ? d.normal()
                                 : kind == 4 ? 1.0 - 1e-6 * i  // first the best
                                 : kind == 5
                                     ? (i % 8 == 1 ? 2.0 + d.uniform() : d.uniform() / 8)  // rare at samples
                                 : kind == 6 ? 1.0 + 1e-7 * (d.below(8) + (i % 2))  // a handful of values
                                             : d.below(5));
          if (kind == 3 && d.chance(0.3)) {
            constexpr std::uint32_t odd[] = {0x7fc00000u, 0xff800001u, 0x7f800000u,
                                             0xff800000u, 0x80000000u, 0u};
            x = kvmeld::bits_float(d.pick(odd));
          }
          ++i;
        }
        for (std::uint32_t k : {0u, 1u, n / 100, n / 5, n / 2, n - n / 16, n - (n != 0), n, n + 1})
          check_scores(set, scores, k);
      }
    }
  }
}

TEST_CASE("protected scores and few wanted ones among very many are marked exactly") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(33);
    for (std::uint32_t n : {20000u, 1000000u}) {
      if (support::brief() && n > 20000) continue;
      for (float top : {infinity, 3e38f, 1.0f}) {
        std::vector<float> scores(n);
        for (std::uint32_t i = 0; i < n; ++i) {
          scores[i] = i % 100 == 7 ? top : top == 1.0f ? static_cast<float>(d.uniform()) : -1.0f;
        }
        for (std::uint32_t k : {n / 200, n / 100, n / 100 + 1, n - n / 100}) check_scores(set, scores, k);
      }
    }
  }
}

TEST_CASE("chosen indices in ascending order, each once, whatever their number and density") {
  auto const best = kvmeld::best_instruction_set();
  dice d(35);
  for (auto const* kernels : {kvmeld::kernels_of(best), static_cast<kvmeld::host_kernels const*>(nullptr)}) {
    tuned_lane const lane(kernels, kvmeld::select_k_scratch());
    for (std::uint32_t n : {0u, 1u, 2u, 127u, 128u, 129u, 255u, 256u, 257u, 1000u}) {
      for (double density : {0.0, 0.01, 0.5, 0.99, 1.0}) {
        CAPTURE(n);
        CAPTURE(density);
        std::vector<bool> wanted(n);
        slot_list expected;
        // Stretches of one answer too: a piece of the list may be whole or empty.
        for (std::uint32_t i = 0; i < n; ++i) {
          bool const steady = i / 150 % 2 == 1;
          wanted[i] = steady ? density >= 0.5 : d.chance(density);
          if (wanted[i]) expected.push_back(i);
        }
        slot_list asked(n, 0), compacted(n, 777), visited;
        auto const chosen = [&](std::uint32_t i) {
          ++asked[i];
          return wanted[i];
        };
        std::uint32_t const count = kvmeld::compact_indices(
            lane.team(), n, chosen, [&](std::uint32_t rank, std::uint32_t i) { compacted[rank] = i; });
        CHECK(count == expected.size());
        compacted.resize(count);
        CHECK(compacted == expected);
        for (std::uint32_t times : asked) CHECK((times == 1 || times == 2));
        asked.assign(n, 0);
        kvmeld::for_each_chosen(lane.team(), n, chosen, [&](std::uint32_t i) { visited.push_back(i); });
        CHECK(visited == expected);
        CHECK(asked == slot_list(n, 1));
      }
    }
  }
}

#if defined(KVMELD_TUNED_X86)
TEST_CASE("subnormal scores rank as their keys where the processor takes them for zero") {
  unsigned const before = __builtin_ia32_stmxcsr();
  for (auto set : instruction_sets()) {
    CAPTURE(kvmeld::name_of(set));
    dice d(34);
    std::vector<float> scores(40000);
    for (float& x : scores) x = kvmeld::bits_float(1 + d.below(6) + (d.chance(0.3) ? 0x80000000u : 0u));
    __builtin_ia32_ldmxcsr(before | 0x8040u);  // denormals are zero, on the way in and out
    check_scores(set, scores, 20000);
    check_scores(set, scores, 300);
    __builtin_ia32_ldmxcsr(before);
  }
}
#endif

TEST_CASE("an executor uses the widest set unless told otherwise, and none where tuning is off") {
  using kvmeld::host_executor;
  using kvmeld::instruction_set;
  using kvmeld::tuning;
  CHECK(host_executor(1).instructions() == kvmeld::best_instruction_set());
  CHECK(host_executor(1, tuning::off).instructions() == instruction_set::generic);
  CHECK(host_executor(1, tuning::on, instruction_set::generic).instructions() == instruction_set::generic);
  CHECK(kvmeld::kernels_of(instruction_set::generic) == nullptr);
  for (auto set :
       {instruction_set::sse2, instruction_set::avx2, instruction_set::avx512, instruction_set::neon}) {
    host_executor const asked(1, tuning::on, set);
    CHECK(asked.instructions() == (kvmeld::supports(set) ? set : instruction_set::generic));
    CHECK((kvmeld::kernels_of(set) != nullptr) == kvmeld::supports(set));
    host_executor copy(2);
    copy = asked;
    CHECK(copy.instructions() == asked.instructions());
    CHECK(host_executor(asked).instructions() == asked.instructions());
  }
#if defined(KVMELD_TUNED_X86)
  CHECK(kvmeld::supports(instruction_set::sse2));
  CHECK_FALSE(kvmeld::supports(instruction_set::neon));
#endif
}
