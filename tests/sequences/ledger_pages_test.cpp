// A ledger whose entries lie in pages of a pool holds what a ledger of arrays holds, and bytes for the pool
// alone.
#include "twins.hpp"

#include <kvmeld/compose/any_cache.hpp>

#include "cache/refusal.hpp"
#include "layout/tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace ledger_pages_cases {

using namespace sequences_test;

namespace {

enum class form { shared_by_heads, own_pages_of_heads, csr };

// A block table over pages in an order of its own, among others that nobody uses.
struct block_table {
  std::uint32_t size, rows, per_row, count;
  std::vector<std::int32_t> entries, first;
  kvmeld::page_places<> places;

  block_table(support::dice& d, std::uint32_t page_size, form how, kvmeld::shape const& s = extent)
      : size(page_size),
        rows(s.sequences * (how == form::own_pages_of_heads ? s.layers * s.kv_heads : 1)),
        per_row(kvmeld::ceil_div(s.capacity, page_size)),
        count(rows * per_row + 5) {
    std::vector<std::int32_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    for (std::uint32_t i = count; i-- > 1;) std::swap(all[i], all[d.below(i + 1)]);
    entries.assign(all.begin(), all.begin() + rows * per_row);
    for (std::uint32_t r = 0; r <= rows; ++r) first.push_back(static_cast<std::int32_t>(r * per_row));
    auto table = kvmeld::table_rows(entries.data(), per_row);
    if (how == form::csr) table = kvmeld::table_csr(first.data(), entries.data());
    places = kvmeld::dense_places(table, size, s);
    if (how != form::own_pages_of_heads) return;
    auto const pages = std::int64_t{per_row};
    places.table = {entries.data(), pages * s.layers * s.kv_heads, pages * s.kv_heads, pages};
    places.layer_stride = places.head_stride = 0;
    places.page_stride = size;
  }
  kvmeld::ledger_pages pages() const { return {count, places}; }
};

template <class F> void each_policy_without_members(F f) {
  each_policy([&](char const* name, auto const& policy) {
    using policy_type = std::decay_t<decltype(policy)>;
    if constexpr (!kvmeld::shares_entries<typename policy_type::merge_type>::value) f(name, policy);
  });
}

}  // namespace

TEST_CASE("a ledger in pages holds the same entries, on hosts and on devices") {
  support::dice d(91);
  each_policy_without_members([&](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    for (auto how : {form::shared_by_heads, form::own_pages_of_heads, form::csr}) {
      std::uint32_t const sizes[] = {1, 5, 16, extent.capacity};
      block_table const table(d, d.pick(sizes), how);
      bool const near = d.chance(0.5);
      kvmeld::ledger_pages const none{};
      twins<std::decay_t<decltype(policy)>> pair(policy, 31, near ? table.pages() : none,
                                                 near ? none : table.pages());
      pair.open(0);
      pair.open(1);
      for (int step = 0; step < (support::brief() ? 4 : 12); ++step) {
        pair.append();
        pair.compress(step % 2 == 0 ? kvmeld::shortfall::keep : kvmeld::shortfall::evict_lowest);
        pair.check();
        pair.other_calls();
        pair.check();
        pair.turn(0, [](auto& c) { c.shift(0, 3, kvmeld::rope_params{}); });
        pair.turn(1, [](auto& c) { c.renumber(1, kvmeld::rope_params{}); });
        pair.check();
      }
    }
  });
}

namespace {

// An engine that takes pages from a pool when tokens arrive and gives those behind the entries back at once.
// A table entry without a page names one far outside of every array.
class small_pool {
public:
  static constexpr std::uint32_t page = 8, count = 31;

