// Plans shared by all heads of a layer, or of all layers.
#include "life.hpp"

#include "layout/tensors.hpp"
#include "support/track_view.hpp"

namespace scope_cases {

using namespace sequences_test;
using kvmeld::plan_scope;

namespace {

constexpr kvmeld::shape extent{2, 3, 4, 1, 12, 8, 80};

kvmeld::cache_options scoped(plan_scope scope, std::uint32_t wave = 0) {
  kvmeld::cache_options options = support::with_plan();
  options.scope = scope;
  options.wave_tracks = wave;
  return options;
}

// What of a track follows from its plan.
template <class Cache> std::vector<float> planned(Cache const& cache, kvmeld::track t) {
  kvmeld::ledger_ref const& l = cache.ledger();
  std::vector<float> out;
  for (kvmeld::slot_t s = 0; s < l.length[t.index]; ++s) {
    out.push_back(l.degree[l.at(t, s)]);
    out.push_back(static_cast<float>(l.position[l.at(t, s)]));
    if (l.members.capacity != 0) out.push_back(l.members.own_norm[l.at(t, s)] > 0.0f ? 1.0f : 0.0f);
  }
  for (std::uint32_t m = 0; l.members.capacity != 0 && m < l.members.count[t.index]; ++m) {
    out.push_back(static_cast<float>(l.members.owner[l.members.at(t, m)]));
    out.push_back(static_cast<float>(l.members.position[l.members.at(t, m)]));
  }
  return out;
}

template <class Cache> void check_alike(Cache const& cache, std::uint32_t slot, plan_scope scope) {
  support::for_tracks(extent, slot, [&](kvmeld::track t) {
    std::uint32_t const layer = scope == plan_scope::all_layers ? 0 : t.layer;
    CHECK(planned(cache, t) == planned(cache, kvmeld::make_track(extent, layer, slot, 0)));
    // One length, and no slot of it empty: what such engines have one block table and no mask for.
    CHECK(cache.ref().length(t) == cache.length(layer, slot, 0));
    for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) CHECK(degree(cache, t, s) > 0.0f);
  });
}

template <class Policy> void shares_plans(char const* name, Policy const& policy, plan_scope scope) {
  CAPTURE(std::string(name));
  CAPTURE(int(scope));
  support::engine_memory<float> memory(extent), waved_memory(extent);
  support::dice d(4);
  auto cache = cache_for(memory, policy, scoped(scope));
  for (std::uint32_t q : {0u, 2u}) open(cache, d, q, 60 - q, q);
  // One row of one head that is no number is out of the question for all.
  kvmeld::track const spoilt = kvmeld::make_track(extent, 1, 2, 3);
  support::put_row(memory.tensors().keys, spoilt, 20,
                   std::vector<float>(12, kvmeld::bits_float(0x7f800000u)));
  // By itself a wave holds one scope here; this one holds all of them.
  auto waved = cache_for(waved_memory, policy, scoped(scope, extent.tracks()));
  for (std::uint32_t q : {0u, 2u}) {
    waved.resume(q, cache.save(q));
    copy_rows(cache, q, waved, q);
  }
  cache.compress({2, 0}, budget::entries(30), kvmeld::shortfall::evict_lowest);
  waved.compress({2, 0}, budget::entries(30), kvmeld::shortfall::evict_lowest);
  for (std::uint32_t q : {0u, 2u}) {
    check_alike(cache, q, scope);
    CHECK(cache.longest(q) <= 30);
    CHECK(digest(cache, q) == digest(waved, q));
    feed(cache, d, q, 5);
  }
  // Evictions do not look at rows, unless their scores are made from rows or what stays is fitted.
  auto const identifier = kvmeld::facts_of<kvmeld::identify_facts>(policy.identify);
  bool const looks = identifier.makes_sets || identifier.makes_spans ||
                     kvmeld::facts_of<kvmeld::score_facts>(policy.score).reads_rows ||
                     kvmeld::facts_of<kvmeld::merge_facts>(policy.merge).fits;
  CHECK(((cache.warnings(2) & kvmeld::warning::nonfinite_rows) != 0) == looks);
  // plan + apply for two sequences, whatever order the plan has them in.
  cache.plan({2, 0}, budget::entries(26));
  CHECK(cache.planned_work().tracks(extent) == 16);
  cache.apply();
  for (std::uint32_t q : {0u, 2u}) check_alike(cache, q, scope);
}

// The same rows as heads that share a plan, and as one head of all their channels. Scores of rows are made
// per head, and the heads of a plan have their mean.
template <class Policy> void same_as_joined(char const* name, Policy const& policy) {
  if (kvmeld::facts_of<kvmeld::score_facts>(policy.score).reads_rows) return;
  CAPTURE(std::string(name));
  constexpr kvmeld::shape apart{1, 2, 2, 1, 12, 8, 80}, joined{1, 2, 1, 1, 24, 16, 80};
  support::engine_memory<float> memory(apart), whole(joined);
  support::dice d(9);
  auto cache = cache_for(memory, policy, scoped(plan_scope::layer));
  auto expected = cache_for(whole, policy, scoped(plan_scope::head));
  auto const join = [&](std::uint32_t first, std::uint32_t n) {
    auto const x = cache.ref();
    auto const y = expected.ref();
    kvmeld::track const one = kvmeld::make_track(joined, 0, 1, 0);
    auto const put = [&](auto const& from, auto const& to) {
      for (std::uint32_t s = first; s < first + n; ++s) {
        auto row = support::get_row(from, kvmeld::make_track(apart, 0, 1, 0), s);
        auto const rest = support::get_row(from, kvmeld::make_track(apart, 0, 1, 1), s);
        row.insert(row.end(), rest.begin(), rest.end());
        support::put_row(to, one, s, row);
      }
    };
    put(x.keys, y.keys);
    put(x.values, y.values);
  };
  write_rows(cache, d, 1, 60);
  join(0, 60);
  cache.open(1, 60, 2, kvmeld::sequence_id{5});
  expected.open(1, 60, 2, kvmeld::sequence_id{5});
  auto const scores = support::random_scores(d, 60);
  for (std::uint32_t c = 0; c < cache.ledger().channels.count; ++c) {
    for (std::uint32_t head : {0u, 1u})
      support::set_scores(cache.ledger(), kvmeld::make_track(apart, 0, 1, head), scores, c);
    support::set_scores(expected.ledger(), kvmeld::make_track(joined, 0, 1, 0), scores, c);
  }
  cache.plan({1}, budget::entries(30));
  expected.plan({1}, budget::entries(30));
  for (std::uint32_t item : {0u, 1u}) {
    auto const& a = cache.current_plan();
    auto const& b = expected.current_plan();
    for (kvmeld::slot_t s = 0; s < 60; ++s) {
      CHECK(a.fates[a.at(item, s)] == b.fates[s]);
      CHECK(a.target[a.at(item, s)] == b.target[s]);
      CHECK(a.span[a.at(item, s)] == b.span[s]);
      CHECK(a.degree_weight[a.at(item, s)] == b.degree_weight[s]);
    }
  }
  cache.compress({1}, budget::entries(30));
  expected.compress({1}, budget::entries(30));
  for (std::uint32_t head : {0u, 1u}) {
    CHECK(planned(cache, kvmeld::make_track(apart, 0, 1, head)) ==
          planned(expected, kvmeld::make_track(joined, 0, 1, 0)));
  }
  CHECK(cache.rounds(1) == expected.rounds(1));
}

template <class Policy> void one_track_is_its_own_scope(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  constexpr kvmeld::shape s{1, 2, 1, 1, 12, 8, 80};
  std::vector<support::byte_list> all;
  for (auto scope : {plan_scope::head, plan_scope::layer, plan_scope::all_layers}) {
    support::engine_memory<float> memory(s);
    support::dice d(2);
    auto cache = cache_for(memory, policy, scoped(scope));
    open(cache, d, 0, 70, 3);
    open(cache, d, 1, 60);
    cache.compress({0, 1}, budget::entries(32));
    feed(cache, d, 0, 9);
    cache.compress({0, 1}, budget::entries(30));
    auto bytes = digest(cache, 0), more = digest(cache, 1);
    bytes.insert(bytes.end(), more.begin(), more.end());
    all.push_back(bytes);
  }
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
}

}  // namespace

