// Degrees and positions by physical page: written beside pages, and taken up by a cache that has the pages
// elsewhere.
#include "padded.hpp"

#include <kvmeld/compose/any_cache.hpp>

#include "cache/refusal.hpp"
#include "layout/tensors.hpp"
#include "support/fenced_executor.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace pages_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 92};
constexpr std::uint32_t page = 8;
using tensor = layout_test::paged_tensor<float, page>;

// An engine's pool: K, V and what is noted of them, a page of each under one number.
struct pool {
  pool() {
    auto const pages = static_cast<std::uint32_t>(2 * keys.table.size());
    degree.assign(std::size_t{pages} * extent.layers * extent.kv_heads * page, -3.0f);
    position.assign(degree.size(), -7);
  }
  auto tensors() { return kvmeld::kv{keys.view(), values.view()}; }
  auto places() const {
    auto const most = tensor::pages(extent);
    return kvmeld::dense_places(kvmeld::table_rows(keys.table.data(), most), page, extent);
  }
  kvmeld::page_metadata<> notes() { return {places(), degree.data(), position.data()}; }
  std::int32_t& number(std::uint32_t sequence, std::uint32_t i) {
    return keys.table[sequence * tensor::pages(extent) + i];
  }
  // Takes over a page of another pool under a number of its own.
  void receive(std::int32_t mine, pool const& other, std::int32_t theirs) {
    auto const copy = [&](auto& to, auto const& from) {
      std::size_t const pages = 2 * keys.table.size(), n = to.size() / pages;
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(theirs) * n), n,
                  to.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(mine) * n));
    };
    copy(keys.memory, other.keys.memory);
    copy(values.memory, other.values.memory);
    copy(degree, other.degree);
    copy(position, other.position);
  }
  // Element of a dense [page][layer][head][token].
  std::size_t at(kvmeld::track t, kvmeld::slot_t s) {
    auto const p = static_cast<std::size_t>(number(t.sequence, s / page));
    return ((p * extent.layers + t.layer) * extent.kv_heads + t.kv_head) * page + s % page;
  }

  tensor keys{extent, extent.key_dim}, values{extent, extent.value_dim};
  std::vector<float> degree;
  std::vector<kvmeld::position_t> position;
};

template <class Executor, class Policy> auto cache_over(pool& p, Policy const& policy, bool pads) {
  kvmeld::cache_options options{extent};
  options.padded = pads;
  return kvmeld::merged_cache{Executor(1), policy, p.tensors(), options};
}

// A sequence with a past: compressed to budgets of every track's own, and a few tokens more.
template <class Cache> void live(Cache& cache, support::dice& d, std::uint32_t q) {
  open(cache, d, q, 70);
  std::vector<std::uint32_t> table(extent.tracks());
  for (std::uint32_t& n : table) n = d.between(28, 50);
  cache.compress({q}, budget::per_track(table.data()), kvmeld::shortfall::evict_lowest);
  write_rows(cache, d, q, 3);
  cache.append({q}, {3});
  cache.commit({q}, {3});
}

