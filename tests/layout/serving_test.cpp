// docs/engines/serving.md: sequences that leave their pages and come back, move to another worker, or are
// read by several ranks.
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace serving_cases {

namespace {

using kvmeld::float16;
constexpr std::uint32_t page_size = 8, pool_size = 30, max_pages = 8;
constexpr kvmeld::shape extent{2, 2, 3, 2, 16, 16, page_size* max_pages};

// An engine's pool of pages [page][layer][head][token][channel], for K and for V, and a table by sequence.
struct worker {
  std::vector<float16> k = std::vector<float16>(pool_size * page_elements()), v = k;
  std::vector<std::int32_t> table = std::vector<std::int32_t>(2 * max_pages, 0);

  static std::size_t page_elements() { return std::size_t{2} * 3 * page_size * 16; }
  auto rows(std::vector<float16>& x) {
    return kvmeld::paged(kvmeld::pool_pages(x.data(), kvmeld::table_rows(table.data(), max_pages)), page_size,
                         kvmeld::dense_pages("PLHTC", pool_size, page_size, extent, 16), extent, 16);
  }
  auto tensors() { return kvmeld::kv{rows(k), rows(v)}; }
  // Gives `slot` pages from `first` on.
  void give(std::uint32_t slot, std::int32_t first) {
    std::iota(table.begin() + slot * max_pages, table.begin() + (slot + 1) * max_pages, first);
  }
  // What the engine writes for tokens from .. to - 1 of a sequence called `name`, at the ends of its tracks.
  template <class Cache>
  void write(Cache const& cache, std::uint32_t slot, std::uint32_t name, std::uint32_t tokens) {
    auto const ref = cache.ref();
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        kvmeld::track const t = ref.where(layer, slot, head);
        for (std::uint32_t i = 0; i < tokens; ++i) {
          std::uint32_t const at = ref.length(t) - tokens + i;
          support::dice d(1000 * name + 100 * layer + 10 * head + cache.tokens(slot) - tokens + i);
          for (std::uint32_t c = 0; c < 16; ++c) {
            float const base = static_cast<float>((at / 5 + c) % 6);
            auto const x =
                kvmeld::element_traits<float16>::from_float(base + 0.1f * static_cast<float>(d.normal()));
            ref.keys.locate(t, at).base[c] = ref.values.locate(t, at).base[c] = x;
          }
        }
      }
    }
  }
};

auto const policy = kvmeld::preset::chelsea::with_schedule({0.4, 0.05, 3, 0.05}, kvmeld::quantity::entries(2),
                                                           kvmeld::quantity::entries(4));

auto cache_of(worker& w) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), policy, w.tensors(), kvmeld::cache_options{extent}};
}

// Reads tokens in pieces, merging whenever 40 entries are there.
template <class Cache>
void read(worker& w, Cache& cache, std::uint32_t slot, std::uint32_t name, std::uint32_t tokens) {
  for (std::uint32_t i = 0; i < tokens; i += 5) {
    cache.append({slot}, {5});
    w.write(cache, slot, name, 5);
    cache.commit({slot}, {5});
    if (cache.due(slot, {30, 10})) cache.compress({slot}, kvmeld::budget::entries(30));
  }
}

