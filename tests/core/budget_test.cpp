// Counts from shares, budgets, triggers, and the schedules of Chelsea's presets.
#include <kvmeld/core/budget.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/select/selector.hpp>

#include <cmath>
#include <cstdint>

#include <doctest/doctest.h>

using kvmeld::budget;
using kvmeld::floor_share;
using kvmeld::quantity;

TEST_CASE("floor_share floors what is meant, not what double makes of it") {
  CHECK(floor_share(0.45, 20) == 9);
  CHECK(floor_share(0.29, 100) == 29);
  CHECK(floor_share(0.57, 100) == 57);
  CHECK(floor_share(1.0 / 3, 9) == 3);
  CHECK(floor_share(0.0, 1000) == 0);
  CHECK(floor_share(1.0, 4294967295u) == 4294967295u);
  for (std::uint32_t whole = 0; whole <= 400; ++whole) {
    for (std::uint32_t percent = 0; percent <= 100; ++percent)
      CHECK_MESSAGE(floor_share(percent / 100.0, whole) == percent * whole / 100,
                    percent << "% of " << whole);
  }
}

TEST_CASE("budgets resolve per track") {
  kvmeld::track const t = kvmeld::make_track({2, 3, 4, 1, 1, 1, 1}, 1, 2, 3);
  CHECK(t.index == 23);
  CHECK(budget::entries(7).resolve(t, 1000) == 7);
  CHECK(budget::ratio(0.45).resolve(t, 20) == 9);
  CHECK(budget::ratio(1.0).resolve(t, 17) == 17);
  std::uint32_t table[24] = {};
  table[23] = 11;
  CHECK(budget::per_track(table).resolve(t, 1000) == 11);
  CHECK(budget::ratio(0.5).is_ratio());
  CHECK(budget::ratio(0.5).ratio_value() == 0.5);
  CHECK_FALSE(budget::ratio(0.5).is_per_track());
  CHECK(budget::per_track(table).is_per_track());
  CHECK(budget::per_track(table).table() == table);
  CHECK_FALSE(budget::entries(3).is_ratio());
  std::uint32_t const layers[2] = {5, 6};  // t is in layer 1
  CHECK(budget::per_layer(layers).resolve(t, 1000) == 6);
  CHECK(budget::per_layer(layers).is_per_layer());
  CHECK(budget::per_layer(layers).table() == layers);
  CHECK_FALSE(budget::per_layer(layers).is_per_track());
  CHECK_FALSE(budget::per_track(table).is_per_layer());
}

TEST_CASE("quantities resolve against length, budget and what is taken") {
  CHECK(quantity::entries(5).resolve(100, 50, 10) == 5);
  CHECK(quantity::of_length(0.17).resolve(100, 50, 10) == 17);
  CHECK(quantity::of_budget(0.5).resolve(100, 50, 10) == 25);
  CHECK(quantity::rest_of_budget().resolve(100, 50, 10) == 40);
  CHECK(quantity::rest_of_budget().resolve(100, 50, 60) == 0);
  CHECK(quantity::rest_of_budget(0.1).resolve(100, 50, 10) == 35);
  CHECK(quantity::rest_of_budget(0.01).resolve(100, 50, 10) == 39);  // one at least
  CHECK(quantity::rest_of_budget(0.1).resolve(100, 50, 46) == 0);
  CHECK(quantity::rest_of_budget(0.1).is_share());
  CHECK(kvmeld::share_problem("x", quantity::rest_of_budget(1.5)) != "");
  CHECK(kvmeld::share_problem("x", quantity::rest_of_budget(std::nan(""))) != "");
  CHECK(quantity::of_length(0.2).is_share());
  CHECK(quantity::of_budget(0.2).is_share());
  CHECK_FALSE(quantity::entries(2).is_share());
  CHECK_FALSE(quantity::rest_of_budget().is_share());
}

