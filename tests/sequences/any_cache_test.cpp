// A policy picked by name at run time does what it does when the compiler knows it.
#include <kvmeld/compose/any_cache.hpp>

#include "life.hpp"

#include <map>

namespace any_cache_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 96};

// The same calls to both; what they leave has to be the same.
template <class Cache> support::byte_list live(Cache& cache, support::engine_memory<float>& memory) {
  support::dice d(5);
  support::byte_list out;
  auto const keep = [&](support::byte_list const& part) { out.insert(out.end(), part.begin(), part.end()); };
  memory.fill_sequence(d, 0, 0, 60, support::texture::walk);
  memory.fill_sequence(d, 1, 0, 50, support::texture::clusters);
  cache.open(0, 60, 3, kvmeld::sequence_id{8});
  cache.open(1, 50);
  std::vector<float> rows(std::size_t{9} * 4 * 96);
  for (float& x : rows) x = static_cast<float>(d.uniform());
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t q = 0; q < 2; ++q) {
      support::observe_numbers(cache, {layer, q, 9}, rows.data(), 9, 96);
    }
  }
  cache.compress({0, 1}, budget::entries(40), kvmeld::shortfall::evict_lowest);
  cache.fork(0, 2, 0, kvmeld::sequence_id{1});
  cache.plan({0}, budget::entries(36));
  cache.apply();
  cache.append({0, 1}, {3, 2});
  cache.commit({0, 1}, {1, 2});
  cache.truncate(1, 51);
  cache.freeze(1, 2);
  for (std::uint32_t q = 0; q < 3; ++q) {
    keep(cache.save(q));
    CHECK(cache.save(q).size() == cache.saved_bytes(q));
    for (std::uint32_t n :
         {cache.longest(q), cache.tokens(q), cache.length(1, q, 1), cache.warnings(q), cache.length_bound(q),
          cache.length_after(q, budget::entries(20)), cache.compressed_at(q),
          static_cast<std::uint32_t>(cache.entries(q)), cache.due(q, {20, 3}) ? 1u : 0u})
      keep(support::bytes_of(std::vector<std::uint32_t>{n}));
  }
  auto const bytes = cache.save(1);
  cache.close(1);
  cache.resume(1, bytes);
  keep(cache.save(1));
  return out;
}

template <class Q, class Out> void attends(kvmeld::any_cache& any, support::dice& d) {
  std::vector<Q> q(4 * 12);
  for (Q& x : q) x = kvmeld::element_traits<Q>::from_float(static_cast<float>(d.normal()));
  std::vector<Out> out(4 * 8), expected(4 * 8);
  std::vector<float> lse(4), other(4);
  auto const queries = kvmeld::rows_by_token<Q const>(q.data(), 1, 4, 12);
  kvmeld::query_batch const batch{1, 0, 1};
  auto& typed = *any.get<decltype(support::make_cache(std::declval<support::engine_memory<float>&>(),
                                                      kvmeld::preset::h2o::defaults()))>();
  kvmeld::attention::attend(typed.executor(), batch, queries, typed.ref(),
                            kvmeld::rows_by_token(expected.data(), 1, 4, 8),
                            kvmeld::rows_by_head(other.data(), 1, 4, 1));
  any.attend(batch, queries, kvmeld::rows_by_token(out.data(), 1, 4, 8),
             kvmeld::rows_by_head(lse.data(), 1, 4, 1));
  CHECK(support::bytes_of(out) == support::bytes_of(expected));
  CHECK(support::same_bits(lse, other));
  auto copy = support::twin_of(typed);
  auto const norms = kvmeld::rows_by_head<float const>(lse.data(), 1, 4, 1);
  copy.observe(batch, queries, norms);
  any.observe(batch, queries, norms);
  CHECK(copy.save(0) == any.save(0));
}

}  // namespace

TEST_CASE("any preset behind one type") {
  std::map<std::string, std::unique_ptr<kvmeld::any_cache>> caches;
  support::engine_memory<float> memory(extent);
  each_policy([&](char const* name, auto const& policy) {
    caches.emplace(name, kvmeld::make_any_cache(cache_for(memory, policy, support::with_plan())));
  });
  each_policy([&](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    support::engine_memory<float> own(extent), shared(extent);
    auto typed = cache_for(own, policy, support::with_plan());
    auto const held = kvmeld::make_any_cache(cache_for(shared, policy, support::with_plan()));
    kvmeld::any_cache& any = *held;
    CHECK(live(any, shared) == live(typed, own));
    CHECK(own == shared);
    CHECK(any.name() == kvmeld::name_of_policy(policy));
    CHECK(any.exact() == typed.exact());
    CHECK(any.exact(kvmeld::shortfall::keep) == typed.exact(kvmeld::shortfall::keep));
    CHECK(any.needs_observation().when == kvmeld::need_of(policy).when);
    CHECK(any.needs_observation().rows == kvmeld::need_of(policy).rows);
    CHECK(any.valid().ok());
    CHECK(any.options().extent.capacity == 96);
    CHECK(any.get<decltype(typed)>() != nullptr);
    CHECK(caches.at(name)->name() == any.name());
  });
  auto const h2o = kvmeld::make_any_cache(support::make_cache(memory, kvmeld::preset::h2o::defaults()));
  CHECK(h2o->get<decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks()))>() ==
        nullptr);
}

