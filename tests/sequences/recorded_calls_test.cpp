// Calls recorded once and replayed with other lists do what they do when they are made anew.
#include "support/brief.hpp"
#include "twins.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace recorded_calls_cases {

using namespace sequences_test;

namespace {

// The far twin's steps are replays: of what a decode graph holds, and of a compression.
template <class Policy> class replayed : public twins<Policy> {
  using base = twins<Policy>;
  using base::d_;
  using base::far_;
  using base::near_;

public:
  replayed(Policy const& policy, std::uint32_t seed)
      : base(policy, seed), step_(far_.executor()), shrink_(far_.executor()) {
    for (float& x : query_) x = static_cast<float>(d_.normal());
  }

  // Some of the sequences get up to three tokens, of which some are accepted; the last two of each are
  // observed and attend.
  void step() {
    std::vector<std::uint32_t> slots, counts, accepted, rows;
    for (std::uint32_t q : base::opened()) {
      if (recorded_ && d_.chance(0.3)) continue;
      if (far_.length_bound(q) + 3 > extent.capacity) continue;
      slots.push_back(q);
      counts.push_back(recorded_ ? d_.below(4) : 3);
      accepted.push_back(d_.below(counts.back() + 1));
      rows.push_back(recorded_ ? 1 + d_.below(2) : 2);
      base::write(q, counts.back());
    }
    for (float& x : probabilities_) x = static_cast<float>(d_.uniform()) * 0.1f;
    for (float& x : weights_) x = static_cast<float>(2 * d_.uniform());
    auto const calls = [&](auto& c, std::vector<float>& out) {
      c.append(slots, counts);
      c.commit(slots, accepted);
      for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
        kvmeld::query_batch const batch{layer, slots, rows};
        support::observe_numbers(c, batch, probabilities_.data(), 2, tokens);
        kvmeld::attention::attend(
            c.executor(), batch,
            kvmeld::rows_by_token<float const>(query_.data(), 2, extent.query_heads(), extent.key_dim),
            c.ref(),
            kvmeld::rows_by_token(out.data() + layer * per_layer, 2, extent.query_heads(), extent.value_dim));
        if constexpr (!std::decay_t<decltype(c)>::shares) {
          kvmeld::query_sample weighted;
          if (c.ledger().table_floats == 0) weighted.weights = weights_.data();
          weighted.weight_stride = 2;
          kvmeld::attention::attend_and_observe(
              c, batch,
              kvmeld::rows_by_token<float const>(query_.data(), 2, extent.query_heads(), extent.key_dim),
              kvmeld::rows_by_token(out.data() + layer * per_layer, 2, extent.query_heads(),
                                    extent.value_dim),
              observed_, {}, {}, weighted);
        }
      }
    };
    if (recorded_ && d_.chance(0.3)) {
      gives_up(step_, [&](bool half_way) {
        far_.append(slots, counts);
        if (half_way) throw given_up{};
        far_.commit(slots, accepted);  // and nothing else of what was recorded
      });
    }
    std::vector<float> expected(near_out_.size());
    calls(near_, expected);
    auto const far_calls = [&] { calls(far_, far_out_); };
    std::fill(far_out_.begin(), far_out_.end(), 0.0f);
    CHECK((recorded_ ? step_.replay(far_.executor(), far_calls) : step_.record(far_.executor(), far_calls)) ==
          "");
    recorded_ = true;
    CHECK(far_out_ == expected);
  }

  void compress(kvmeld::shortfall fallback) {
    std::uint32_t least = 18;
    for (std::uint32_t q : base::opened()) least = std::max(least, far_.length_bound(q) * 3 / 10 + 6);
    std::vector<std::uint32_t> slots, table(extent.tracks());
    bool const first = shrink_.launches() == 0;
    for (std::uint32_t q : base::opened()) {
      if (first || d_.chance(0.8)) slots.push_back(q);
    }
    for (std::uint32_t& n : table) n = first ? 16 : d_.between(least, 60);
    std::uint32_t const slot = d_.pick(base::opened()), step = d_.below(4);
    auto const calls = [&](auto& c) {
      c.set_rounds(slot, step);
      if (first || d_other_) {
        c.compress(slots, budget::per_track(table.data()), fallback);
      } else {
        c.compress(slots, budget::entries(least + 3), fallback);
      }
    };
    d_other_ = d_.chance(0.5);
    if (!first && d_.chance(0.3)) {
      gives_up(shrink_, [&](bool half_way) {
        calls(far_);
        if (half_way) throw given_up{};
        far_.append(slots, std::vector<std::uint32_t>(slots.size()));
      });
    }
    calls(near_);
    auto const far_calls = [&] { calls(far_); };
    CHECK((first ? shrink_.record(far_.executor(), far_calls) : shrink_.replay(far_.executor(), far_calls)) ==
          "");
  }

private:
  std::vector<float> weights_ = std::vector<float>(std::size_t{extent.sequences} * 2);
  std::vector<float> observed_ =
      std::vector<float>(kvmeld::attention::observed_floats(extent, extent.sequences, 2));
  struct given_up {};
  // Calls that are refused, or of which one throws: nothing of them has happened, as later checks see.
  template <class Calls> void gives_up(support::fenced_graph& graph, Calls calls) {
    bool const half_way = d_.chance(0.5);
    bool threw = false;
    try {
      std::string const problem = graph.replay(far_.executor(), [&] { calls(half_way); });
      CHECK(problem != "");
    } catch (given_up const&) {
      threw = true;
    }
    CHECK(threw == half_way);
  }

