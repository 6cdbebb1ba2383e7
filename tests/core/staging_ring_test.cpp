// Lists placed in a ring keep their numbers as long as is promised, through growth and around the end.
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/exec/staging_ring.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

struct placed {
  std::uint32_t const* at;
  std::vector<std::uint32_t> numbers;
  std::size_t since, window;  // numbers placed after it, and how many may be
};

}  // namespace

TEST_CASE("a list keeps its numbers until a window's worth of others has been placed") {
  support::dice d(3);
  for (int run = 0; run < 50; ++run) {
    std::size_t const first = d.between(3, 400);
    kvmeld::detail::staging_ring<kvmeld::host_memory> ring(
        kvmeld::host_memory(first * sizeof(std::uint32_t)));
    CHECK(ring.window() == first / 3);
    std::deque<placed> alive;
    std::size_t grown = 0;
    std::uint32_t value = 0;
    for (int i = 0; i < 400; ++i) {
      std::size_t const n =
          d.chance(0.02) ? d.between(1, 600) : d.between(0, static_cast<std::uint32_t>(ring.window()));
      std::size_t const before = ring.window();
      std::uint32_t* const at = ring.place(n, [&](std::size_t bytes) {
        ++grown;
        return kvmeld::host_memory(bytes);
      });
      CHECK((ring.window() == before || n > before));
      std::vector<std::uint32_t> numbers(n);
      for (std::uint32_t& x : numbers) x = ++value;
      std::copy(numbers.begin(), numbers.end(), at);
      for (placed& p : alive) p.since += n;
      while (!alive.empty() && alive.front().since > alive.front().window) alive.pop_front();
      alive.push_back({at, numbers, 0, ring.window()});
      std::size_t wrong = 0;
      for (placed const& p : alive) {
        if (p.since <= p.window) wrong += std::equal(p.numbers.begin(), p.numbers.end(), p.at) ? 0 : 1;
      }
      REQUIRE(wrong == 0);
    }
    CHECK(grown < 12);
  }
}