TEST_CASE("pins resolve in the order sinks, recents, heavy, within the track") {
  auto const rest = quantity::rest_of_budget();
  auto const p = kvmeld::resolve_pins(quantity::entries(4), quantity::of_budget(0.5), rest, 100, 40, 0);
  CHECK(p.sinks == 4);
  CHECK(p.recents == 20);
  CHECK(p.heavy == 16);
  CHECK(p.total() == 40);
  auto const frozen = kvmeld::resolve_pins(quantity::entries(4), quantity::of_budget(0.5), rest, 100, 40, 30);
  CHECK(frozen.sinks == 30);
  CHECK(frozen.recents == 5);  // half of the 10 that are left
  CHECK(frozen.heavy == 5);
  auto const small =
      kvmeld::resolve_pins(quantity::entries(8), quantity::entries(8), quantity::entries(8), 10, 40, 0);
  CHECK(small.sinks == 8);
  CHECK(small.recents == 2);
  CHECK(small.heavy == 0);
}

TEST_CASE("a trigger is due at limit plus interval") {
  kvmeld::trigger const t{100, 64};
  CHECK_FALSE(t.due(163));
  CHECK(t.due(164));
  CHECK(t.due(165));
  CHECK(kvmeld::trigger{10}.interval == 64);
}

namespace {

// Rounds from n entries to floor(0.2 n), of which `pinned` take no part.
std::uint32_t rounds_to_a_fifth(kvmeld::round_schedule const& schedule, std::uint32_t n,
                                std::uint32_t pinned) {
  std::uint32_t const wanted = floor_share(0.2, n);
  std::uint32_t alive = n, rounds = 0;
  while (alive > wanted) {
    std::uint32_t const edges = schedule.edges(rounds, alive - pinned);
    alive -= kvmeld::min_of(edges, alive - wanted);
    ++rounds;
  }
  return rounds;
}

}  // namespace

TEST_CASE("Chelsea's schedules: the share of a round, and the rounds a prompt takes") {
  kvmeld::round_schedule const llama2 = kvmeld::preset::chelsea::llama2().identify.admission.schedule;
  CHECK(llama2.share(0) == doctest::Approx(0.45));
  CHECK(llama2.share(1) == doctest::Approx(0.40));
  CHECK(llama2.share(3) == doctest::Approx(0.30));
  CHECK(llama2.share(9) == doctest::Approx(0.30));
  CHECK(llama2.edges(0, 20) == 9);
  kvmeld::round_schedule const llama3 = kvmeld::preset::chelsea::llama3().identify.admission.schedule;
  CHECK(llama3.share(0) == doctest::Approx(0.35));
  CHECK(llama3.share(2) == doctest::Approx(0.15));
  kvmeld::round_schedule const qwen = kvmeld::preset::chelsea::qwen().identify.admission.schedule;
  CHECK(qwen.share(2) == doctest::Approx(0.05));  // 0 would never end
  CHECK(qwen.edges(2, 3) == 1);
  kvmeld::round_schedule const needle = kvmeld::preset::chelsea::needle().identify.admission.schedule;
  CHECK(needle.share(0) == doctest::Approx(0.25));
  CHECK(needle.share(7) == doctest::Approx(0.25));

  // To a fifth; 16 sinks and 64 recents take no part, which costs the slow schedule of Qwen a round at 32000
  // tokens.
  for (std::uint32_t pinned : {0u, 80u}) {
    CHECK(rounds_to_a_fifth(llama2, 32000, pinned) == 4);
    CHECK(rounds_to_a_fifth(llama3, 32000, pinned) == 8);
  }
  CHECK(rounds_to_a_fifth(qwen, 32000, 0) == 27);
  CHECK(rounds_to_a_fifth(qwen, 32000, 80) == 28);
}

TEST_CASE("a count that gives way to a share of a small budget") {
  kvmeld::quantity const q = kvmeld::quantity::at_most(64, 1.0 / 3);
  CHECK(q.resolve(1000, 204, 0) == 64);
  CHECK(q.resolve(1000, 192, 0) == 64);
  CHECK(q.resolve(1000, 191, 0) == 63);
  CHECK(q.resolve(1000, 30, 0) == 10);
  CHECK(kvmeld::share_problem("x", kvmeld::quantity::at_most(4, 1.5)).find("1.5") != std::string::npos);
}