TEST_CASE("tracks of a scope keep equal lengths, positions and degrees, for every preset") {
  each_policy([](char const* name, auto const& policy) {
    for (auto scope : {plan_scope::layer, plan_scope::all_layers}) shares_plans(name, policy, scope);
  });
}

TEST_CASE("tracks of a scope keep the same members where some have to go") {
  auto const few = kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.1f, 1.4);
  for (auto scope : {plan_scope::layer, plan_scope::all_layers}) {
    support::engine_memory<float> memory(extent);
    support::dice d(6);
    auto cache = cache_for(memory, few, scoped(scope));
    auto const members = [&] { return cache.ledger().members.held(kvmeld::make_track(extent, 0, 0, 0)); };
    open(cache, d, 0, 60);
    cache.compress({0}, budget::entries(30));
    std::uint32_t const before = members();
    feed(cache, d, 0, 5);
    cache.compress({0}, budget::entries(26));
    CHECK(members() < before);
    CHECK(members() > 0);
    check_alike(cache, 0, scope);
  }
}

TEST_CASE("heads that share a plan weigh a set by the same similarities") {
  constexpr kvmeld::shape s{1, 1, 2, 1, 12, 8, 80};
  support::engine_memory<float> memory(s);
  support::dice d(10);
  kvmeld::policy const p{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(2), kvmeld::quantity::entries(4)},
      kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{16, {}},
      kvmeld::merge::similarity_weighted{}};
  auto cache = cache_for(memory, p, scoped(plan_scope::layer));
  memory.fill_sequence(d, 0, 0, 70, support::texture::walk);
  cache.open(0, 70);
  cache.plan({0}, budget::entries(40));
  auto const& plan = cache.current_plan();
  std::uint32_t merged = 0;
  for (kvmeld::slot_t i = 0; i < 70; ++i) {
    merged += plan.fates[plan.at(1, i)] == kvmeld::fate::merge ? 1 : 0;
    CHECK(plan.key_weight[plan.at(0, i)] == plan.key_weight[plan.at(1, i)]);
    CHECK(plan.value_weight[plan.at(0, i)] == plan.value_weight[plan.at(1, i)]);
  }
  CHECK(merged == 30);
}