template <class Policy> void there_and_back(char const* name, Policy const& policy, bool pads) {
  CAPTURE(std::string(name));
  CAPTURE(pads);
  pool here, there;
  support::dice d(17);
  auto cache = cache_over<kvmeld::host_executor>(here, policy, pads);
  for (std::uint32_t q : {0u, 2u}) live(cache, d, q);
  cache.export_page_metadata({2, 0}, here.notes());

  // Every element of the pages in use says what the ledger says, and of no other page anything.
  std::vector<char> mine(here.degree.size(), 0);
  for (std::uint32_t q : {0u, 2u}) {
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < (cache.longest(q) + page - 1) / page * page; ++s) {
        std::size_t const i = here.at(t, s);
        mine[i] = 1;
        bool const held = s < cache.ref().length(t);
        CHECK(here.degree[i] == (held ? cache.ref().degree(t, s) : 0.0f));
        if (held) CHECK(here.position[i] == cache.ref().position(t, s));
      }
    });
  }
  for (std::size_t i = 0; i < mine.size(); ++i) CHECK((mine[i] != 0 || here.degree[i] == -3.0f));

  // Sequence 2 goes to slot 1 of another cache, under other page numbers.
  std::uint32_t const n = cache.length_bound(2);
  for (std::uint32_t i = 0; i * page < n; ++i) there.receive(there.number(1, i), here, here.number(2, i));
  auto other = cache_over<kvmeld::host_executor>(there, policy, pads);
  auto saved = cache_over<kvmeld::host_executor>(there, policy, pads);
  other.adopt(1, n, cache.tokens(2), there.notes(), kvmeld::sequence_id{5});
  saved.resume(1, cache.save(2));
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    auto const x = other.ref();
    auto const y = saved.ref();
    CHECK(x.length(t) == y.length(t));
    for (kvmeld::slot_t s = 0; s < y.length(t); ++s) {
      CHECK(x.degree(t, s) == y.degree(t, s));
      CHECK(x.position(t, s) == y.position(t, s));
    }
    kvmeld::track const from = kvmeld::make_track(extent, t.layer, 2, t.kv_head);
    CHECK(support::get_row(x.keys, t, x.length(t) - 1) ==
          support::get_row(cache.ref().keys, from, x.length(t) - 1));
  });
  CHECK(other.tokens(1) == cache.tokens(2));
  CHECK(other.entries(1) == cache.entries(2));
  CHECK(other.length_bound(1) == n);
  CHECK(other.compressed_at(1) == other.tokens(1));
  CHECK(kvmeld::testing::invariant_problem(other) == "");
  if (pads) check_padding(other, 1, n);
  // And goes on.
  feed(other, d, 1, 2);
  other.compress({1}, budget::entries(27), kvmeld::shortfall::evict_lowest);
  CHECK(other.longest(1) == 27);
  CHECK(kvmeld::testing::invariant_problem(other) == "");
}

}  // namespace

TEST_CASE("notes of pages bring a sequence back elsewhere, for every preset") {
  each_padded_policy([](char const* name, auto const& policy) {
    for (bool pads : {false, true}) there_and_back(name, policy, pads);
  });
}

TEST_CASE("a beginning of merged pages is shared by sequences that adopt it") {
  pool p;
  support::dice d(2);
  auto cache = cache_over<kvmeld::host_executor>(p, kvmeld::preset::keepkv::for_budget(), false);
  live(cache, d, 0);
  cache.export_page_metadata({0}, p.notes());
  for (std::uint32_t i = 0; i < 2; ++i) {  // its first two pages are in use by both
    p.number(1, i) = p.number(0, i);
    p.keys.shared[static_cast<std::size_t>(p.number(0, i))] = 1;
    p.values.table[tensor::pages(extent) + i] = p.number(0, i);
    p.values.shared[static_cast<std::size_t>(p.number(0, i))] = 1;
  }
  cache.adopt(1, 16, 40, p.notes());
  cache.freeze(1, 16);
  CHECK(cache.tokens(1) == 40);
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    kvmeld::track const first = kvmeld::make_track(extent, t.layer, 0, t.kv_head);
    CHECK(cache.ref().length(t) == 16);
    for (kvmeld::slot_t s = 0; s < 16; ++s) {
      CHECK(cache.ref().degree(t, s) == cache.ref().degree(first, s));
      CHECK(support::get_row(cache.ref().keys, t, s) == support::get_row(cache.ref().keys, first, s));
    }
  });
  auto const bytes = rows_of(cache, 0);
  feed(cache, d, 1, 30);
  cache.compress({1}, budget::entries(38), kvmeld::shortfall::evict_lowest);
  CHECK(rows_of(cache, 0) == bytes);
}

