// Budgets that tracks share, through the calls of a cache: sums over a life, sequences that know nothing of
// each other, rows that are no numbers, devices, refusals.
#include "shared_budget_cases.hpp"

#include "support/fenced_executor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shared_budget_calls_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 3, 1, 12, 8, 96};

template <class Cache> void spoil(Cache& cache, kvmeld::track t, std::uint32_t from, std::uint32_t n) {
  for (std::uint32_t i = from; i < from + n; ++i) {
    support::put_row(cache.ref().keys, t, i,
                     std::vector<float>(cache.options().extent.key_dim, kvmeld::bits_float(0x7fc00000u)));
  }
}

// Head 1 shares its first 50 entries.
struct held : kvmeld::strided<float> {
  static constexpr bool always_writable = false;
  explicit held(kvmeld::strided<float> const& x) : kvmeld::strided<float>(x) {}
  bool writable(kvmeld::track t, kvmeld::slot_t s) const { return t.kv_head != 1 || s >= 50; }
};

}  // namespace

TEST_CASE(
    "a sequence does not know what is compressed beside it, in which slot or wave, or by how many threads") {
  for (auto const& one : policies()) {
    composed const& p = one.second;
    CAPTURE(std::string(one.first));
    for (budget_scope among : shared_scopes) {
      support::engine_memory<float> memory(extent), alone_memory(extent);
      support::dice d(5);
      auto cache = cache_for(memory, p, over(among, 18));
      for (std::uint32_t q : {0u, 1u, 2u}) write_rows(cache, d, q, 80);
      support::for_tracks(extent, 1, [&](kvmeld::track t) { spoil(cache, t, 0, 80); });
      for (std::uint32_t q : {0u, 1u, 2u}) {
        cache.open(q, 80 - q, q, kvmeld::sequence_id{q});
        score(cache, d, q);
      }
      support::for_tracks(extent, 1, [&](kvmeld::track t) {
        if (cache.ledger().channels.count == 0) return;
        support::set_scores(cache.ledger(), t, std::vector<float>(79, kvmeld::bits_float(0x7fc00000u)));
      });
      auto alone = support::make_cache(alone_memory, p, over(among), 3);
      for (std::uint32_t q : {0u, 2u}) {
        alone.resume(2 - q, cache.save(q));
        copy_rows(cache, q, alone, 2 - q);
        alone.compress({2 - q}, budget::ratio(0.45).over(among));
      }
      cache.compress({2, 1, 0}, budget::ratio(0.45).over(among));
      for (std::uint32_t q : {0u, 2u}) {
        for (auto const& of : scopes_of(extent, q, among))
          CHECK(held_by(cache, of) == of.size() * kvmeld::floor_share(0.45, 80 - q));
        CHECK(digest(cache, q) == digest(alone, 2 - q));
      }
    }
  }
}

TEST_CASE("sums stay exact while a sequence grows, and no track falls below its floor") {
  for (auto const& one : policies()) {
    composed const& p = one.second;
    CAPTURE(std::string(one.first));
    for (budget_scope among : shared_scopes) {
      support::engine_memory<float> memory(extent);
      support::dice d(6);
      auto cache = cache_for(memory, p, over(among));
      open(cache, d, 0, 70);
      for (int round = 0; round < 4; ++round) {
        std::uint32_t const bound = cache.length_after(0, budget::entries(32).over(among, 0.75));
        cache.compress({0}, budget::entries(32).over(among, 0.75));
        for (auto const& of : scopes_of(extent, 0, among)) {
          CHECK(held_by(cache, of) == 32 * of.size());
          for (kvmeld::track t : of) CHECK(cache.ref().length(t) >= 24);
        }
        CHECK(cache.longest(0) <= bound);
        CHECK(cache.warnings(0) == 0);
        feed(cache, d, 0, 11);
      }
      // Within the sum nothing happens, however ragged the tracks are.
      auto const before = digest(cache, 0);
      cache.compress({0}, budget::entries(43).over(among));
      CHECK(rows_of(cache, 0) ==
            support::byte_list(before.end() - static_cast<std::ptrdiff_t>(rows_of(cache, 0).size()),
                               before.end()));
      CHECK(cache.longest(0) > 43);
    }
  }
}

