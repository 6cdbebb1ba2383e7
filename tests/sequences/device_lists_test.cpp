// Drafts whose accepted counts lie where the host does not look, and calls that the engine's own kernels
// make: the entries are those of a host that knows them, and what the host says are bounds.
#include "cache/refusal.hpp"
#include "twins.hpp"

#include <kvmeld/compose/any_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace device_lists_cases {

using namespace sequences_test;
using kvmeld::device_list;

namespace {

// A kernel of the engine that appends or commits, a tile per sequence.
struct engine_kernel {
  kvmeld::ledger_ref ledger;
  std::uint32_t const *slots, *counts;
  bool commits;
  static constexpr bool light = true;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const& t) const {
    auto const barrier = [&] { team.sync(); };
    std::uint32_t const q = slots[t.item], n = counts[t.item];
    if (commits)
      kvmeld::commit_in_kernel(ledger, q, n, team.lane(), team.lanes(), barrier);
    else
      kvmeld::append_in_kernel(ledger, q, n, team.lane(), team.lanes(), barrier);
  }
};

template <class Policy> class drafted : public twins<Policy> {
  using base = twins<Policy>;
  using base::both;
  using base::d_;
  using base::far_;
  using base::near_;

public:
  drafted(Policy const& policy, std::uint32_t seed)
      : base(policy, seed),
        accepted_(far_.executor().allocate(extent.sequences * sizeof(std::uint32_t))),
        step_(far_.executor()) {}

  // Drafts of up to 4 tokens; each step anew, or all steps by one graph.
  void step(bool recorded) {
    std::vector<std::uint32_t> slots, counts, accepted, found;
    for (std::uint32_t q : base::opened()) {
      if (far_.length_bound(q) + 4 > extent.capacity || (recorded && replays_ && d_.chance(0.3))) continue;
      slots.push_back(q);
      counts.push_back(recorded && !replays_ ? 4 : d_.below(5));
      accepted.push_back(d_.below(counts.back() + 1));
      // What a sampler might leave where all are accepted: a count of its own token as well.
      found.push_back(accepted.back() == counts.back() ? accepted.back() + d_.below(3) : accepted.back());
      base::write(q, counts.back());
    }
    if (d_.chance(0.5)) {
      near_.append(slots, counts);
      near_.commit(slots, accepted);
    } else {
      in_kernels(near_, slots, counts, accepted);
    }
    if (!recorded && d_.chance(0.5)) {
      in_kernels(far_, slots, counts, found);
      return base::observe(slots);
    }
    far_.executor().upload(accepted_.data(), found.data(), found.size() * sizeof(std::uint32_t));
    auto const calls = [&] {
      far_.append(slots, counts);
      far_.commit(slots, device_list{static_cast<std::uint32_t const*>(accepted_.data())});
    };
    if (!recorded) {
      calls();
    } else {
      CHECK((replays_ ? step_.replay(far_.executor(), calls) : step_.record(far_.executor(), calls)) == "");
      replays_ = true;
    }
    base::observe(slots);
  }
  void compress(kvmeld::shortfall fallback) {
    std::uint32_t least = 18;
    for (std::uint32_t q : base::opened()) least = std::max(least, far_.length_bound(q) * 3 / 10 + 6);
    auto const allowed = d_.chance(0.5) ? budget::entries(d_.between(least, 50)) : budget::ratio(0.5);
    std::string const problem =
        cache_test::refusal_of([&] { near_.compress(base::opened(), allowed, fallback); });
    if (problem.empty()) far_.compress(base::opened(), allowed, fallback);
  }
  // What has to know the tokens, and what copies what the host knows.
  void other_calls() {
    std::uint32_t const q = d_.below(2);
    if (d_.chance(0.2)) {
      if (base::is_open(2)) both([&](auto& c) { c.close(2); });
      both([&](auto& c) { c.fork(q, 2, 0, kvmeld::sequence_id{4}); });
    }
    if (d_.chance(0.2) && near_.compressed_at(q) + 2 < near_.tokens(q)) {
      std::uint32_t const tokens = near_.tokens(q) - 1;
      both([&](auto& c) { c.truncate(q, tokens); });
      CHECK(far_.tokens(q) == tokens);
    }
    if (d_.chance(0.1)) {
      both([&](auto& c) { c.shift(q, 3); });
      CHECK(far_.tokens(q) == near_.tokens(q));
    }
    if (d_.chance(0.1)) {
      both([&](auto& c) { c.renumber(q); });
      CHECK(far_.tokens(q) == near_.tokens(q));
    }
  }
  void check() {
    for (std::uint32_t q : base::opened()) {
      CHECK(far_.tokens(q) >= near_.tokens(q));
      CHECK(far_.length_bound(q) >= near_.longest(q));
      CHECK(far_.compressed_at(q) >= near_.compressed_at(q));
      CHECK(far_.save(q) == near_.save(q));
      if (d_.chance(0.1)) {
        far_.sync_lengths(q);
        same(q);
      }
    }
  }
  // Reports are on their way while other calls are made.
  void report() {
    if (!d_.chance(0.3)) return;
    far_.request_lengths();
    bool const quiet = d_.chance(0.5);
    if (!quiet) {
      step(false);
      if (d_.chance(0.5)) other_calls();
    }
    while (!far_.poll_lengths()) continue;
    for (std::uint32_t q : base::opened()) {
      CHECK(far_.tokens(q) >= near_.tokens(q));
      CHECK(far_.length_bound(q) >= near_.longest(q));
      if (quiet) same(q);
    }
  }

private:
  // The kernels may append less than the host was told, and are given a number that is no sequence.
  template <class Cache>
  void in_kernels(Cache& cache, std::vector<std::uint32_t> const& slots,
                  std::vector<std::uint32_t> const& counts, std::vector<std::uint32_t> const& accepted) {
    std::vector<std::uint32_t> listed = slots;
    listed.push_back(extent.sequences);
    auto const launch = [&](std::vector<std::uint32_t> numbers, bool commits) {
      numbers.push_back(1);
      engine_kernel const kernel{cache.ledger(), listed.data(), numbers.data(), commits};
      auto const items = static_cast<std::uint32_t>(listed.size());
      kvmeld::sequences::sequence_source const source{extent, {listed.data(), items}};
      cache.executor().run(kernel, extent, items, source);
    };
    std::vector<std::uint32_t> appended;
    for (std::size_t i = 0; i < counts.size(); ++i)
      appended.push_back(d_.between(std::min(counts[i], accepted[i]), counts[i]));
    cache.append(slots, counts, kvmeld::in_kernel);
    launch(appended, false);
    cache.commit(slots, kvmeld::in_kernel);
    launch(accepted, true);
  }
  void same(std::uint32_t q) {
    CHECK(far_.tokens(q) == near_.tokens(q));
    CHECK(far_.length_bound(q) == near_.longest(q));
    CHECK(far_.compressed_at(q) == near_.compressed_at(q));
  }
  support::fenced_memory accepted_;
  support::fenced_graph step_;
  bool replays_ = false;
};