  explicit small_pool(kvmeld::shape const& s)
      : extent_(s), per_row_(kvmeld::ceil_div(s.capacity, page)), table_(s.sequences * per_row_, nowhere) {
    for (std::int32_t p = count; p-- > 0;) free_.push_back(p);
  }
  kvmeld::ledger_pages pages() const {
    return {count, kvmeld::dense_places(kvmeld::table_rows(table_.data(), per_row_), page, extent_)};
  }
  // Gives a sequence pages for `slots` slots, and takes back those behind them.
  void cover(std::uint32_t sequence, std::uint32_t slots) {
    for (std::uint32_t i = 0; i < per_row_; ++i) {
      std::int32_t& p = table_[sequence * per_row_ + i];
      bool const wanted = i * page < slots;
      if (wanted && p == nowhere) {
        REQUIRE_FALSE(free_.empty());
        p = free_.back();
        free_.pop_back();
      } else if (!wanted && p != nowhere) {
        free_.insert(free_.begin(), p);
        p = nowhere;
      }
    }
  }
  std::int32_t& number(std::uint32_t sequence, std::uint32_t i) { return table_[sequence * per_row_ + i]; }
  std::int32_t take() {
    std::int32_t const p = free_.back();
    free_.pop_back();
    return p;
  }

private:
  static constexpr std::int32_t nowhere = 1 << 27;
  kvmeld::shape extent_;
  std::uint32_t per_row_;
  std::vector<std::int32_t> table_, free_;
};

kvmeld::cache_options with(kvmeld::ledger_pages const& pages) {
  kvmeld::cache_options options{extent};
  options.ledger_pages = pages;
  return options;
}

// Queries of the last `n` tokens of a sequence, as a model has them.
struct queries_of {
  std::vector<float> q, norms;
  std::vector<std::uint32_t> sequences, counts;
  queries_of(support::dice& d, std::uint32_t sequence, std::uint32_t n)
      : q(n * extent.query_heads() * extent.key_dim),
        norms(n * extent.query_heads()),
        sequences{sequence},
        counts{n} {
    for (float& x : q) x = static_cast<float>(d.normal());
  }
  // Attention in every layer, and its observation: the outputs.
  template <class Cache> std::vector<float> attend(Cache& cache) {
    std::uint32_t const heads = extent.query_heads();
    std::vector<float> out(counts[0] * heads * extent.value_dim), all;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      kvmeld::query_batch const batch{layer, {sequences.data(), 1}, {counts.data(), 1}};
      auto const rows = kvmeld::rows_by_token<float const>(q.data(), counts[0], heads, extent.key_dim);
      auto const sums = kvmeld::rows_by_head(norms.data(), counts[0], heads, 1);
      kvmeld::attention::attend(cache.executor(), batch, rows, cache.ref(),
                                kvmeld::rows_by_token(out.data(), counts[0], heads, extent.value_dim), sums);
      if (cache.ledger().channels.count != 0 || cache.ledger().table_floats != 0)
        cache.observe(batch, rows, sums);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("pages come from a small pool and go back to it") {
  each_policy_without_members([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    support::dice d(17);
    support::engine_memory<float> memory(extent), twin(extent);
    small_pool pool(extent);
    auto cache = cache_for(memory, policy, with(pool.pages()));
    auto expected = cache_for(twin, policy);
    auto const arrive = [&](std::uint32_t q, std::uint32_t n) {
      std::uint32_t const length = cache.ledger().is_open[q] != 0 ? cache.longest(q) : 0;
      pool.cover(q, length + n);
      support::dice same = d;
      if (length == 0) {
        cache.open(q);
        expected.open(q);
      }
      write_rows(cache, d, q, n);
      write_rows(expected, same, q, n);
      for (auto* c : {&cache, &expected}) {
        c->append({q}, {n});
        c->commit({q}, {n});
      }
      queries_of asked(d, q, n);
      CHECK(asked.attend(cache) == asked.attend(expected));
    };
    for (int step = 0; step < (support::brief() ? 5 : 20); ++step) {
      for (std::uint32_t q : {0u, 1u, 2u}) {
        arrive(q, 1 + d.below(cache.ledger().is_open[q] != 0 ? 6 : 40));
        if (cache.longest(q) <= 30) continue;
        for (auto* c : {&cache, &expected})
          c->compress({q}, kvmeld::budget::entries(29), kvmeld::shortfall::evict_lowest);
        pool.cover(q, cache.longest(q));
        CHECK(digest(cache, q) == digest(expected, q));
      }
      if (!d.chance(0.3)) continue;
      for (auto* c : {&cache, &expected}) c->close(1);
      pool.cover(1, 0);
    }
  });
}

TEST_CASE("sequences share the pages of a frozen beginning, whose scores nobody changes") {
  support::dice d(23);
  support::engine_memory<float> memory(extent), twin(extent);
  auto const policy = kvmeld::preset::h2o::defaults();
  small_pool pool(extent);
  auto cache = cache_for(memory, policy, with(pool.pages()));
  auto expected = cache_for(twin, policy);
  std::uint32_t const common = 2 * small_pool::page, n = common + 21;
  pool.cover(0, n);
  pool.cover(1, n);
  for (std::uint32_t i = 0; i < 2; ++i) pool.number(1, i) = pool.number(0, i);
  support::dice same = d;
  write_rows(cache, d, 0, n);
  write_rows(expected, same, 0, n);
  for (std::uint32_t q : {0u, 1u}) {
    for (auto* c : {&cache, &expected}) {
      c->open(q, n, common);
      copy_rows(*c, 0, *c, q);
    }
  }
  auto const scores = [&](auto const& c, std::uint32_t q, std::uint32_t first, std::uint32_t last) {
    std::vector<float> out;
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = first; s < last; ++s)
        out.push_back(c.ledger().channel_data[0][c.ledger().at(t, s)]);
    });
    return out;
  };
  std::vector<float> const none = scores(cache, 0, 0, common);
  for (std::uint32_t q : {0u, 1u}) {
    queries_of asked(d, q, 9);
    CHECK(asked.attend(cache) == asked.attend(expected));
    CHECK(scores(cache, q, 0, common) == none);
    CHECK(scores(expected, q, 0, common) != none);
    CHECK(scores(cache, q, common, n) == scores(expected, q, common, n));
  }
  // What a shared page says of positions holds for all.
  cache_test::check_text(cache_test::refusal_of([&] { cache.shift(0, 1, kvmeld::rope_params{}); }),
                         {"shift", "slot 0", "frozen"});
  for (auto* c : {&cache, &expected}) c->compress({0, 1}, budget::entries(common + 9));
  for (std::uint32_t q : {0u, 1u}) {
    CHECK(cache.longest(q) == expected.longest(q));
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < common; ++s) {
        CHECK(cache.ref().position(t, s) == static_cast<kvmeld::position_t>(s));
        CHECK(cache.ref().degree(t, s) == 1.0f);
      }
    });
  }
}

