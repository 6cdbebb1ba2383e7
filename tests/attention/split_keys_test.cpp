#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "ragged_call.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace {

using attention_test::call;
using kvmeld::attention::key_part;
using kvmeld::attention::partial_rows;

// Writes down the part of every tile.
struct find_parts {
  partial_rows parts;
  kvmeld::batch_source batch;
  kvmeld::ledger_ref ledger;
  key_part* found;

  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return partial_rows::find_scratch(); }
  template <class Team> KVMELD_HD void operator()(Team const& team, kvmeld::tile const& t) const {
    key_part const part = parts.find(team, batch, ledger, t);
    if (team.lane() == 0) found[t.item] = part;
  }
};

// The fewest blocks of a part, from the lengths of the tracks that are not idle.
std::uint32_t fewest_blocks(std::vector<std::uint32_t> const& lengths, std::uint32_t least,
                            std::uint32_t parts) {
  for (std::uint32_t blocks = least;; ++blocks) {
    std::uint64_t all = 0;
    for (std::uint32_t n : lengths) all += n == 0 ? 1 : (n - 1) / (64 * blocks) + 1;
    if (all <= parts) return blocks;
  }
}

template <class Executor> void every_slot_once(Executor executor, std::uint64_t seed) {
  support::dice d(seed);
  kvmeld::shape const s{2, 5, d.pick({1u, 3u}), 2, 4, 4, d.pick({40u, 700u, 5000u})};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  kvmeld::ledger_ref const ledger = cache.ref().ledger;
  for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
    cache.open(sequence, 1);
    support::for_tracks(s, sequence, [&](kvmeld::track t) {
      ledger.length[t.index] = d.pick({0u, 1u, 64u, d.below(s.capacity + 1), d.below(s.capacity + 1)});
    });
  }
  std::vector<std::uint32_t> sequences{3, 0, kvmeld::idle_sequence, 1, 4};
  std::vector<std::uint32_t> const counts(5, 1);
  kvmeld::batch_source const batch{s, {1, sequences, counts}};
  std::uint32_t const per_track = d.pick({2u, 3u, 20u}), least = d.pick({1u, 2u, 9u});
  std::uint32_t const reach = d.pick({0u, 0u, 1u, 100u, 600u});
  partial_rows const parts{nullptr, per_track,   least, batch.items(), s.queries_per_kv_head,
                           1,       s.value_dim, reach};
  kvmeld::attention::part_source const items{batch, per_track};
  REQUIRE(items.items() == per_track * 5 * s.kv_heads);
  std::vector<key_part> found(items.items());
  executor.run(find_parts{parts, batch, ledger, found.data()}, s, items.items(), items);

  // Of slots that a window may show, from a block's first on.
  auto const first_of = [&](std::uint32_t n) { return reach == 0 || n <= reach ? 0 : (n - reach) / 64 * 64; };
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t i = 0; i < batch.items(); ++i) {
    if (batch.idle(i)) continue;
    std::uint32_t const n = ledger.length[batch.where(i).index];
    lengths.push_back(n - first_of(n));
  }
  CAPTURE(seed);
  std::uint32_t const share = 64 * fewest_blocks(lengths, least, items.items());
  std::uint32_t number = 0;
  for (std::uint32_t i = 0; i < batch.items(); ++i) {
    if (batch.idle(i)) continue;
    std::uint32_t const n = ledger.length[batch.where(i).index];
    std::uint32_t const first = first_of(n);
    std::uint32_t index = 0;
    for (std::uint32_t begin = first; begin < std::max(1u, n); begin += share, ++index, ++number) {
      REQUIRE(number < found.size());
      key_part const& part = found[number];
      CHECK(part.where.index == batch.where(i).index);
      CHECK(part.item == i);
      CHECK(part.number == number);
      CHECK(part.index == index);
      CHECK(part.begin() == (index == 0 ? 0 : begin));
      CHECK(part.first == first);
      CHECK(part.end(n) == std::min(n, begin + share));
      CHECK(part.count == std::max(1u, kvmeld::ceil_div(n - first, share)));
      CHECK(part.count <= parts.most_of_track(s.capacity));
    }
  }
  for (; number < found.size(); ++number) CHECK(found[number].count == 0);
}

}  // namespace

TEST_CASE("parts of a call are as short as their number allows, and cover every track once") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) every_slot_once(kvmeld::host_executor(1), seed);
  for (std::uint64_t seed = 60; seed < 90; ++seed) every_slot_once(kvmeld::testing::lane_executor(7), seed);
}