// Everything of a sequence that attention sees: lengths, degrees, positions, rows.
template <class Cache> std::vector<float> contents(Cache const& cache, std::uint32_t slot) {
  std::vector<float> out;
  auto const ref = cache.ref();
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      kvmeld::track const t = ref.where(layer, slot, head);
      for (std::uint32_t s = 0; s < ref.length(t); ++s) {
        out.push_back(ref.degree(t, s));
        out.push_back(static_cast<float>(ref.position(t, s)));
        for (std::uint32_t c = 0; c < 16; ++c) {
          out.push_back(kvmeld::element_traits<float16>::to_float(ref.keys.locate(t, s).base[c]));
          out.push_back(kvmeld::element_traits<float16>::to_float(ref.values.locate(t, s).base[c]));
        }
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("preempted with its ledger, back in other pages, as if nothing had been") {
  worker w, undisturbed;
  auto cache = cache_of(w), other = cache_of(undisturbed);
  w.give(0, 3);
  undisturbed.give(0, 3);
  cache.open(0);
  other.open(0);
  read(w, cache, 0, 7, 60);
  read(undisturbed, other, 0, 7, 60);
  // Out: the ledger, and as many pages as the longest head takes.
  std::vector<std::byte> const ledger = cache.save(0);
  std::uint32_t const pages = w.rows(w.k).pages_of(cache.longest(0));
  CHECK(pages == 4);  // of 8 that 60 tokens would take
  std::size_t const bytes = pages * worker::page_elements();
  auto const from = static_cast<std::ptrdiff_t>(3 * worker::page_elements());
  std::vector<float16> const k(w.k.begin() + from, w.k.begin() + from + static_cast<std::ptrdiff_t>(bytes));
  std::vector<float16> const v(w.v.begin() + from, w.v.begin() + from + static_cast<std::ptrdiff_t>(bytes));
  cache.close(0);
  w.give(0, 3);
  cache.open(0);
  read(w, cache, 0, 8, 40);  // another one takes slot and pages
  // Back, in another slot and other pages.
  w.give(1, 20);
  auto const to = static_cast<std::ptrdiff_t>(20 * worker::page_elements());
  std::copy(k.begin(), k.end(), w.k.begin() + to);
  std::copy(v.begin(), v.end(), w.v.begin() + to);
  cache.resume(1, {ledger.data(), ledger.size()});
  CHECK(contents(cache, 1) == contents(other, 0));
  read(w, cache, 1, 7, 40);
  read(undisturbed, other, 0, 7, 40);
  CHECK(cache.tokens(1) == 100);
  CHECK(contents(cache, 1) == contents(other, 0));
}

TEST_CASE("from a prefill worker to a decode worker: another cache, another capacity, another layout") {
  worker prefill;
  auto cache = cache_of(prefill);
  prefill.give(1, 10);
  cache.open(1);
  read(prefill, cache, 1, 4, 50);
  kvmeld::shape there = extent;
  there.sequences = 5;
  there.capacity = 200;
  std::vector<float16> k(there.slots() * 16), v(k.size());
  kvmeld::kv const tensors{kvmeld::strided<float16>(k.data(), "LSTHC", there, 16),
                           kvmeld::strided<float16>(v.data(), "LSTHC", there, 16)};
  kvmeld::merged_cache decode{kvmeld::host_executor(1), policy, tensors, kvmeld::cache_options{there}};
  std::vector<std::byte> const ledger = cache.save(1);
  auto const from = cache.ref();
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      kvmeld::track const a = from.where(layer, 1, head), b = kvmeld::make_track(there, layer, 4, head);
      for (std::uint32_t s = 0; s < from.length(a); ++s) {  // rows below the length, no more
        std::memcpy(tensors.keys.locate(b, s).base, from.keys.locate(a, s).base, 16 * sizeof(float16));
        std::memcpy(tensors.values.locate(b, s).base, from.values.locate(a, s).base, 16 * sizeof(float16));
      }
    }
  }
  decode.resume(4, {ledger.data(), ledger.size()});
  CHECK(contents(decode, 4) == contents(cache, 1));
  cache.compress({1}, kvmeld::budget::entries(16));
  decode.compress({4}, kvmeld::budget::entries(16));
  CHECK(contents(decode, 4) == contents(cache, 1));
}

namespace {

// A rank's share of an engine's heads, and attention rows of 4 x group query heads that all ranks draw alike.
constexpr std::uint32_t all_heads = 4, group = 2, tokens = 40;

struct whole_cache {
  std::vector<float> k = std::vector<float>(all_heads * 64 * 16), v = k;
  whole_cache() {
    support::dice d(5);
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = static_cast<float>(d.normal());
      v[i] = static_cast<float>(d.normal());
    }
  }
};

// [query head][slot]
std::vector<float> attention_rows(std::uint32_t seed) {
  support::dice d(seed);
  std::vector<float> rows(all_heads * group * 64);
  for (float& x : rows) x = static_cast<float>(d.normal() * d.normal()) * 0.01f + 0.02f;
  for (float& x : rows) x = x < 0 ? -x : x;
  return rows;
}

auto rank_cache(whole_cache& w, kvmeld::shape const& s, std::uint32_t first_head, std::uint32_t named) {
  auto const policy_of_rank = kvmeld::preset::cam::as_printed(kvmeld::preset::cam::over_h2o());  // draws
  kvmeld::cache_options options{s};
  options.first_kv_head = named;
  kvmeld::strided<float> const keys(w.k.data() + first_head * 64 * 16, "LSHTC", s, 16);
  kvmeld::strided<float> const values(w.v.data() + first_head * 64 * 16, "LSHTC", s, 16);
  return kvmeld::merged_cache{kvmeld::host_executor(1), policy_of_rank, kvmeld::kv{keys, values}, options};
}

}  // namespace

