// Caches built with other options or policies exchange saved sequences only if the sequence then goes on, bit
// for bit, as in the cache that saved it.
#include "life.hpp"

#include <kvmeld/compose/policy_text.hpp>

#include <array>
#include <string>
#include <vector>

namespace saved_options_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 2, 8, 8, 64};

// What a cache is built with.
struct recipe {
  std::string policy;
  kvmeld::cache_options options;
};

kvmeld::compose::composed policy_of(std::string const& text) {
  kvmeld::compose::composed policy;
  kvmeld::compose::read_policy(text, policy);
  return policy;
}

// Policies whose next step needs no more than what the ledger holds, with and without degrees.
std::vector<std::string> const& policies() {
  static std::vector<std::string> const all{
      "streaming_llm",
      "h2o",
      "snapkv window=4 recents=4",
      "snapkv window=6 recents=4",
      "score=global select=top identify=chunked_bipartite merge=degree_weighted sinks=1 recents=4 heavy=3",
      "score=key_difference select=top identify=chunked_bipartite merge=average sinks=1 recents=4 heavy=3",
      "expected_attention rope=half_split rope_base=10000",
      "expected_attention rope=half_split rope_base=100000",
      "expected_attention rope=interleaved rope_base=10000",
      "ems_collapsed heavy=2 recents=4 sinks=0",
  };
  return all;
}

// One field of a recipe with another value.
void change(recipe& r, support::dice& d) {
  kvmeld::cache_options& o = r.options;
  switch (d.below(11)) {
  case 0: r.policy = policies()[d.below(static_cast<std::uint32_t>(policies().size()))]; break;
  case 1: o.scope = static_cast<kvmeld::plan_scope>(d.below(3)); break;
  case 2: o.bias = static_cast<kvmeld::bias_support>(d.below(3)); break;
  case 3: o.ignore_degree = !o.ignore_degree; break;
  case 4: o.padded = !o.padded; break;
  case 5: o.zero_emptied = !o.zero_emptied; break;
  case 6: o.first_layer = d.below(3); break;
  case 7: o.first_kv_head = d.below(3); break;
  case 8: o.members = 20 + 20 * d.below(3); break;
  case 9: o.budgets_over = static_cast<kvmeld::budget_scope>(d.below(3)); break;
  default: o.stats = !o.stats; break;
  }
}

// Whether two caches have to exchange sequences: they differ in nothing that could tell them apart.
bool alike(recipe const& a, recipe const& b) {
  kvmeld::cache_options const &x = a.options, &y = b.options;
  return a.policy == b.policy && x.scope == y.scope && x.bias == y.bias &&
         x.ignore_degree == y.ignore_degree && x.padded == y.padded && x.first_layer == y.first_layer &&
         x.first_kv_head == y.first_kv_head && x.members == y.members;
}

// A cache with memory of its own; refused: no cache.
struct world {
  support::engine_memory<float> memory{extent};
  std::optional<decltype(support::make_cache(std::declval<support::engine_memory<float>&>(),
                                             std::declval<kvmeld::compose::composed const&>(),
                                             kvmeld::cache_options{}))>
      cache;
  explicit world(recipe const& r) {
    refusal_of([&] { cache.emplace(support::make_cache(memory, policy_of(r.policy), r.options)); });
  }
};