TEST_CASE("scores go out as a dense array and come back, from arrays and from pages") {
  support::dice d(37);
  support::engine_memory<float> memory(extent);
  small_pool pool(extent);
  auto const policy = kvmeld::preset::snapkv::with_window();
  auto cache = cache_for(memory, policy);
  auto paged = cache_for(memory, policy, with(pool.pages()));
  pool.cover(0, 30);
  pool.cover(2, 21);
  for (std::uint32_t q : {0u, 2u}) {
    for (auto* c : {&cache, &paged}) {
      support::dice same(q);
      c->open(q, q == 0 ? 30 : 21, q == 0 ? 5 : 0);
      score(*c, same, q);
    }
  }
  std::uint32_t const columns = 33, channels = cache.ledger().channels.count;
  std::vector<float> rows(extent.layers * 2 * extent.kv_heads * channels * columns, -7.0f), other = rows;
  cache.read_scores({2, 0}, rows.data(), columns);
  paged.read_scores({2, 0}, other.data(), columns);
  CHECK(other == rows);
  std::size_t i = 0;
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
    for (std::uint32_t q : {2u, 0u})
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head)
        for (std::uint32_t c = 0; c < channels; ++c)
          for (std::uint32_t s = 0; s < columns; ++s, ++i) {
            kvmeld::track const t = kvmeld::make_track(extent, layer, q, head);
            bool const there = s < cache.ref().length(t);
            CHECK(rows[i] == (there ? cache.ledger().channel_data[c][cache.ledger().at(t, s)] : 0.0f));
          }
  std::vector<float> const before = rows;
  for (float& x : rows) x += 1.0f;
  cache.write_scores({2, 0}, rows.data(), columns);
  paged.write_scores({2, 0}, rows.data(), columns);
  cache.read_scores({2, 0}, other.data(), columns);
  i = 0;
  for (float x : other) {
    CHECK((x == rows[i] || x == 0.0f));  // 0 behind the entries
    ++i;
  }
  std::vector<float> shared(rows.size());
  paged.read_scores({2, 0}, shared.data(), columns);
  for (i = 0; i < rows.size(); ++i) {  // frozen entries of a page keep their scores
    bool const frozen = i / columns / channels / extent.kv_heads % 2 == 1 && i % columns < 5;
    CHECK(shared[i] == (frozen ? before[i] : other[i]));
  }
  cache_test::check_text(cache_test::refusal_of([&] { cache.read_scores({0}, rows.data(), 29); }),
                         {"read_scores: columns is 29; it must be at least 30, the slots of sequence 0"});
  cache_test::check_text(cache_test::refusal_of([&] { cache.write_scores({0}, nullptr, 30); }),
                         {"write_scores: rows is null; it must be an array of the sequences' scores"});
  cache_test::check_text(cache_test::refusal_of([&] { cache.write_scores({1}, rows.data(), 30); }),
                         {"write_scores: sequence is 1; it must be open"});
}