TEST_CASE("with its whole budget as floor every track keeps to its own") {
  auto const all = policies();
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(std::string(all[i].first));
    support::engine_memory<float> memory(extent), own_memory(extent);
    support::dice d(7), same(7);
    auto cache = cache_for(memory, all[i].second, over(budget_scope::all_layers));
    auto own = cache_for(own_memory, all[i].second, over(budget_scope::all_layers));
    open(cache, d, 0, 70);
    open(own, same, 0, 70);
    std::vector<std::uint32_t> table(extent.tracks());
    for (std::uint32_t& n : table) n = d.between(20, 60);
    cache.compress({0}, budget::per_track(table.data()).over(budget_scope::all_layers, 1.0));
    own.compress({0}, budget::per_track(table.data()));
    support::for_tracks(extent, 0,
                        [&](kvmeld::track t) { CHECK(cache.ref().length(t) == own.ref().length(t)); });
    CHECK(digest(cache, 0) == digest(own, 0));
  }
}

TEST_CASE(
    "plan and apply are compress, round by round, and policies fixed at compile time are the composed ones") {
  auto const all = policies();
  for (budget_scope among : shared_scopes) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(std::string(all[i].first));
      support::engine_memory<float> memory(extent), planned_memory(extent);
      support::dice d(8), same(8);
      auto cache = cache_for(memory, all[i].second, over(among));
      auto planned = cache_for(planned_memory, all[i].second, over(among));
      open(cache, d, 2, 70);
      open(planned, same, 2, 70);
      cache.compress({2}, budget::entries(30).over(among));
      for (int round = 0; round < 8 && planned.entries(2) > cache.entries(2); ++round) {
        planned.plan({2}, budget::entries(30).over(among));
        planned.apply();
      }
      CHECK(positions_of(cache, 2) == positions_of(planned, 2));
      CHECK(cache.rounds(2) == planned.rounds(2));
      CHECK(planned.warnings(2) == 0);
    }
    auto const fixed = [&](auto const& p) {
      support::engine_memory<float> memory(extent), fixed_memory(extent);
      support::dice d(9), same(9);
      auto cache = cache_for(memory, part(p), over(among));
      auto other = cache_for(fixed_memory, p, over(among));
      open(cache, d, 0, 70);
      open(other, same, 0, 70);
      cache.compress({0}, budget::entries(30).over(among));
      other.compress({0}, budget::entries(30).over(among));
      CHECK(rows_of(cache, 0) == rows_of(other, 0));
      CHECK(positions_of(cache, 0) == positions_of(other, 0));
    };
    fixed(kvmeld::preset::h2o::defaults());
    fixed(kvmeld::preset::cam::over_h2o());
  }
}

TEST_CASE("pages that may not be written are kept, and their track is out of the budget scope") {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options = over(budget_scope::layer);
  options.extent = extent;
  auto const x = memory.tensors();
  for (auto const& one : policies()) {
    composed const& p = one.second;
    CAPTURE(std::string(one.first));
    kvmeld::merged_cache cache{support::fenced_executor(), p, kvmeld::kv{held(x.keys), held(x.values)},
                               options};
    cache.open(0, 70);
    std::vector<float> probabilities(extent.kv_heads * 96);
    support::dice d(11);
    for (float& y : probabilities) y = static_cast<float>(d.uniform());
    for (std::uint32_t layer : {0u, 1u})
      cache.observe_rows({layer, 0, 1}, kvmeld::rows_by_head<float const>(probabilities.data(), 1, 3, 96));
    memory.fill_sequence(d, 0, 0, 70, support::texture::walk);
    cache.compress({0}, budget::entries(32).over(budget_scope::layer));
    cache.sync_lengths(0);
    for (std::uint32_t layer : {0u, 1u}) {
      CHECK(cache.length(layer, 0, 1) == 70);
      CHECK(cache.length(layer, 0, 0) + cache.length(layer, 0, 2) == 64);
    }
    CHECK((cache.warnings(0) & kvmeld::warning::budget_unreached) != 0);
  }
}