TEST_CASE("attention in any element type") {
  support::engine_memory<float> memory(extent);
  support::dice d(2);
  memory.fill_sequence(d, 0, 0, 30, support::texture::walk);
  auto const held = kvmeld::make_any_cache(support::make_cache(memory, kvmeld::preset::h2o::defaults()));
  kvmeld::any_cache& any = *held;
  any.open(0, 30);
  attends<float, float>(any, d);
  attends<kvmeld::float16, kvmeld::float16>(any, d);
  attends<kvmeld::float16, float>(any, d);
  attends<kvmeld::bfloat16, kvmeld::bfloat16>(any, d);
  attends<kvmeld::bfloat16, float>(any, d);
  std::vector<float> q(4 * 12);
  std::vector<kvmeld::float16> out(4 * 8), bias(2 * 96, kvmeld::float16{1});
  check_text(refusal_of([&] {
               any.attend({0, 0, 1}, kvmeld::rows_by_token(q.data(), 1, 4, 12),
                          kvmeld::rows_by_token(out.data(), 1, 4, 8));
             }),
             {"any_cache::attend",
              "any_cache::attend: element type of the outputs is another than that of the queries", "float"});
  std::uint32_t const slots[] = {0};
  any.write_log_degree(1, {slots, 1}, kvmeld::rows_by_head(bias.data(), 1, 2, 96));
  for (std::uint32_t s = 0; s < 96; ++s) CHECK(bias[s].bits == (s < 30 ? 0 : 0xfbff));
  check_text(refusal_of([&] {
               any.write_log_degree(2, {slots, 1}, kvmeld::rows_by_head(bias.data(), 1, 2, 96));
             }),
             {"write_log_degree", "layer is 2"});
}

TEST_CASE("shared entries have no bias per slot") {
  support::engine_memory<float> memory(extent);
  auto const held = kvmeld::make_any_cache(cache_for(memory, kvmeld::preset::ems::shared()));
  kvmeld::any_cache& any = *held;
  any.open(0, 30);
  std::vector<float> bias(2 * 96);
  std::uint32_t const slots[] = {0};
  check_text(refusal_of([&] {
               any.write_log_degree(0, {slots, 1}, kvmeld::rows_by_head(bias.data(), 1, 2, 96));
             }),
             {"any_cache::write_log_degree", "shares entries", "attend"});
}

TEST_CASE("groups of layers are caches side by side") {
  // Layers 0 and 2 see everything; 1 and 3 a window of 16, which a group of their own keeps.
  constexpr kvmeld::shape full{2, 1, 2, 1, 12, 8, 64}, window{2, 1, 2, 1, 12, 8, 24};
  support::engine_memory<float> a(full), b(window);
  std::vector<std::unique_ptr<kvmeld::any_cache>> groups;
  kvmeld::cache_options options{};
  groups.push_back(kvmeld::make_any_cache(
      support::make_cache(a,
                          kvmeld::preset::chelsea::with_schedule(
                              support::steep(), kvmeld::quantity::entries(2), kvmeld::quantity::entries(4)),
                          options)));
  options.first_layer = 2;
  groups.push_back(
      kvmeld::make_any_cache(support::make_cache(b, kvmeld::preset::streaming_llm::with_sinks(0), options)));
  support::dice d(3);
  a.fill_sequence(d, 0, 0, 20, support::texture::walk);
  b.fill_sequence(d, 0, 0, 20, support::texture::walk);
  std::uint32_t const limit[] = {40, 16};
  for (auto& g : groups) g->open(0, 20);
  for (std::uint32_t token = 20; token < 90; ++token) {
    a.fill_sequence(d, 0, groups[0]->longest(0), 1, support::texture::noise);
    b.fill_sequence(d, 0, groups[1]->longest(0), 1, support::texture::noise);
    for (std::uint32_t i = 0; i < 2; ++i) {
      groups[i]->append({0}, {1});
      groups[i]->commit({0}, {1});
      if (groups[i]->due(0, {limit[i], 8})) groups[i]->compress({0}, budget::entries(limit[i]));
    }
  }
  CHECK(groups[0]->tokens(0) == 90);
  CHECK(groups[1]->tokens(0) == 90);
  CHECK(groups[0]->longest(0) < 48);
  CHECK(groups[1]->longest(0) < 24);
  kvmeld::ledger_ref const& l = groups[1]->ledger();
  kvmeld::track const t = kvmeld::make_track(window, 1, 0, 1);
  for (kvmeld::slot_t s = 0; s < l.length[t.index]; ++s) {
    CHECK(l.position[l.at(t, s)] == static_cast<int>(90 - l.length[t.index] + s));
  }
  CHECK(kvmeld::draw_key(l, t, 0, 1).layer == 3);
  // Saved ledgers know which group they belong to.
  auto const bytes = groups[0]->save(0);
  groups[1]->close(0);
  CHECK_FALSE(refusal_of([&] { groups[1]->resume(0, bytes); }).empty());
}

}  // namespace any_cache_cases