TEST_CASE("a page that moves takes its numbers along") {
  support::dice d(29);
  support::engine_memory<float> memory(extent);
  small_pool pool(extent);
  auto cache = cache_for(memory, kvmeld::preset::snapkv::with_window(), with(pool.pages()));
  pool.cover(1, 60);
  write_rows(cache, d, 1, 60);
  cache.open(1, 60);
  score(cache, d, 1);
  cache.compress({1}, budget::entries(40));
  pool.cover(1, cache.longest(1));
  auto const before = digest(cache, 1);
  for (std::uint32_t i : {0u, 3u}) {
    std::int32_t const to = pool.take();
    cache.copy_page(static_cast<std::uint32_t>(pool.number(1, i)), static_cast<std::uint32_t>(to));
    pool.number(1, i) = to;
  }
  CHECK(digest(cache, 1) == before);
  // The same by an engine that copies bytes, here to a cache of another pool.
  small_pool other(extent);
  auto elsewhere = cache_for(memory, kvmeld::preset::snapkv::with_window(), with(other.pages()));
  other.cover(1, 60);
  elsewhere.resume(1, cache.save(1));
  for (std::uint32_t i = 0; i < kvmeld::ceil_div(cache.longest(1), small_pool::page); ++i) {
    auto const from = cache.page_pieces(static_cast<std::uint32_t>(pool.number(1, i)));
    auto const into = elsewhere.page_pieces(static_cast<std::uint32_t>(other.number(1, i)));
    REQUIRE(from.size() == 3 + cache.ledger().channels.count);
    for (std::size_t k = 0; k < from.size(); ++k) {
      REQUIRE(from[k].size() == into[k].size());
      for (std::size_t b = 0; b < from[k].size(); ++b) into[k][b] = std::byte{0x5a};
      std::memcpy(into[k].data(), from[k].data(), from[k].size());
    }
  }
  CHECK(digest(elsewhere, 1) == before);
  // A table elsewhere in memory, with the same pages.
  std::vector<std::int32_t> moved(extent.sequences * kvmeld::ceil_div(extent.capacity, small_pool::page));
  for (std::uint32_t i = 0; i < 5; ++i) {
    moved[moved.size() / extent.sequences + i] = other.number(1, i);
    other.number(1, i) = 1 << 27;
  }
  elsewhere.rebind_pages(
      kvmeld::table_rows(moved.data(), static_cast<std::uint32_t>(moved.size() / extent.sequences)));
  CHECK(digest(elsewhere, 1) == before);
}