TEST_CASE("devices: the same entries, bounds that hold, and graphs replayed with other budgets") {
  for (auto const& one : policies()) {
    composed const& p = one.second;
    CAPTURE(std::string(one.first));
    for (budget_scope among : shared_scopes) {
      support::engine_memory<float> memory(extent), far_memory(extent);
      support::dice d(12);
      kvmeld::cache_options options = over(among);
      options.extent = extent;
      auto near = cache_for(memory, p, options);
      kvmeld::merged_cache far{support::fenced_executor(), p, far_memory.tensors(), options};
      for (std::uint32_t q : {0u, 2u}) {
        open(near, d, q, 75 - q);
        auto const bytes = near.save(q);
        far.resume(q, {bytes.data(), bytes.size()});
      }
      far_memory.keys = memory.keys;
      far_memory.values = memory.values;
      support::fenced_graph graph(far.executor());
      std::vector<std::uint32_t> table(extent.tracks());
      for (int step = 0; step < 3; ++step) {
        for (std::uint32_t& n : table) n = step == 0 ? 20 : d.between(20, 50);
        auto const calls = [&](auto& c, kvmeld::index_list slots) {
          c.compress(slots, budget::per_track(table.data()).over(among), kvmeld::shortfall::evict_lowest);
        };
        std::vector<std::uint32_t> const slots =
            step == 1 ? std::vector<std::uint32_t>{2} : std::vector<std::uint32_t>{2, 0};
        calls(near, slots);
        auto const far_calls = [&] { calls(far, slots); };
        CHECK((step == 0 ? graph.record(far.executor(), far_calls)
                         : graph.replay(far.executor(), far_calls)) == "");
        for (std::uint32_t q : {0u, 2u}) {
          CHECK(far.length_bound(q) >= near.longest(q));
          far.sync_lengths(q);
          CHECK(far_memory == memory);
          CHECK(far.length_bound(q) == near.longest(q));
          CHECK(far.save(q) == near.save(q));
        }
      }
    }
  }
}

TEST_CASE("devices: a track of a shared budget is bounded by what it held, and by the sum") {
  auto const p = kvmeld::preset::h2o::defaults();
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options = over(budget_scope::layer);
  options.extent = extent;
  kvmeld::merged_cache far{support::fenced_executor(), p, memory.tensors(), options};
  auto near = cache_for(memory, p, options);
  support::dice d(13);
  open(near, d, 0, 70);
  far.resume(0, near.save(0));
  std::vector<std::uint32_t> table(extent.tracks(), 60);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
    table[kvmeld::make_track(extent, layer, 0, 1).index] = 12;
  far.compress({0}, budget::per_track(table.data()));
  CHECK(far.length(0, 0, 1) == 12);
  far.compress({0}, budget::entries(30).over(budget_scope::layer));
  CHECK(far.length(0, 0, 1) == 12);  // the others may hold all of 30 each, but this one no more than before
  CHECK(far.length(0, 0, 0) == std::min(60u, 30 * extent.kv_heads));
}

TEST_CASE("padded tracks hold the sum, besides empty slots") {
  support::engine_memory<float> memory(extent);
  support::dice d(13);
  kvmeld::cache_options options;
  options.budgets_over = budget_scope::layer;
  options.padded = true;
  auto cache = cache_for(memory, policies()[1].second, options);
  open(cache, d, 0, 70);
  for (int round = 0; round < 2; ++round) {
    cache.compress({0}, budget::entries(30).over(budget_scope::layer));
    CHECK(cache.entries(0) == 30 * 6);
    support::for_tracks(extent, 0,
                        [&](kvmeld::track t) { CHECK(cache.ref().length(t) == cache.longest(0)); });
    feed(cache, d, 0, 4);
  }
}