TEST_CASE("heads that share a plan decide as one head of all their channels, for every preset") {
  each_policy([](char const* name, auto const& policy) { same_as_joined(name, policy); });
}

TEST_CASE("heads that share a plan rank entries by the mean of their scores") {
  kvmeld::shape const s{1, 1, 3, 1, 4, 4, 24};
  support::engine_memory<float> memory(s);
  support::dice d(41);
  memory.fill_sequence(d, 0, 0, 20, support::texture::noise);
  auto const zero = kvmeld::quantity::entries(0);
  kvmeld::policy const best{kvmeld::score::global{},
                            kvmeld::select::top{zero, zero, kvmeld::quantity::rest_of_budget()},
                            kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  kvmeld::cache_options options{};
  options.scope = plan_scope::layer;
  auto cache = support::make_cache(memory, best, options);
  cache.open(0, 20);
  std::vector<std::pair<double, long>> mean(20);
  for (long i = 0; i < 20; ++i) mean[static_cast<std::size_t>(i)] = {0.0, i};
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const scores = support::random_scores(d, 20);
    support::set_scores(cache.ledger(), t, scores);
    for (std::size_t i = 0; i < 20; ++i) mean[i].first += static_cast<double>(scores[i]);
  });
  std::sort(mean.rbegin(), mean.rend());
  std::vector<long> expected;
  for (std::size_t i = 0; i < 8; ++i) expected.push_back(mean[i].second);
  std::sort(expected.begin(), expected.end());
  cache.compress({0}, budget::entries(8));
  support::for_tracks(
      s, 0, [&](kvmeld::track t) { CHECK(support::read_track(cache.ref(), t).position == expected); });
}