TEST_CASE("heads with pages of their own leave pages alone that they do not have") {
  // CSR as FlashInfer has it, heads folded into the batch: as many pages per head as it needs.
  constexpr kvmeld::shape s{1, 2, 2, 1, 12, 8, 40};
  support::engine_memory<float> memory(s);
  support::dice d(3);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(1, 40);
  std::uint32_t const table[] = {0, 0, 11, 27};
  cache.compress({1}, budget::per_track(table));
  std::vector<std::int32_t> const first{0, 0, 0, 2, 6}, pages{4, 1, 0, 2, 3, 5};
  std::vector<float> degree(6 * 8, -1.0f);
  std::vector<kvmeld::position_t> position(6 * 8, -1);
  kvmeld::page_metadata<> const notes{
      {kvmeld::table_csr(first.data(), pages.data(), 2), 8, 8, 0, 0}, degree.data(), position.data()};
  cache.export_page_metadata({1}, notes);
  for (std::uint32_t head : {0u, 1u}) {
    std::uint32_t const length = head == 0 ? 11 : 27, begin = head == 0 ? 0 : 2, count = head == 0 ? 2 : 4;
    for (kvmeld::slot_t x = 0; x < count * 8; ++x) {
      auto const i = static_cast<std::size_t>(pages[begin + x / 8]) * 8 + x % 8;
      CHECK(degree[i] == (x < length ? 1.0f : 0.0f));
    }
  }
  cache.close(1);
  cache.adopt(1, 27, 40, notes);
  CHECK(cache.length(0, 1, 0) == 11);
  CHECK(cache.length(0, 1, 1) == 27);
  // A table with rows per head that is not CSR: entries behind a head's own pages are anything.
  std::vector<std::int32_t> const dense{0, 0, 0, 0, 0, 0, 0, 0, 4, 1, -9, -9, 0, 2, 3, 5};
  std::vector<float> again(6 * 8, -1.0f);
  kvmeld::page_table<std::int32_t> rows{dense.data(), 8, 0, 4};
  cache.export_page_metadata({1}, kvmeld::page_metadata<>{{rows, 8, 8, 0, 0}, again.data(), position.data()});
  CHECK(again == degree);
}

TEST_CASE("the bias by page is the log degree of the page's entries") {
  pool p;
  support::dice d(5);
  auto cache = cache_over<kvmeld::host_executor>(p, kvmeld::preset::keepkv::for_budget(), true);
  live(cache, d, 1);
  auto const check = [&](auto type) {
    using T = decltype(type);
    using traits = kvmeld::element_traits<T>;
    std::vector<T> out(p.degree.size(), traits::from_float(-3.0f));
    kvmeld::attention::write_log_degree_by_page(cache.executor(), cache.ref(), {1}, {cache.length_bound(1)},
                                                p.places(), out.data());
    std::vector<char> mine(out.size(), 0);
    bool merged = false;
    support::for_tracks(extent, 1, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < (cache.longest(1) + page - 1) / page * page; ++s) {
        mine[p.at(t, s)] = 1;
        bool const held = s < cache.ref().length(t) && cache.ref().degree(t, s) > 0.0f;
        float const wanted =
            held ? traits::to_float(traits::from_float(cache.ref().log_degree(t, s))) : traits::lowest;
        CHECK(traits::to_float(out[p.at(t, s)]) == wanted);
        merged = merged || (held && wanted > 0.0f);
      }
    });
    CHECK(merged);
    for (std::size_t i = 0; i < out.size(); ++i) CHECK((mine[i] != 0 || traits::to_float(out[i]) == -3.0f));
  };
  check(float{});
  check(kvmeld::float16{});
}

TEST_CASE("what appends entries can write their bias, and the rest stays as it was") {
  pool p;
  support::dice d(6);
  auto cache = cache_over<kvmeld::host_executor>(p, kvmeld::preset::keepkv::for_budget(), true);
  live(cache, d, 1);
  auto const write = [&](std::vector<float>& out) {
    kvmeld::attention::write_log_degree_by_page(cache.executor(), cache.ref(), {1}, {cache.length_bound(1)},
                                                p.places(), out.data());
  };
  std::vector<float> out(p.degree.size(), -3.0f);
  write(out);
  cache.append({1}, {2});
  auto const ref = cache.ref();
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    std::uint32_t const length = ref.length(t);
    // To the end of the last page, which may be new.
    for (kvmeld::slot_t s = length - 2; s < (cache.longest(1) + page - 1) / page * page; ++s)
      out[p.at(t, s)] = kvmeld::attention::stored_log_degree<float>(ref, t, s, length);
  });
  std::vector<float> again(p.degree.size(), -3.0f);
  write(again);
  CHECK(out == again);
}

