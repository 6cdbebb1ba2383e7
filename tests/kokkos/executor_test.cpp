// What an executor is asked for beside launches, and the collective calls of a Kokkos team.
#include "device.hpp"

#include "cache/refusal.hpp"
#include "device/merging.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace executor_cases {

namespace {

using space = Kokkos::DefaultExecutionSpace;
using device = kokkos_test::kokkos_device<space>;
// Launches that nobody waits for.
using waiting = kokkos_test::kokkos_device<space, false>;

// Every collective call on every lane: what it gives goes to out[tile][lane].
struct asks_the_team {
  std::uint32_t* sums;
  std::uint32_t *least, *most, *before, *totals, *shared, *counts, *wrong;
  std::uint32_t lanes;

  std::uint32_t tiles(kvmeld::shape const& s) const { return s.capacity; }
  std::size_t scratch_bytes(int n) const {
    return kvmeld::scratch_size(static_cast<std::size_t>(n) * sizeof(std::uint32_t)) +
           kvmeld::scratch_size(sizeof(std::uint32_t));
  }
  template <class Team> KVMELD_HD void operator()(Team const& team, kvmeld::tile const& t) const {
    std::uint32_t* const all = team.template scratch<std::uint32_t>(team.lanes());
    std::uint32_t* const one = team.template scratch<std::uint32_t>(1);
    std::uint32_t const at = t.index * lanes + team.lane(), x = 3 * team.lane() + t.index + 1;
    if (team.lane() == 0) *one = 0;
    team.sync();
    all[team.lane()] = x;
    team.fetch_add(one, x);
    team.sync();
    shared[at] = all[team.lanes() - 1 - team.lane()];
    counts[at] = *one;
    sums[at] = team.reduce(x, kvmeld::op_sum());
    least[at] = team.reduce(x, kvmeld::op_min());
    most[at] = team.reduce(x, kvmeld::op_max());
    kvmeld::scan_result const s = team.scan(x);
    before[at] = s.before;
    totals[at] = s.total;
    wrong[at] = 0;  // nothing has to lie between two calls
    for (std::uint32_t i = 0; i < 200; ++i) {
      kvmeld::scan_result const next = team.scan(x + i);
      wrong[at] +=
          next.before == s.before + i * team.lane() && next.total == s.total + i * team.lanes() ? 0u : 1u;
      wrong[at] += team.reduce(x + i, kvmeld::op_max()) == most[at] + i ? 0u : 1u;
    }
  }
};

struct all_tracks {
  KVMELD_HD kvmeld::track where(std::uint32_t) const { return {}; }
  KVMELD_HD bool idle(std::uint32_t) const { return false; }
};

}  // namespace

TEST_CASE("collective calls of a Kokkos team are those of plain loops over its lanes") {
  for (std::uint32_t wanted : kokkos_test::team_sizes<space>()) {
    device const d{wanted};
    auto executor = d.executor(kvmeld::tuning::off);
    auto const lanes = static_cast<std::uint32_t>(executor.lanes());
    CHECK((wanted == 0 || lanes == wanted));
    constexpr std::uint32_t tiles = 50;
    kvmeld::shape s{};
    s.capacity = tiles;
    device::array<std::uint32_t> sums(tiles * lanes), least(tiles * lanes), most(tiles * lanes),
        before(tiles * lanes), totals(tiles * lanes), shared(tiles * lanes), counts(tiles * lanes),
        wrong(tiles * lanes);
    executor.run(asks_the_team{sums.data(), least.data(), most.data(), before.data(), totals.data(),
                               shared.data(), counts.data(), wrong.data(), lanes},
                 s, 1, all_tracks{});
    CHECK(device::settled(executor));
    auto const got_sums = sums.get(), got_least = least.get(), got_most = most.get(),
               got_before = before.get(), got_totals = totals.get(), got_shared = shared.get(),
               got_counts = counts.get(), got_wrong = wrong.get();
    for (std::uint32_t n = 0; n < tiles; ++n) {
      std::uint32_t sum = 0;
      for (std::uint32_t i = 0; i < lanes; ++i) sum += 3 * i + n + 1;
      std::uint32_t so_far = 0;
      for (std::uint32_t i = 0; i < lanes; ++i) {
        std::size_t const at = n * lanes + i;
        CHECK(got_sums[at] == sum);
        CHECK(got_counts[at] == sum);
        CHECK(got_wrong[at] == 0);
        CHECK(got_totals[at] == sum);
        CHECK(got_least[at] == n + 1);
        CHECK(got_most[at] == 3 * (lanes - 1) + n + 1);
        CHECK(got_before[at] == so_far);
        CHECK(got_shared[at] == 3 * (lanes - 1 - i) + n + 1);
        so_far += 3 * i + n + 1;
      }
    }
  }
}

TEST_CASE("a team larger than the space has is refused") {
  std::uint32_t const most = device::executor_type::max_lanes();
  std::string const text = cache_test::refusal_of([&] { device::executor_type({}, most + 1); });
  CHECK(text ==
        kvmeld::refusal("kokkos_executor", "team_size", most + 1, "at most ", most, " on ", space::name()));
}