TEST_CASE("a part is never longer than a track, however many parts there are") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 1000};
  partial_rows const parts{nullptr, 1000000, 2, 1, 1, 1, 4};
  CHECK(parts.most_of_track(s.capacity) == 8);
  partial_rows const few{nullptr, 3, 1, 4, 1, 1, 4};
  CHECK(few.most_of_track(s.capacity) == 12);
}

TEST_CASE("keys of too many entries to count are not split") {
  std::uint32_t const most = kvmeld::largest::capacity;
  std::vector<std::uint32_t> sequences(256), counts(256, 1);
  kvmeld::attention::split_keys const split{2, {}};
  auto const problem = [&] {
    return kvmeld::attention::detail::split_problem(split, {0, sequences, counts},
                                                    {1, 300, 1, 1, 4, 4, most});
  };
  CHECK(problem() == "attention::attend: split.parts is 2; it must be 1, for 256 tracks of 1073741824 slots");
  sequences.pop_back();
  counts.pop_back();
  CHECK(problem() == "attention::attend: number of floats of split.memory is 0; it must be at least 3570, "
                     "for 2 parts");
}

namespace {

// A cache with one long sequence, and calls of some of its sequences.
struct split_calls {
  support::dice d{5};
  kvmeld::shape s{1, 4, 2, 3, 16, 24, 900};
  support::engine_memory<float> memory{s};
  decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) cache =
      support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  call<float, float> start{s, d, 9};

  split_calls() {
    for (std::uint32_t sequence : {0u, 1u, 3u}) {  // 2 is empty
      std::uint32_t const n = sequence == 0 ? 900 : 120;
      memory.fill_sequence(d, sequence, 0, n, support::texture::clusters);
      cache.open(sequence, n);
    }
    cache.ledger().length[kvmeld::make_track(s, 0, 1, 1).index] = 100;
    start.fit(cache.ledger());
    start.counts.back() = start.most - 1;  // of sequence 0
  }
  // Outputs and log-sum-exps of every sequence of the call; `first`: the first of them.
  std::vector<std::vector<float>> run(kvmeld::attention::split_keys split, std::uint32_t first = 0,
                                      std::uint32_t end = 4) {
    call<float, float> c = start;
    c.sequences.assign(start.sequences.data() + first, start.sequences.data() + end);
    c.counts.assign(start.counts.data() + first, start.counts.data() + end);
    std::vector<float> results(kvmeld::attention::split_floats(s, split.parts, 4, c.most));
    split.memory = results;
    auto queries = c.queries();
    queries.data += first * queries.sequence_stride;
    kvmeld::attention::attend(cache.executor(), c.batch(0), queries, cache.ref(), c.outputs(), c.sums(), {},
                              split);
    std::vector<std::vector<float>> all;
    for (std::uint32_t i = 0; i < c.sequences.size(); ++i) {
      std::vector<float> rows;
      for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
        for (std::uint32_t m = 0; m < c.counts[i]; ++m) {
          float const* const row = c.outputs().row(i, head, m);
          rows.insert(rows.end(), row, row + s.value_dim);
          rows.push_back(*c.sums().row(i, head, m));
        }
      }
      all.push_back(rows);
    }
    return all;
  }
};

}  // namespace

TEST_CASE("what is not split has the bits of a call that splits nothing") {
  split_calls calls;
  auto const whole = calls.run({}), split = calls.run({2, {}, 128});
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(calls.start.sequences[i]);
    CHECK(support::same_bits(whole[i], split[i]) == (calls.start.sequences[i] != 0));
  }
  CHECK(whole == calls.run({2, {}, 0xffffffffu}));  // parts as long as a track can be
}

TEST_CASE("with enough parts of a fixed length, bits do not depend on the batch") {
  split_calls calls;
  auto const fixed = calls.run({8, {}, 128}), other = calls.run({2, {}, 1});
  CHECK(support::same_bits(fixed[3], calls.run({8, {}, 128}, 3)[0]));
  CHECK(support::same_bits(fixed[3], calls.run({9, {}, 128}, 2)[1]));
  CHECK(support::same_bits(fixed[1], calls.run({8, {}, 65}, 1, 2)[0]));
  CHECK_FALSE(
      support::same_bits(other[3], calls.run({2, {}, 1}, 3)[0]));  // two long tracks alone: longer parts
}