template <class Policy> void live(Policy const& policy, kvmeld::shortfall fallback) {
  for (bool recorded : {false, true}) {
    CAPTURE(recorded);
    drafted<Policy> pair(policy, recorded ? 5 : 6);
    for (std::uint32_t q : {0u, 1u, 2u}) pair.open(q);  // as many as a graph is recorded for
    for (int i = 0; i < 60; ++i) {
      pair.step(recorded);
      pair.check();
      pair.report();
      if (i % 10 == 9) pair.compress(fallback);
      pair.other_calls();
      pair.check();
    }
  }
}

}  // namespace

TEST_CASE("drafts accepted on a device leave the entries of drafts that the host knows") {
  live(kvmeld::preset::streaming_llm::with_sinks(3), kvmeld::shortfall::evict_lowest);
  live(kvmeld::preset::h2o::defaults(), kvmeld::shortfall::evict_lowest);
  live(kvmeld::preset::chelsea::with_schedule({0.4, 0.1, 2, 0.05}, kvmeld::quantity::entries(2),
                                              kvmeld::quantity::entries(4)),
       kvmeld::shortfall::keep);
}

TEST_CASE("a share of tokens that only the device knows is met") {
  for (bool merges : {false, true}) {
    auto const meets = [](auto const& policy) {
      support::engine_memory<float> memory(extent);
      support::dice d(7);
      memory.fill_sequence(d, 0, 0, extent.capacity, support::texture::clusters);
      kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                               kvmeld::cache_options{extent}};
      std::uint32_t const none = 0;
      auto const place = far.executor().allocate(sizeof(none));
      far.executor().upload(place.data(), &none, sizeof(none));
      far.open(0, 30);
      far.append({0}, {20});
      far.commit({0}, device_list{static_cast<std::uint32_t const*>(place.data())});  // accepts nothing
      far.compress({0}, budget::entries(25));
      CHECK(far.length_bound(0) == 25);
      far.request_lengths();
      far.compress({0}, budget::ratio(0.8));  // of 30 tokens, which the host takes for 50
      while (!far.poll_lengths()) continue;
      CHECK(far.length_bound(0) <= 25);
      CHECK(cache_test::refusal_of([&] { far.freeze(0, 25); }) != "");  // the host does not take 25 for exact
      far.sync_lengths(0);
      CHECK((far.warnings(0) & kvmeld::warning::evicted_fallback) == 0);
      CHECK(far.length_bound(0) == 24);
      CHECK(far.tokens(0) == 30);
    };
    if (merges)
      meets(kvmeld::preset::chelsea::with_schedule({0.4, 0.1, 2, 0.05}, kvmeld::quantity::entries(2),
                                                   kvmeld::quantity::entries(4)));
    else
      meets(kvmeld::preset::streaming_llm::with_sinks(3));
  }
}