TEST_CASE("shared budgets are refused where nothing could be shared") {
  support::engine_memory<float> memory(extent);
  auto const refuses = [&](auto const& p, kvmeld::cache_options const& options, budget b,
                           std::initializer_list<char const*> parts) {
    auto cache = cache_for(memory, p, options);
    cache.open(0, 60);
    cache_test::refused(
        cache, memory, [&](auto& c) { c.compress({0}, b); }, parts);
    cache_test::refused(cache, memory, [&](auto& c) { c.plan({0}, b); }, {"plan: "});
  };
  composed const h2o = policies()[0].second;
  budget const b = budget::entries(30);
  refuses(part(kvmeld::preset::streaming_llm::with_sinks(2)), over(budget_scope::all_layers),
          b.over(budget_scope::layer),
          {"compress: scope of the budget is budget_scope::layer",
           "none x sinks_and_recents x evict_rest x drop", "budget_scope::", "budget_scope::head"});
  for (composed const& clusters :
       {part(kvmeld::preset::kvmerger::for_budget()), part(kvmeld::preset::chelsea::llama2()),
        part(kvmeld::preset::keepkv::for_budget())}) {
    refuses(clusters, over(budget_scope::all_layers), b.over(budget_scope::all_layers),
            {"compress: scope of the budget is budget_scope::all_layers; it must be budget_scope::head, "
             "because policy ",
             "does not decide by score alone what stays"});
  }
  refuses(part(kvmeld::preset::cam::over_streaming_llm()), over(budget_scope::all_layers),
          b.over(budget_scope::all_layers), {"budget_scope::"});
  refuses(h2o, over(budget_scope::layer), b.over(budget_scope::all_layers),
          {"compress: scope of the budget is budget_scope::all_layers",
           "it must be no wider than options.budgets_over, which is budget_scope::layer",
           "it must be no wider than options.budgets_over, which is budget_scope::layer"});
  refuses(h2o, over(budget_scope::head), b.over(budget_scope::layer),
          {"compress: scope of the budget is budget_scope::layer"});
  refuses(h2o, over(budget_scope::layer), b.over(budget_scope::layer, 1.5),
          {"floor", "budget_scope::layer is 1.5", "0 to 1"});
  refuses(h2o, over(budget_scope::layer), b.over(budget_scope::layer, -0.1), {"floor", "is -0.1", "0 to 1"});
  kvmeld::cache_options scoped = over(budget_scope::layer);
  scoped.scope = kvmeld::plan_scope::layer;
  refuses(h2o, scoped, b.over(budget_scope::layer),
          {"budget_scope::layer", "share a plan", "compress: scope of the budget is budget_scope::layer"});
  refuses(h2o, over(budget_scope::layer), b.over(budget_scope::layer),
          {"compress: number of observed rows of track (layer 0, sequence 0, head 0) is 0",
           "layer 0, sequence 0, head 0"});
  // A track within its own budget takes part too, and has to have scores.
  std::vector<std::uint32_t> table(extent.tracks(), 20);
  table[0] = 80;
  refuses(h2o, over(budget_scope::layer), budget::per_track(table.data()).over(budget_scope::layer),
          {"compress: number of observed rows of track (layer 0, sequence 0, head 0) is 0",
           "layer 0, sequence 0, head 0"});
  // So does one of a later layer, though the layer before it is within its sum.
  std::fill(table.begin(), table.end(), 80);
  for (std::uint32_t head : {1u, 2u}) table[kvmeld::make_track(extent, 1, 0, head).index] = 5;
  refuses(h2o, over(budget_scope::layer), budget::per_track(table.data()).over(budget_scope::layer),
          {"compress: number of observed rows of track (layer 1, sequence 0, head 0) is 0",
           "layer 1, sequence 0, head 0"});
  auto cache = cache_for(memory, h2o, over(budget_scope::layer));
  cache.open(0, 60);
  auto const refused = [&](budget bad, std::initializer_list<char const*> parts) {
    cache_test::refused(
        cache, memory, [&](auto& c) { c.compress({0}, bad); }, parts);
  };
  refused(budget::entries(0).over(budget_scope::layer), {"budget", "is 0"});
  refused(budget::ratio(1.5).over(budget_scope::layer), {"ratio is 1.5"});
  cache.compress({0}, budget::entries(60).over(budget_scope::layer));  // within the sum: nothing to look at
  CHECK(cache.longest(0) == 60);
}