TEST_CASE("an executor whose memory the host cannot read writes and adopts the same") {
  for (bool pads : {false, true}) {
    CAPTURE(pads);
    pool near_pool, far_pool;
    support::dice d(8), e(8);
    auto const policy = kvmeld::preset::streaming_llm::with_sinks(3);
    auto near = cache_over<kvmeld::host_executor>(near_pool, policy, pads);
    kvmeld::cache_options options{extent};
    options.padded = pads;
    kvmeld::merged_cache far{support::fenced_executor(), policy, far_pool.tensors(), options};
    live(near, d, 0);
    far.resume(0, near.save(0));
    far_pool.keys.memory = near_pool.keys.memory;
    near.export_page_metadata({0}, near_pool.notes());
    support::fenced_graph graph(far.executor());
    CHECK(graph.record(far.executor(), [&] { far.export_page_metadata({0}, far_pool.notes()); }) == "");
    CHECK(far_pool.degree == near_pool.degree);
    CHECK(far_pool.position == near_pool.position);
    for (std::uint32_t i = 0; i < tensor::pages(extent); ++i)
      near_pool.number(1, i) = far_pool.number(1, i) = near_pool.number(0, i);
    std::uint32_t const n = far.length_bound(0);
    near.adopt(1, n, 73, near_pool.notes());
    far.adopt(1, n, 73, far_pool.notes());
    CHECK(far.save(1) == near.save(1));
    CHECK(far.length_bound(1) == n);
    CHECK(far.tokens(1) == 73);
    CHECK(far.compressed_at(1) == 73);
    far.append({1}, {2});
    CHECK(far.length_bound(1) == n + 2);
    far.commit({1}, {2});
    far.sync_lengths(1);
    auto const held = kvmeld::make_any_cache(support::twin_of(near));  // behind one interface
    kvmeld::any_cache& any = *held;
    any.export_page_metadata({1}, near_pool.notes());
    any.adopt(2, n, 80, near_pool.notes());
    CHECK(any.tokens(2) == 80);
    CHECK(far.entries(1) == near.entries(1) + 2 * extent.layers * extent.kv_heads);
  }
}

TEST_CASE("adopted entries can be frozen and forked where the host has only bounds of the lengths") {
  for (bool pads : {false, true}) {
    CAPTURE(pads);
    kvmeld::shape const s{1, 2, 2, 1, 2, 1, 8};
    support::engine_memory<float> memory(s);
    kvmeld::cache_options options{s};
    options.padded = pads;
    kvmeld::merged_cache far{support::fenced_executor(), kvmeld::preset::streaming_llm::with_sinks(1),
                             memory.tensors(), options};
    std::vector<float> const degree{1, 1, 1, 1, /**/ 1, 2, 0, 0};
    std::vector<kvmeld::position_t> const position{0, 1, 2, 3, /**/ 0, 2, 0, 0};
    far.adopt(0, 4, 9, kvmeld::entry_metadata{degree.data(), position.data(), {0, 4}});
    CHECK(far.length_bound(0) == 4);
    auto const refused = [&](auto call) {
      CHECK(cache_test::refusal_of(call).find("frozen is 3; it must be at most 2") != std::string::npos);
    };
    refused([&] { far.freeze(0, 3); });
    refused([&] { far.fork(0, 1, 3); });
    far.freeze(0, 2);
    far.fork(0, 1, 2);
    far.close(0);
    far.resume(0, far.save(1));  // refuses frozen beginnings that are longer than a track
    CHECK(far.entries(0) == 6);
  }
}

namespace {

// The first three entries of four tracks, whose degrees and positions come from arrays [layer][head][3].
template <class Cache> void begins_with_degrees(Cache& cache) {
  std::vector<float> const degree{3, 1, 2, /**/ 1, 5, 1, /**/ 4, 4, 0, /**/ 2, 2, 2};
  std::vector<kvmeld::position_t> const position{2, 3, 5, /**/ 0, 5, 6, /**/ 3, 7, 9, /**/ 1, 3, 5};
  cache.adopt(1, 3, 8, kvmeld::entry_metadata{degree.data(), position.data(), {6, 3}},
              kvmeld::sequence_id{4});
  cache.sync_lengths(1);
  CHECK(cache.tokens(1) == 8);
  CHECK(cache.compressed_at(1) == 8);
  for (std::uint32_t layer : {0u, 1u}) {
    for (std::uint32_t head : {0u, 1u})
      CHECK(cache.length(layer, 1, head) == (layer == 1 && head == 0 ? 2 : 3));
  }
}

}  // namespace