// Attention of the last `n` queries, which the policy then observes; what attention wrote.
template <class Cache>
support::byte_list look(Cache& cache, support::dice& d, std::uint32_t slot, std::uint32_t n) {
  std::uint32_t const heads = extent.query_heads();
  std::vector<float> q(std::size_t{heads} * n * extent.key_dim),
      out(std::size_t{heads} * n * extent.value_dim), lse(std::size_t{heads} * n);
  support::byte_list bytes;
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    for (float& x : q) x = static_cast<float>(d.normal());
    kvmeld::query_batch const batch{layer, slot, n};
    auto const queries = kvmeld::rows_by_head<float const>(q.data(), n, heads, extent.key_dim);
    kvmeld::attention::attend(cache.executor(), batch, queries, cache.ref(),
                              kvmeld::rows_by_head(out.data(), n, heads, extent.value_dim),
                              kvmeld::rows_by_head(lse.data(), n, heads, 1));
    cache.observe(batch, queries, kvmeld::rows_by_head<float const>(lse.data(), n, heads, 1));
    auto const part = support::bytes_of(out);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

// What follows: tokens, attention and two compressions; all that attention wrote, then rows, degrees,
// positions.
template <class Cache> support::byte_list go_on(Cache& cache, support::dice d, std::uint32_t slot) {
  support::byte_list bytes;
  auto const add = [&](auto const& part) { bytes.insert(bytes.end(), part.begin(), part.end()); };
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      write_rows(cache, d, slot, 1);
      cache.append({slot}, {1});
      cache.commit({slot}, {1});
      add(look(cache, d, slot, 1));
    }
    cache.compress({slot}, budget::entries(18));
    add(rows_of(cache, slot));
    support::for_tracks(extent, slot, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) {
        add(support::bytes_of(std::vector<float>{degree(cache, t, s)}));
        add(support::bytes_of(std::vector<std::int32_t>{cache.ledger().position[cache.ledger().at(t, s)]}));
      }
    });
  }
  return bytes;
}

}  // namespace

TEST_CASE("a saved sequence is resumed where it goes on alike, and refused elsewhere") {
  support::dice d(12);
  std::uint32_t resumed = 0, refused = 0, merged_and_resumed = 0;
  for (std::uint32_t turn = 0; turn < (support::brief() ? 150u : 600u); ++turn) {
    recipe from;
    from.policy = policies()[turn % policies().size()];
    from.options.members = kvmeld::shares_entries<kvmeld::compose::composed::merge_type>::value ? 40 : 0;
    for (std::uint32_t n = d.below(4); n > 0; --n) change(from, d);
    recipe to = from;
    for (std::uint32_t n = d.below(3); n > 0; --n) change(to, d);
    CAPTURE(turn);
    CAPTURE(from.policy);
    CAPTURE(to.policy);
    world a(from), b(to);
    if (!a.cache || !b.cache) continue;
    write_rows(*a.cache, d, 0, 40);
    a.cache->open(0, 40, 0, kvmeld::sequence_id{5});
    look(*a.cache, d, 0, 8);
    if (turn % 4 != 0) a.cache->compress({0}, budget::entries(20));  // else nothing has merged yet
    support::byte_list const bytes = a.cache->save(0), before = support::ledger_bytes(*b.cache);
    std::string const text = refusal_of([&] { b.cache->resume(1, bytes); });
    if (!text.empty()) {
      ++refused;
      CHECK_MESSAGE(!alike(from, to), text);
      CHECK(support::ledger_bytes(*b.cache) == before);
      continue;
    }
    ++resumed;
    bool merged = false;
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < a.cache->ref().length(t); ++s) merged |= degree(*a.cache, t, s) > 1.0f;
    });
    merged_and_resumed += merged ? 1 : 0;
    copy_rows(*a.cache, 0, *b.cache, 1);
    CHECK(go_on(*a.cache, d, 0) == go_on(*b.cache, d, 1));
  }
  CHECK(resumed > 50);
  CHECK(refused > 20);
  CHECK(merged_and_resumed > 10);
}