TEST_CASE("tracks that share a budget are planned in parts of any size, and the bytes are the same") {
  auto all = policies();
  all.emplace_back("centroids", part(kvmeld::preset::with_centroids(
                                    kvmeld::preset::kvzip::for_budget(quantity::entries(0)), {})));
  for (auto const& one : all) {
    CAPTURE(std::string(one.first));
    for (budget_scope among : shared_scopes) {
      for (bool const padded : {false, true}) {
        for (kvmeld::shortfall const fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
          CAPTURE(static_cast<int>(among));
          CAPTURE(padded);
          CAPTURE(static_cast<int>(fallback));
          auto const life = [&](std::uint32_t wave) {
            kvmeld::cache_options options = over(among, wave);
            options.padded = padded;
            options.whole_plan = !padded;
            options.stats = true;
            support::engine_memory<float> memory(extent);
            auto cache = cache_for(memory, one.second, options);
            support::dice d(61);
            std::vector<double> seen;
            for (std::uint32_t q : {0u, 2u}) open(cache, d, q, 80 - q, q);
            spoil(cache, kvmeld::make_track(extent, 1, 0, 1), 30, 4);
            for (double share : {0.6, 0.4, 0.25}) {
              budget const allowed = budget::ratio(share).over(among, 0.1);
              if (!padded) cache.plan({0, 2}, allowed, fallback);
              cache.compress({0, 2}, allowed, fallback);
              for (std::uint32_t q : {0u, 2u}) {
                for (std::byte b : digest(cache, q)) seen.push_back(static_cast<double>(b));
                seen.push_back(static_cast<double>(cache.warnings(q)));
                cache.request_stats({q});
                REQUIRE(cache.stats_ready());
                kvmeld::stats_sum const sum = cache.stats(q);
                for (auto x : {sum.held, sum.merged, sum.dropped}) seen.push_back(static_cast<double>(x));
                seen.push_back(sum.masses);
                feed(cache, d, q, 7);
              }
            }
            return seen;
          };
          auto const whole = life(18);
          for (std::uint32_t wave : {1u, 2u, 4u, 5u}) {
            CAPTURE(wave);
            CHECK(life(wave) == whole);
          }
        }
      }
    }
  }
}

TEST_CASE("a plan over a shared budget is the same in parts, and applies") {
  for (auto const& one : policies()) {
    CAPTURE(std::string(one.first));
    auto const life = [&](std::uint32_t wave) {
      support::engine_memory<float> memory(extent);
      auto cache = cache_for(memory, one.second, over(budget_scope::all_layers, wave));
      support::dice d(62);
      open(cache, d, 0, 80);
      cache.plan({0}, budget::entries(30).over(budget_scope::all_layers), kvmeld::shortfall::evict_lowest);
      cache.apply();
      return digest(cache, 0);
    };
    auto const whole = life(18);
    for (std::uint32_t wave : {1u, 4u}) CHECK(life(wave) == whole);
  }
}

TEST_CASE("waves hold whole budget scopes, or a part of one") {
  kvmeld::cache_options options{extent};
  for (std::uint32_t wanted : {0u, 1u, 2u, 4u, 7u, 100u}) {
    options.wave_tracks = wanted;
    for (budget_scope among : shared_scopes) {
      options.budgets_over = among;
      std::uint32_t const tracks = kvmeld::detail::tracks_of_wave(options, 1),
                          per_budget = kvmeld::tracks_per_budget(among, extent);
      CHECK((tracks % per_budget == 0 || tracks < per_budget));
      CHECK(tracks == (wanted == 0 || wanted > 18 ? 18
                       : wanted < per_budget      ? wanted
                                                  : wanted / per_budget * per_budget));
      options.members = 1;  // no parts
      CHECK(kvmeld::detail::tracks_of_wave(options, 1) % per_budget == 0);
      options.members = 0;
    }
  }
  // What a scope takes beyond the tracks that are planned at a time: states, scores, shares and counts.
  options.wave_tracks = 2;
  options.budgets_over = budget_scope::all_layers;
  std::size_t const few = kvmeld::workspace_bytes(extent, 2), many = kvmeld::workspace_bytes(extent, 2, 0, 6);
  CHECK(many - few < 4 * (extent.capacity * sizeof(float) + sizeof(kvmeld::track_state)) +
                         6 * (sizeof(kvmeld::detail::share_state) + 1024) + 1024);
  options.budgets_over = budget_scope::all_layers;
  options.extent.capacity = 1u << 30;
  CHECK(kvmeld::detail::shared_budget_size_problem(options).find(
            "6442450944; it must be at most 4294967295") != std::string::npos);
  options.budgets_over = budget_scope::head;
  CHECK(kvmeld::detail::shared_budget_size_problem(options).empty());
}

}  // namespace shared_budget_calls_cases