TEST_CASE("what counts on a device are refused for, and what needs the tokens while recording") {
  support::engine_memory<float> memory(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(3);
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                           kvmeld::cache_options{extent}};
  std::uint32_t const counts[] = {2, 9};
  auto near = kvmeld::make_any_cache(support::make_cache(memory, policy));
  near->open(0, 20);
  near->append({0}, {3});
  using cache_test::refusal_of;
  std::uint32_t const* const nothing = nullptr;
  CHECK(refusal_of([&] { near->commit({0}, device_list{nothing}); }) ==
        "commit: accepted.data is null; it must be an array with one number for each sequence");
  CHECK(refusal_of([&] { near->commit({0}, device_list{counts + 1}); }) ==
        "commit: accepted[0] is 9; it must be at most 3, the pending entries of sequence 0");
  CHECK(refusal_of([&] { near->commit({1}, device_list{counts}); }).find("sequence is 1") !=
        std::string::npos);
  near->commit({0}, device_list{counts});
  CHECK(near->tokens(0) == 22);
  CHECK(refusal_of([&] { near->append({0}, {200}, kvmeld::in_kernel); }).find("counts[0] is 200") !=
        std::string::npos);
  CHECK(refusal_of([&] { near->commit({2}, kvmeld::in_kernel); }).find("sequence is 2") != std::string::npos);
  near->commit({}, {});  // lists, also where they are empty or begin with 0
  near->append({}, {});
  near->append({0}, {0});
  near->commit({0}, {0});
  near->append({0}, {4}, kvmeld::in_kernel);  // checked, and left to the engine
  CHECK(near->tokens(0) == 22);
  auto const alone = [] {};
  kvmeld::append_in_kernel(near->ledger(), 0, 4, 0, 1, alone);
  CHECK(near->tokens(0) == 26);
  near->commit({0}, kvmeld::in_kernel);
  kvmeld::commit_in_kernel(near->ledger(), 0, 1, 0, 1, alone);
  CHECK(near->tokens(0) == 23);

  far.open(0, 20);
  far.append({0}, {3});
  auto const place = far.executor().allocate(sizeof(counts));
  far.executor().upload(place.data(), counts, sizeof(counts));
  device_list const accepted{static_cast<std::uint32_t const*>(place.data())};
  CHECK(refusal_of([&] { far.commit({0}, device_list{nothing}); }) ==
        "commit: accepted.data is null; it must be an array with one number for each sequence");
  far.commit({0}, accepted);
  CHECK(far.tokens(0) == 23);
  support::fenced_graph graph(far.executor());
  std::string text;
  graph.record(far.executor(), [&] { text = refusal_of([&] { far.truncate(0, 21); }); });
  CHECK(text ==
        "truncate: number of tokens of sequence 0 is unknown; it must be known, because a device_list was "
        "committed (call sync_lengths before recording)");
  CHECK(far.tokens(0) == 23);
  far.truncate(0, 21);
  CHECK(far.tokens(0) == 21);
  far.sync_lengths(0);
  CHECK(far.tokens(0) == 21);
}

}  // namespace device_lists_cases