#if KOKKOS_VERSION >= 40000
TEST_CASE("an instance with a part of the threads is asked for its own largest team") {
  auto const parts = Kokkos::Experimental::partition_space(space(), 1, 1);
  std::uint32_t const most = device::executor_type::max_lanes(parts[0]);
  CHECK(most >= 1);
  CHECK(device::executor_type(parts[0], most).lanes() == static_cast<int>(most));
  CHECK_FALSE(cache_test::refusal_of([&] { device::executor_type(parts[0], most + 1); }).empty());
}
#endif

TEST_CASE_TEMPLATE("memory of a space is filled, copied and read in order", Device, device, waiting) {
  auto executor = Device{}.executor(kvmeld::tuning::on);
  using memory = typename Device::executor_type::memory;
  CHECK(memory().data() == nullptr);
  CHECK(memory(0).size() == 0);
  std::vector<std::uint32_t> numbers(100000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint32_t>(i * i);
  for (std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{256}, std::size_t{257}, std::size_t{5000},
                        numbers.size()}) {
    std::size_t const bytes = n * sizeof(std::uint32_t);
    memory m = executor.allocate(bytes);
    CHECK(m.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(m.data()) % 64 == 0);
    std::vector<std::uint32_t> got(n, 7),
        sent(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(n));
    executor.upload(m.data(), sent.data(), bytes);
    std::vector<std::uint32_t> const was = std::exchange(sent, std::vector<std::uint32_t>(n, 1));
    executor.download(got.data(), m.data(), bytes);
    CHECK(got == was);
    memory copy(m), assigned;
    assigned = m;
    executor.clear(m.data(), bytes);
    executor.download(got.data(), m.data(), bytes);
    CHECK(got == std::vector<std::uint32_t>(n, 0));
    executor.download(got.data(), copy.data(), bytes);
    CHECK(got == was);
    memory const moved = std::move(assigned);
    CHECK(assigned.data() == nullptr);
    executor.download(got.data(), moved.data(), bytes);
    CHECK(got == was);
    // Odd bytes do not travel inside launches.
    unsigned char const odd[3] = {1, 2, 3};
    unsigned char back[3] = {};
    executor.upload(m.data(), odd, 3);
    executor.download(back, m.data(), 3);
    CHECK(back[2] == 3);
  }
  executor.upload(nullptr, nullptr, 0);
  executor.download(nullptr, nullptr, 0);
  executor.clear(nullptr, 0);
}

TEST_CASE("staged lists stay as they were while others are staged, and longer ones find room") {
  auto executor = waiting{}.executor(kvmeld::tuning::on);
  auto const read = [&](kvmeld::index_list list) {
    std::vector<std::uint32_t> out(list.size());
    executor.download(out.data(), list.data(), out.size() * sizeof(std::uint32_t));
    return out;
  };
  std::vector<std::uint32_t> a(1000, 4), b(20000, 5), c(100000, 6);
  for (int i = 0; i < 10; ++i) {  // around the end of the ring, several times
    auto const first = executor.stage(a), second = executor.stage(b), third = executor.stage(a);
    CHECK(read(first) == a);
    CHECK(read(second) == b);
    CHECK(read(third) == a);
  }
  auto const early = executor.stage(a), longest = executor.stage(c), late = executor.stage(b);
  CHECK(read(early) == a);
  CHECK(read(longest) == c);
  CHECK(read(late) == b);
  auto copy = executor;
  auto const of_the_copy = copy.stage(b);
  CHECK(read(late) == b);
  CHECK(read(of_the_copy) == b);
  auto host = device{}.executor(kvmeld::tuning::on);
  if (device::executor_type::immediate) CHECK(host.stage(a).data() == a.data());
}

TEST_CASE("room asked for beforehand changes nothing; workers and records are what they have to be") {
  auto executor = device{}.executor(kvmeld::tuning::on);
  executor.reserve(0);
  executor.reserve(1 << 20);
  auto const most = static_cast<std::size_t>(Kokkos::TeamPolicy<space>::scratch_size_max(1));
  CHECK(cache_test::refusal_of([&] {
          executor.reserve(most);
        }).find("kokkos_executor: scratch in bytes of a team is ") != std::string::npos);
  CHECK(executor.workers() >= 1);
  CHECK_FALSE(executor.records());
  CHECK(executor.limit("slots", 3, 9) == 3);
  CHECK(executor.tuning_mode() == kvmeld::tuning::on);
}

TEST_CASE("a report that was asked for arrives") {
  using layout = kvmeld::strided<float>;
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 32};
  waiting::array<float> const k(std::vector<float>(s.slots() * 4, 1.0f)),
      v(std::vector<float>(s.slots() * 4, 1.0f));
  kvmeld::merged_cache cache{waiting{}.executor(kvmeld::tuning::on), device_test::steep_chelsea(),
                             kvmeld::kv{layout(k.data(), "LSTHC", s, 4), layout(v.data(), "LSTHC", s, 4)},
                             kvmeld::cache_options{s}};
  cache.open(0, 30);
  cache.compress({0}, kvmeld::budget::entries(20), kvmeld::shortfall::keep);
  CHECK(cache.length_bound(0) == 30);  // what is left depends on the rows
  cache.request_lengths();
  CHECK(cache.poll_lengths());
  CHECK(cache.length_bound(0) == 20);
  CHECK_FALSE(cache.poll_lengths());
}

}  // namespace executor_cases