TEST_CASE("the bytes of a ledger in pages are those of the pool") {
  // 256 requests of up to 131,072 tokens over a pool of 512,000, 32 layers of 8 heads of 128 channels.
  kvmeld::shape const server{32, 256, 8, 4, 128, 128, 131072};
  kvmeld::cache_options dense{server}, paged{server};
  std::int32_t const nowhere = 0;
  paged.ledger_pages = {32000, kvmeld::dense_places(kvmeld::table_rows(&nowhere, 8192), 16, server)};
  dense.wave_tracks = paged.wave_tracks = 8;
  kvmeld::channel_list const one = kvmeld::channels_of(kvmeld::preset::h2o::defaults().score, server);
  std::size_t const entries = std::size_t{512000} * 32 * 8, rows = entries * 2 * 128 * 2;
  std::size_t const bytes = kvmeld::detail::cache_bytes(paged, one, 2);
  CHECK(kvmeld::detail::cache_bytes(dense, one, 2) > entries * 800);
  CHECK(bytes < entries * kvmeld::ledger_bytes_per_entry(one) + (std::size_t{200} << 20));
  CHECK(bytes < rows * 4 / 100);
}

TEST_CASE("pages that cannot hold a ledger are refused by name") {
  support::engine_memory<float> memory(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks();
  std::vector<std::int32_t> const table(extent.sequences * 12);
  auto const places = kvmeld::dense_places(kvmeld::table_rows(table.data(), 12), 8, extent);
  auto const text = [&](auto change) {
    kvmeld::cache_options options{extent};
    options.ledger_pages = {40, places};
    change(options);
    return cache_test::refusal_of(
        [&] { kvmeld::merged_cache cache(kvmeld::host_executor(), policy, memory.tensors(), options); });
  };
  CHECK(text([](auto&) {}).empty());
  using options_type = kvmeld::cache_options;
  cache_test::check_text(text([](options_type& o) { o.ledger_pages.places.page_size = 0; }),
                         {"options.ledger_pages", "page_size is 0", "at least 1"});
  cache_test::check_text(text([](options_type& o) { o.ledger_pages.places.table.entries = nullptr; }),
                         {"options.ledger_pages", "page table is null"});
  cache_test::check_text(text([](options_type& o) { o.ledger_pages.places.page_stride = 31; }),
                         {"page_stride is 31", "at least 32, the elements of a page"});
  cache_test::check_text(text([](options_type& o) { o.ledger_pages.places.head_stride = -8; }),
                         {"head_stride is -8", "0 to 1099511627776"});
  cache_test::check_text(
      text([](options_type& o) { o.ledger_pages.places.page_stride = std::int64_t{1} << 39; }),
      {"count * page_stride", "at most 1099511627776"});
  cache_test::check_text(
      text([](options_type& o) { o.members = 4; }),
      {"options.ledger_pages: options.members is 4; it must be 0, because members lie in no pages"});
  auto dense = cache_for(memory, policy);
  auto paged = cache_for(memory, policy, with({40, places}));
  for (char const* call : {"copy_page", "page_pieces", "rebind_pages"}) {
    auto const use = [&](auto& c, std::uint32_t page, std::uint32_t into) {
      return cache_test::refusal_of([&] {
        if (*call == 'c') c.copy_page(page, into);
        if (*call == 'p') c.page_pieces(page);
        if (*call == 'r') c.rebind_pages({});
      });
    };
    cache_test::check_text(use(dense, 0, 1),
                           {call, "options.ledger_pages.count is 0; it must be at least 1"});
    if (*call == 'r') {
      cache_test::check_text(use(paged, 0, 0), {call, "page table is null"});
    } else {
      cache_test::check_text(use(paged, 40, 0), {call, "is 40; it must be 0 to 39, the pages of the pool"});
    }
  }
  cache_test::check_text(cache_test::refusal_of([&] { paged.copy_page(1, 40); }), {"copy_page: into is 40"});
}

}  // namespace ledger_pages_cases