  static constexpr std::uint32_t tokens = extent.capacity + members;
  static constexpr std::size_t per_layer =
      std::size_t{extent.sequences} * 2 * extent.query_heads() * extent.value_dim;
  support::fenced_graph step_, shrink_;
  bool recorded_ = false, d_other_ = false;
  std::vector<float> probabilities_ =
      std::vector<float>(std::size_t{extent.sequences} * extent.query_heads() * 2 * tokens);
  std::vector<float> query_ =
      std::vector<float>(std::size_t{extent.sequences} * 2 * extent.query_heads() * extent.key_dim);
  std::vector<float> near_out_ = std::vector<float>(extent.layers * per_layer), far_out_ = near_out_;
};

template <class Policy> void live(Policy const& policy, std::uint32_t steps, kvmeld::shortfall fallback) {
  replayed<Policy> pair(policy, 77);
  for (std::uint32_t q : {0u, 1u, 2u}) pair.open(q);
  for (std::uint32_t i = 0; i < steps; ++i) {
    pair.step();
    if (i % 12 == 11) pair.compress(fallback);
    pair.check();
  }
}

}  // namespace

TEST_CASE("replayed calls leave the same bits, with lists of any length, growing and shrinking") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    live(policy, 60, kvmeld::shortfall::evict_lowest);
  });
  live(kvmeld::preset::chelsea::with_schedule({0.4, 0.1, 2, 0.05}, kvmeld::quantity::entries(2),
                                              kvmeld::quantity::entries(4)),
       support::long_life(1000), kvmeld::shortfall::keep);
}

TEST_CASE("a replay that is not what was recorded is refused") {
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  for (std::uint32_t q : {0u, 1u, 2u}) memory.fill_sequence(d, q, 0, 60, support::texture::walk);
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.3, 0.1, 2, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                           kvmeld::cache_options{extent}};
  for (std::uint32_t q : {0u, 1u, 2u}) far.open(q, 60);
  auto& e = far.executor();
  support::fenced_graph graph(e);
  CHECK(graph.record(e, [&] {
    far.append({0}, {2});
    far.commit({0}, {2});
  }) == "");
  std::string const start = "replay: ";
  CHECK(graph.replay(e, [&] {
    far.append({0, 1}, {2, 2});
    far.commit({0}, {1});
  }) == start + "length of a list is 2; it must be at most 1, as was recorded (record with the longest)");
  CHECK(graph.replay(e, [&] { far.append({0}, {2}); }) ==
        start + "sequence of calls is shorter; it must be the one that was recorded");
  CHECK(graph.replay(e, [&] {
    far.append({0}, {1});
    far.append({0}, {1});
  }) == start + "sequence of calls is another; it must be the one that was recorded");
  CHECK(graph.replay(e, [&] {
    far.append({0}, {2});
    far.commit({0}, {2});
    far.append({0}, {2});
  }) == start + "sequence of calls is another; it must be the one that was recorded");

  support::fenced_graph shrink(e);
  CHECK(shrink.record(e, [&] { far.compress({2}, budget::entries(80)); }) == "");
  auto const refused = shrink.replay(e, [&] { far.compress({2}, budget::entries(10)); });
  CHECK(refused.find("replay: number of rounds is ") != std::string::npos);
  CHECK(refused.find(", as was recorded (record with the most)") != std::string::npos);

  for (std::uint32_t q : {0u, 1u, 2u}) CHECK(far.tokens(q) == (q == 0 ? 62 : 60));  // of what was launched
  CHECK(far.length_bound(2) == 60);

  support::fenced_graph small(e, 3);
  CHECK(small.record(e, [&] { far.append({2}, {1}); }) == "");
  CHECK(small.record(e, [&] {
    far.append({2}, {1});
    far.commit({2}, {1});
  }) == "record: number of numbers in lists is 4; it must be at most 3, the room of the record");

  // What waits, or is told by more than lists, is done before or after.
  support::fenced_graph other(e);
  auto const not_recorded = [&](char const* name, auto call) {
    CAPTURE(std::string(name));
    std::string text;
    other.record(e, [&] {
      try {
        call();
      } catch (kvmeld::invalid_argument const& problem) {
        text = problem.what();
      }
    });
    CHECK(text ==
          std::string(name) + ": recording is on; it must be off, because this call cannot be recorded");
  };
  std::vector<std::byte> bytes(8);
  not_recorded("open", [&] { far.open(2, 60); });
  not_recorded("fork", [&] { far.fork(0, 2); });
  not_recorded("shift", [&] { far.shift(0, 1); });
  not_recorded("renumber", [&] { far.renumber(0); });
  not_recorded("adopt", [&] { far.adopt(2, 1, 1, kvmeld::page_metadata<>{}); });
  not_recorded("plan", [&] { far.plan({0}, budget::entries(50)); });
  not_recorded("apply", [&] { far.apply(); });
  not_recorded("sync_lengths", [&] { far.sync_lengths(0); });
  not_recorded("request_lengths", [&] { far.request_lengths(); });
  not_recorded("save", [&] { far.save(0); });
  not_recorded("save", [&] { far.saved_bytes(0); });
  not_recorded("resume", [&] { far.resume(2, {bytes.data(), bytes.size()}); });
}

}  // namespace recorded_calls_cases