TEST_CASE(
    "a sequence begins with degrees and positions from arrays, and goes on as if it had merged them itself") {
  kvmeld::shape const s{2, 2, 2, 1, 2, 1, 8};
  support::engine_memory<float> memory(s), far_memory(s), any_memory(s);
  auto const values = [](std::uint32_t i) { return std::vector<float>{10.0f * static_cast<float>(i + 1)}; };
  support::for_tracks(s, 1, [&](kvmeld::track t) {
    for (auto* m : {&memory, &far_memory, &any_memory})
      m->fill(t, 0, {{1, 0}, {1, 0}, {0, 1}, {0, 1}}, {values(0), values(1), values(2), values(3)});
  });
  kvmeld::policy const pairs{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(0), kvmeld::quantity::entries(1)},
      kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{2, {}},
      kvmeld::merge::degree_weighted{}};
  auto near = support::make_cache(memory, pairs);
  begins_with_degrees(near);
  auto const now = near.ref();
  kvmeld::track const first = now.where(0, 1, 0), last = now.where(1, 1, 1);
  CHECK(now.degree(first, 0) == 3.0f);
  CHECK(now.log_degree(now.where(0, 1, 1), 1) == doctest::Approx(std::log(5.0)));
  CHECK(now.position(first, 2) == 5);
  CHECK(now.position(last, 1) == 3);
  // Slots 0 and 1 become one: (3 * 10 + 1 * 20) / 4 with degree 4 and the position of the target; (2 * 10 + 2
  // * 20) / 4 with 4.
  near.compress({1}, budget::entries(2));
  CHECK(memory.values[0 + s.capacity * (2 * 1)] == doctest::Approx(12.5));
  CHECK(now.degree(first, 0) == 4.0f);
  CHECK(now.position(first, 0) == 3);
  CHECK(now.degree(last, 0) == 4.0f);
  CHECK(now.position(last, 0) == 3);
  CHECK(now.degree(last, 1) == 2.0f);
  CHECK(now.length(now.where(1, 1, 0)) == 2);  // was within its budget
  near.append({1}, {1});
  CHECK(now.position(first, 2) == 8);
  CHECK(now.degree(first, 2) == 1.0f);

  // One row for all tracks, on any cache and where the host cannot look.
  auto const held = kvmeld::make_any_cache(support::make_cache(any_memory, pairs));
  kvmeld::any_cache& any = *held;
  begins_with_degrees(any);
  kvmeld::merged_cache far{support::fenced_executor(), pairs, far_memory.tensors(), kvmeld::cache_options{s}};
  begins_with_degrees(far);
  std::vector<float> const degree{2, 7};
  std::vector<kvmeld::position_t> const position{4, 9};
  kvmeld::entry_metadata const common{degree.data(), position.data()};
  any.adopt(0, 2, 20, common);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    CHECK(any.ledger().degree[any.ledger().at(t, 1)] == 7.0f);
    CHECK(any.ledger().position[any.ledger().at(t, 1)] == 9);
  });
  // A degree that is no number of tokens ends a track, as 0 does.
  std::vector<float> const endless{2, kvmeld::bits_float(0x7f800000u)};
  any.close(0);
  any.adopt(0, 2, 20, kvmeld::entry_metadata{endless.data(), position.data()});
  CHECK(any.longest(0) == 1);
  kvmeld::entry_metadata none = common;
  none.degree = nullptr;
  CHECK_THROWS_WITH(any.adopt(1, 2, 20, none),
                    "adopt: degree is null; it must be an array, one number per entry");
}