TEST_CASE("a scope of one track is that track, for every preset") {
  each_policy([](char const* name, auto const& policy) { one_track_is_its_own_scope(name, policy); });
}

TEST_CASE("scopes refuse tracks that are not alike") {
  support::engine_memory<float> memory(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  auto ragged = support::make_cache(memory, policy);
  std::vector<std::uint32_t> table(extent.tracks(), 30);
  support::for_tracks(extent, 0,
                      [&](kvmeld::track t) { table[t.index] = t.layer == 1 && t.kv_head == 2 ? 29 : 30; });
  ragged.open(0, 40);
  ragged.compress({0}, budget::per_track(table.data()));
  auto const refuses = [&](auto& cache, budget b, std::initializer_list<char const*> parts) {
    cache_test::refused(
        cache, memory, [&](auto& c) { c.compress({0}, b); }, parts);
  };
  for (auto scope : {plan_scope::layer, plan_scope::all_layers}) {
    auto cache = support::make_cache(memory, policy, scoped(scope));
    char const* const leader =
        scope == plan_scope::layer ? "layer 1, sequence 0, head 0" : "layer 0, sequence 0, head 0";
    cache.open(0, 40);
    refuses(cache, budget::per_track(table.data()),
            {"compress", "layer 1, sequence 0, head 2",
             "compress: budget of track (layer 1, sequence 0, head 2) is 29", leader,
             ", sequence 0, head 0), whose plan it shares (options.scope)", "options.scope"});
    // As no call leaves the tracks of a shared plan, and as resume does not take them from another cache.
    cache_test::check_text(
        cache_test::refusal_of([&] { cache.resume(1, ragged.save(0)); }),
        {"resume: number of tracks that share a plan (options.scope) of the saved ledger is 1"});
    support::for_tracks(extent, 0,
                        [&](kvmeld::track t) { cache.ledger().length[t.index] = ragged.ref().length(t); });
    refuses(cache, budget::entries(20),
            {"compress", "layer 1, sequence 0, head 2",
             ": length of track (layer 1, sequence 0, head 2) is 29", leader,
             ", sequence 0, head 0), whose plan it shares (options.scope)"});
    cache_test::refused(cache, memory, [&](auto& c) { c.plan({0}, budget::entries(20)); },
                        {"plan: ", ": length of track (layer 1, sequence 0, head 2) is 29"});
  }
  auto sharing = cache_for(memory, kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.3f, 2.0),
                           scoped(plan_scope::layer));
  sharing.open(0, 40);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    sharing.ledger().members.count[t.index] = t.kv_head == 3 ? 1 : 0;
    sharing.ledger().word(t, kvmeld::track_word::observed_rows) = 1;
    sharing.ledger().members.owner[sharing.ledger().members.at(t, 0)] = 0;
  });
  refuses(
      sharing, budget::entries(20),
      {"head 3", "compress: number of members of track (layer 0, sequence 0, head 3) is 1",
       "it must be 0, as that of track (layer 0, sequence 0, head 0), whose plan it shares (options.scope)"});
}

TEST_CASE("scopes refuse tracks with other shared pages") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  struct uneven : support::paged<float> {
    explicit uneven(support::paged<float> const& p) : support::paged<float>(p) {}
    bool writable(kvmeld::track t, kvmeld::slot_t s) const { return t.kv_head != 1 || s >= 6; }
  };
  kvmeld::cache_options options = scoped(plan_scope::layer);
  options.extent = extent;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                             kvmeld::kv{uneven(keys.view()), uneven(values.view())}, options};
  cache.open(0, 40);
  cache_test::check_text(
      cache_test::refusal_of([&] { cache.compress({0}, budget::entries(20)); }),
      {"compress", "head 1",
       "compress: length of the beginning that may not be written of track (layer 0, sequence 0, head 1) is "
       "6",
       "it must be 0, as that of track (layer 0, sequence 0, head 0), whose plan it shares (options.scope)"});
}

}  // namespace scope_cases