TEST_CASE("heads shared out over ranks: the same decisions as on one, random draws included") {
  kvmeld::shape const all{1, 1, all_heads, group, 16, 16, 64}, share{1, 1, all_heads / 2, group, 16, 16, 64};
  whole_cache one, several;
  auto alone = rank_cache(one, all, 0, 0);
  auto first = rank_cache(several, share, 0, 0),
       second = rank_cache(several, share, all_heads / 2, all_heads / 2);
  whole_cache forgot;
  auto nameless = rank_cache(forgot, share, all_heads / 2, 0);
  auto const rows = attention_rows(3);
  auto const step = [&](auto& cache, float const* mine, std::uint32_t heads) {
    cache.open(0, tokens, 0, kvmeld::sequence_id{77});  // the same id on every rank
    cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head(mine, 1, heads * group, 64));
    cache.compress({0}, kvmeld::budget::entries(15));
  };
  step(alone, rows.data(), all_heads);
  step(first, rows.data(), all_heads / 2);
  step(second, rows.data() + all_heads / 2 * group * 64, all_heads / 2);
  step(nameless, rows.data() + all_heads / 2 * group * 64, all_heads / 2);  // options.first_kv_head left at 0
  auto const half_way = static_cast<std::ptrdiff_t>(one.v.size() / 2);
  CHECK_FALSE(std::equal(one.v.begin() + half_way, one.v.end(), forgot.v.begin() + half_way));
  CHECK(one.k == several.k);
  CHECK(one.v == several.v);
  for (std::uint32_t head = 0; head < all_heads; ++head) {
    auto const here = alone.ref(), there = head < 2 ? first.ref() : second.ref();
    for (std::uint32_t s = 0; s < 15; ++s)
      CHECK(here.position(here.where(0, 0, head), s) == there.position(there.where(0, 0, head % 2), s));
  }
}

TEST_CASE("a KV head on several ranks: its scores have to be averaged over them") {
  // Each of two ranks holds all KV heads and one query head of each group of two.
  kvmeld::shape const all{1, 1, all_heads, 2, 16, 16, 64}, part{1, 1, all_heads, 1, 16, 16, 64};
  auto const rows = attention_rows(4), more = attention_rows(6);
  auto const mine = [](std::vector<float> const& of, std::uint32_t rank) {
    std::vector<float> out;
    for (std::uint32_t head = rank; head < all_heads * 2; head += 2)
      out.insert(out.end(), of.begin() + head * 64, of.begin() + (head + 1) * 64);
    return out;
  };
  auto const observe = [](auto& cache, std::vector<float> const& of) {
    auto const heads = static_cast<std::uint32_t>(of.size() / 64);
    cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head(of.data(), 1, heads, 64));
  };
  for (bool reduced : {false, true}) {
    CAPTURE(reduced);
    whole_cache w, w0, w1;
    auto alone = rank_cache(w, all, 0, 0), rank0 = rank_cache(w0, part, 0, 0),
         rank1 = rank_cache(w1, part, 0, 0);
    alone.open(0, tokens);
    rank0.open(0, tokens);
    rank1.open(0, tokens);
    for (auto const* of : {&rows, &more}) {
      observe(alone, *of);
      observe(rank0, mine(*of, 0));
      observe(rank1, mine(*of, 1));
      if (!reduced) continue;
      // What an all-reduce does before every compression: the mean of the ranks' channels. Doing it again
      // adds nothing.
      std::uint32_t const longest = rank0.length_bound(0);
      std::vector<float> a(std::size_t{all_heads} * rank0.ledger().channels.count * longest), b(a.size());
      rank0.read_scores({0}, a.data(), longest);
      rank1.read_scores({0}, b.data(), longest);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] = 0.5f * (a[i] + b[i]);
      rank0.write_scores({0}, a.data(), longest);
      rank1.write_scores({0}, b.data(), longest);
    }
    alone.compress({0}, kvmeld::budget::entries(15));
    rank0.compress({0}, kvmeld::budget::entries(15));
    rank1.compress({0}, kvmeld::budget::entries(15));
    auto const positions = [](auto const& cache) {
      std::vector<kvmeld::position_t> out;
      for (std::uint32_t head = 0; head < all_heads; ++head)
        for (std::uint32_t s = 0; s < 15; ++s)
          out.push_back(cache.ref().position(cache.ref().where(0, 0, head), s));
      return out;
    };
    CHECK((positions(rank0) == positions(rank1)) == reduced);
    CHECK((positions(rank0) == positions(alone)) == reduced);
    CHECK((w0.v == w1.v) == reduced);
  }
}

}  // namespace serving_cases