TEST_CASE("what cannot be noted or adopted") {
  pool p;
  support::dice d(1);
  auto cache = cache_over<kvmeld::host_executor>(p, kvmeld::preset::streaming_llm::with_sinks(2), false);
  auto const refuses = [&](auto call, std::initializer_list<char const*> parts) {
    auto const ledger = support::ledger_bytes(cache);
    cache_test::check_text(cache_test::refusal_of(call), parts);
    CHECK(support::ledger_bytes(cache) == ledger);
  };
  kvmeld::page_metadata<> const good = p.notes();
  refuses([&] { cache.export_page_metadata({0}, good); }, {"export_page_metadata: sequence is 0"});
  refuses([&] { cache.adopt(3, 1, 1, good); }, {"adopt: sequence is 3", "it must be 0 to 2"});
  refuses([&] { cache.adopt(0, 93, 100, good); },
          {"adopt: entries is 93", "it must be at most 92, the capacity"});
  refuses([&] { cache.adopt(0, 30, 29, good); },
          {"adopt: tokens is 29", "it must be at least 30, the entries that the notes may hold"});
  open(cache, d, 0, 30);
  refuses([&] { cache.adopt(0, 30, 30, good); }, {"adopt: sequence is 0"});
  cache.append({0}, {2});
  refuses([&] { cache.export_page_metadata({0}, good); },
          {"export_page_metadata: number of pending entries of sequence 0 is 2"});
  cache.commit({0}, {2});
  kvmeld::page_metadata<> bad = good;
  bad.position = nullptr;
  refuses([&] { cache.export_page_metadata({0}, bad); }, {"export_page_metadata: notes.position is null"});
  bad = good;
  bad.places.page_size = 0;
  refuses([&] { cache.export_page_metadata({0}, bad); }, {"export_page_metadata: page_size is 0"});
  bad = good;
  bad.places.table.entries = nullptr;
  refuses([&] { cache.adopt(1, 2, 2, bad); }, {"adopt: page table is null"});
  support::engine_memory<float> memory(extent);
  auto sharing = cache_for(memory, kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.3f, 2.0));
  refuses([&] { sharing.adopt(0, 2, 2, good); },
          {"adopt: policy is one that shares entries", "save and resume"});
  refuses([&] { sharing.export_page_metadata({0}, good); },
          {"export_page_metadata: policy is one that shares entries"});
  std::vector<float> out(p.degree.size());
  auto const bias = [&](std::uint32_t sequence, std::uint32_t slots, float* to) {
    kvmeld::attention::write_log_degree_by_page(cache.executor(), cache.ref(), {sequence}, {slots},
                                                p.places(), to);
  };
  refuses([&] { bias(3, 1, out.data()); }, {"attention::write_log_degree_by_page: sequence is 3"});
  refuses([&] { bias(0, 93, out.data()); }, {"attention::write_log_degree_by_page: slots[0] is 93"});
  refuses([&] { bias(0, 3, nullptr); }, {"out is null"});
  // Notes that no cache wrote: tracks end before the first token that is none.
  p.degree[p.at(kvmeld::make_track(extent, 1, 1, 0), 4)] = kvmeld::bits_float(0x7fc00000u);
  for (std::uint32_t i = 0; i < 8; ++i)
    p.degree[p.at(kvmeld::make_track(extent, 1, 1, 0), i)] = i == 4 ? kvmeld::bits_float(0x7fc00000u) : 2.0f;
  cache.adopt(1, 8, 20, good);
  CHECK(cache.length(1, 1, 0) == 4);
  CHECK(cache.length(0, 1, 0) == 0);
}

TEST_CASE("a sequence that ends before its notes do leaves its neighbours alone") {
  kvmeld::shape const s{1, 2, 1, 1, 2, 1, 8};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(1));
  cache.open(1, 8);
  std::vector<float> const degree{2, 1, 1, 1, 1, 0, 0};
  std::vector<kvmeld::position_t> const position{1, 2, 3, 4, 5, 6, 7};
  cache.adopt(0, 7, 8, kvmeld::entry_metadata{degree.data(), position.data(), {}});
  CHECK(cache.length(0, 0, 0) == 5);
  auto const x = cache.ref();
  for (kvmeld::slot_t i = 0; i < 8; ++i) {
    CHECK(x.degree(x.where(0, 1, 0), i) == 1.0f);
    CHECK(cache.ledger().degree[i] == (i < 5 ? degree[i] : 0.0f));
  }
}

}  // namespace pages_cases