TEST_CASE("what must agree is refused by name, with both values") {
  auto const exchange = [](recipe const& from, recipe const& to, std::initializer_list<char const*> parts) {
    world a(from), b(to);
    REQUIRE(a.cache);
    REQUIRE(b.cache);
    support::dice d(2);
    write_rows(*a.cache, d, 0, 40);
    a.cache->open(0, 40);
    look(*a.cache, d, 0, 8);
    a.cache->compress({0}, budget::entries(20));
    auto const before = support::ledger_bytes(*b.cache);
    check_text(refusal_of([&] { b.cache->resume(0, a.cache->save(0)); }), parts);
    CHECK(support::ledger_bytes(*b.cache) == before);
  };
  std::string const merging =
      "score=global select=top identify=chunked_bipartite merge=degree_weighted sinks=1 recents=4 heavy=3";
  kvmeld::cache_options plain, layer, shared, all, ignoring, padded, roomy;
  layer.scope = shared.scope = kvmeld::plan_scope::layer;
  shared.bias = kvmeld::bias_support::shared;
  all.scope = kvmeld::plan_scope::all_layers;
  ignoring.ignore_degree = padded.padded = true;
  plain.members = layer.members = shared.members = all.members = ignoring.members = padded.members = 40;
  roomy.members = 60;
  exchange({merging, plain}, {merging, shared},
           {"resume: number of tracks that share a plan (options.scope) of the saved ledger is 1",
            "it must be 2, as in this cache"});
  exchange({merging, layer}, {merging, all},
           {"resume: number of tracks that share a plan (options.scope) of the saved ledger is 2", "4"});
  exchange({merging, plain}, {merging, ignoring},
           {"resume: options.ignore_degree of the saved ledger is 0", "it must be 1, as in this cache"});
  exchange({merging, plain}, {merging, padded}, {"resume: options.padded of the saved ledger is 0", "1"});
  exchange({merging, plain}, {merging, roomy}, {"resume: options.members of the saved ledger is 40", "60"});
  exchange({"snapkv window=4 recents=4", plain}, {"snapkv window=6 recents=4", plain},
           {"resume: number of the score of the saved ledger is \"window 4\"",
            "it must be \"window 6\", as in this cache"});
  exchange({"expected_attention rope=half_split rope_base=10000", plain},
           {"expected_attention rope=half_split rope_base=500000", plain},
           {"resume: number of the score of the saved ledger is \"base 10000\"",
            "it must be \"base 500000\", as in this cache"});
  exchange({"expected_attention rope=half_split rope_base=10000", plain},
           {"expected_attention rope=interleaved rope_base=10000", plain},
           {"is \"rope half_split\"; it must be \"rope interleaved\""});
}

TEST_CASE("degrees need no more than what the other cache's attention adds") {
  support::dice d(3);
  // Heads that share their plans have one row of degrees: both ways of adding it do.
  recipe per_head{policies()[4], {}}, shared, nothing{"h2o", {}};
  per_head.options.scope = kvmeld::plan_scope::layer;
  per_head.options.members = nothing.options.members = 40;
  shared = per_head;
  shared.options.bias = kvmeld::bias_support::shared;
  nothing.options.bias = kvmeld::bias_support::none;
  world a(per_head), b(shared);
  write_rows(*a.cache, d, 0, 40);
  a.cache->open(0, 40);
  look(*a.cache, d, 0, 8);
  a.cache->compress({0}, budget::entries(20));
  b.cache->resume(0, a.cache->save(0));
  CHECK(b.cache->save(0) == a.cache->save(0));
  // A ledger of other degrees, as no such cache makes it.
  kvmeld::ledger_ref const& l = a.cache->ledger();
  l.degree[l.at(kvmeld::make_track(extent, 1, 0, 1), 7)] = 3.5f;
  check_text(refusal_of([&] { b.cache->resume(1, a.cache->save(0)); }),
             {"resume: degree of entry 7 of the saved track (layer 1, head 1) is 3.5",
              "as that of head 0, because options.bias of this cache is bias_support::shared"});
  recipe evicting{"h2o", {}};
  evicting.options.members = 40;
  world c(evicting), e(nothing);
  c.cache->open(0, 9);
  e.cache->resume(0, c.cache->save(0));
  c.cache->ledger().degree[4] = 2.0f;
  check_text(refusal_of([&] { e.cache->resume(1, c.cache->save(0)); }),
             {"resume: degree of entry 4 of the saved track (layer 0, head 0) is 2; it must be 1, because "
              "options.bias of this cache is bias_support::none (or set ignore_degree)"});
}

TEST_CASE("element types agree: what is known of rows holds for rows of their type") {
  support::engine_memory<float> wide(extent);
  support::engine_memory<kvmeld::float16> narrow(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  auto a = support::make_cache(wide, policy);
  auto b = support::make_cache(narrow, policy);
  a.open(0, 9);
  check_text(refusal_of([&] { b.resume(0, a.save(0)); }),
             {"resume: element types of the saved ledger is \"float32 keys\"",
              "it must be \"float16 keys\", as in this cache"});
}

}  // namespace saved_options_cases
