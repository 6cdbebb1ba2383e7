// Compaction of so many rows that they go past the caches, against the generic loops.
#include <doctest/doctest.h>

#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/layout/paged.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/preset/eviction.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"

namespace {

/// K and V after StreamingLLM, as bytes. `shift` elements before the tensors keep them from whole lines.
template <class T>
std::vector<unsigned char> evicted(kvmeld::host_executor executor, char const* order, std::uint32_t shift,
                                   std::uint32_t kept) {
  std::uint32_t const n = 40000, heads = 2, channels = 256 / sizeof(T);
  kvmeld::shape const extent{1, 1, heads, 1, channels, channels, n};
  std::size_t const size = std::size_t{heads} * n * channels;
  kvmeld::host_memory const keys((shift + size) * sizeof(T)), values((shift + size) * sizeof(T));
  support::dice d(24);
  auto* const k = static_cast<T*>(keys.data());
  auto* const v = static_cast<T*>(values.data());
  for (std::size_t i = 0; i < shift + size; ++i) {
    std::uint64_t const bits = d.next();
    k[i] = kvmeld::element_traits<T>::from_float(static_cast<float>(bits >> 40));
    v[i] = kvmeld::element_traits<T>::from_float(static_cast<float>((bits >> 16) & 0xffffffu));
  }
  kvmeld::strided<T> const key_rows(k + shift, order, extent, channels);
  kvmeld::strided<T> const value_rows(v + shift, order, extent, channels);
  kvmeld::cache_options options{extent};
  options.zero_emptied = true;
  kvmeld::merged_cache cache(executor, kvmeld::preset::streaming_llm::with_sinks(),
                             kvmeld::kv{key_rows, value_rows}, options);
  cache.open(0, n);
  cache.compress({0}, kvmeld::budget::entries(kept));
  CHECK(cache.length(0, 0, 1) == kept);
  std::vector<unsigned char> out(keys.size() + values.size());
  std::memcpy(out.data(), keys.data(), keys.size());
  std::memcpy(out.data() + keys.size(), values.data(), values.size());
  return out;
}

// Rows that stop being contiguous half-way: strides hold for `remaining` slots only.
struct broken_rows : kvmeld::addressed_rows<broken_rows, float> {
  static constexpr int channel_run = 0, token_run = 1;
  static constexpr std::uint32_t width = 64, half = 40000;
  float* memory;
  explicit broken_rows(float* m) : memory(m) {}
  kvmeld::segment<float> locate(kvmeld::track, kvmeld::slot_t slot) const {
    if (slot < half) return {memory + std::size_t{slot} * width, width, 1, half - slot};
    return {memory + std::size_t{half} * width + (slot - half), 1, half, 2 * half - slot};
  }
  std::uint32_t channels() const { return width; }
  bool writable(kvmeld::track, kvmeld::slot_t) const { return true; }
};

std::vector<float> evicted_from_broken_rows(kvmeld::host_executor const& executor) {
  constexpr std::uint32_t n = 2 * broken_rows::half;
  std::vector<float> keys(std::size_t{n} * broken_rows::width), values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = values[i] = static_cast<float>(i % 1000003);
  kvmeld::merged_cache cache(executor, kvmeld::preset::streaming_llm::with_sinks(),
                             kvmeld::kv{broken_rows(keys.data()), broken_rows(values.data())},
                             {{1, 1, 1, 1, broken_rows::width, broken_rows::width, n}});
  cache.open(0, n);
  cache.compress({0}, kvmeld::budget::entries(n - 5000));
  keys.insert(keys.end(), values.begin(), values.end());
  return keys;
}

// Of every `period` entries from `first` on, `gone` are evicted.
struct every_few : kvmeld::identify::none {
  static constexpr kvmeld::identify_facts facts =
      kvmeld::changed_facts(kvmeld::identify::none::facts, &kvmeld::identify_facts::reads_live, true);
  std::uint32_t first, period, gone;
  every_few(std::uint32_t f, std::uint32_t p, std::uint32_t g) : first(f), period(p), gone(g) {}
  bool evicts(std::uint32_t i) const { return i >= first && (i - first) % period < gone; }
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live(), [&](std::uint32_t i) {
      if (evicts(i)) round.drop(i);
    });
  }
};

constexpr std::uint32_t row_width = 64;

/// Keys and values that `layout(memory)` shows, of two heads of n entries, after an eviction; every row is
/// compared with the row that belongs there. `row(memory, head, slot)` is where a row begins.
template <class T, class Layout, class Row>
std::size_t misplaced(kvmeld::host_executor const& executor, std::uint32_t n, every_few const& evict,
                      Layout layout, Row row) {
  kvmeld::shape const extent{1, 1, 2, 1, row_width, row_width, n};
  std::vector<T> keys(std::size_t{2} * n * row_width), values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {  // no two rows alike
    keys[i] = kvmeld::element_traits<T>::from_float(static_cast<float>(i * 2654435761u % 65537));
    values[i] = kvmeld::element_traits<T>::from_float(static_cast<float>(i * 2246822519u % 65521));
  }
  std::vector<T> const old_keys = keys, old_values = values;
  kvmeld::policy const p{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)}, evict,
      kvmeld::merge::drop{}};
  kvmeld::merged_cache cache(
      executor, p, kvmeld::kv{layout(keys.data(), extent), layout(values.data(), extent)}, {extent});
  std::uint32_t left = 0;
  for (std::uint32_t i = 0; i < n; ++i) left += evict.evicts(i) ? 0 : 1;
  cache.open(0, n);
  cache.compress({0}, kvmeld::budget::entries(left), kvmeld::shortfall::keep);
  std::size_t wrong = 0;
  for (std::uint32_t head = 0; head < 2; ++head) {
    REQUIRE(cache.length(0, 0, head) == left);
    std::uint32_t to = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (evict.evicts(i)) continue;
      for (auto const& [now, old] : {std::pair(&keys, &old_keys), std::pair(&values, &old_values)}) {
        std::size_t const a = row(head, to), b = row(head, i);
        wrong += std::memcmp(now->data() + a, old->data() + b, row_width * sizeof(T)) == 0 ? 0 : 1;
      }
      wrong += cache.ledger().position[cache.ledger().at(kvmeld::make_track(extent, 0, 0, head), to)] ==
                       static_cast<kvmeld::position_t>(i)
                   ? 0
                   : 1;
      ++to;
    }
  }
  return wrong;
}

// A 16-bit type of an engine that cannot be made from nothing.
struct own_half {
  explicit own_half(std::uint16_t b) : bits(b) {}
  std::uint16_t bits;
};

}  // namespace

template <> struct kvmeld::element_traits<own_half> {
  static float to_float(own_half x) { return element_traits<bfloat16>::to_float({x.bits}); }
  static own_half from_float(float x) { return own_half(element_traits<bfloat16>::from_float(x).bits); }
};

TEST_CASE_TEMPLATE("many rows are moved and cleared as few are", T, float, kvmeld::bfloat16) {
  for (char const* order : {"LSHTC", "LSTHC"}) {
    for (std::uint32_t shift : {0u, 8u}) {
      if (support::brief() && (shift != 0) != (support::test_run() % 2 != 0)) continue;
      CAPTURE(order);
      CAPTURE(shift);
      // 20,000 rows of 256 bytes in each of two heads are more than 8 MiB, which go past the caches. 10,000
      // are not.
      for (std::uint32_t kept : {20000u, 10000u}) {
        auto const wanted = evicted<T>(kvmeld::host_executor(1, kvmeld::tuning::off), order, shift, kept);
        for (auto set : instruction_sets()) {
          CAPTURE(kvmeld::name_of(set));
          CHECK(
              (evicted<T>(kvmeld::host_executor(2, kvmeld::tuning::on, set), order, shift, kept) == wanted));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("rows that stay move as they are, in runs of any length", T, float, kvmeld::bfloat16) {
  constexpr std::uint32_t page = 32;
  for (every_few const& evict : {every_few(0, 1u << 30, 1), every_few(0, 1u << 30, 5),
                                 every_few(7, 1u << 30, 37), every_few(100, 50, 1), every_few(0, 40, 20),
                                 every_few(0, 17, 1), every_few(3, 3, 2), every_few(0, 300, 150)}) {
    CAPTURE(evict.first);
    CAPTURE(evict.period);
    CAPTURE(evict.gone);
    for (std::uint32_t n : {640u, 40000u}) {  // of 40,000 rows, more than 8 MiB go past the caches
      auto const sets = instruction_sets();
      for (auto set : sets) {
        if (n > 640 && (evict.gone > 1 || set != sets[sets.size() - 1])) continue;
        CAPTURE(kvmeld::name_of(set));
        kvmeld::host_executor const executor(2, kvmeld::tuning::on, set);
        CHECK(misplaced<T>(
                  executor, n, evict,
                  [](T* x, kvmeld::shape const& s) { return kvmeld::strided<T>(x, "LSHTC", s, row_width); },
                  [&](std::uint32_t head, std::uint32_t slot) {
                    return (std::size_t{head} * n + slot) * row_width;
                  }) == 0);
        CHECK(misplaced<T>(
                  executor, n, evict,
                  [](T* x, kvmeld::shape const& s) { return kvmeld::strided<T>(x, "LSTHC", s, row_width); },
                  [](std::uint32_t head, std::uint32_t slot) {
                    return (std::size_t{slot} * 2 + head) * row_width;
                  }) == 0);
        // Pages in reverse order, [page][head][slot][channel]: runs end where pages end.
        std::uint32_t const pages = n / page;
        std::vector<std::int32_t> table(pages);
        for (std::uint32_t i = 0; i < pages; ++i) table[i] = static_cast<std::int32_t>(pages - 1 - i);
        CHECK(misplaced<T>(
                  executor, n, evict,
                  [&](T* x, kvmeld::shape const& s) {
                    return kvmeld::paged(kvmeld::pool_pages(x, kvmeld::table_rows(table.data(), pages)), page,
                                         kvmeld::dense_pages("LPHTC", pages, page, s, row_width), s,
                                         row_width);
                  },
                  [&](std::uint32_t head, std::uint32_t slot) {
                    std::size_t const block = pages - 1 - slot / page;
                    return ((block * 2 + head) * page + slot % page) * row_width;
                  }) == 0);
      }
    }
  }
}

TEST_CASE("rows go past the caches where all tracks of a call move 8 MiB and more") {
  using kvmeld::detail::outgrow_caches;
  CHECK(outgrow_caches(32768, 256, 1));
  CHECK_FALSE(outgrow_caches(32767, 256, 1));
  CHECK(outgrow_caches(128, 256, 256));
  CHECK_FALSE(outgrow_caches(127, 256, 256));
  CHECK_FALSE(outgrow_caches(0, 256, 256));
  CHECK(outgrow_caches(0xffffffffu, 1024, 1 << 20));
}

TEST_CASE("rows whose strides change half-way are moved as they lie") {
  auto const wanted = evicted_from_broken_rows(kvmeld::host_executor(1, kvmeld::tuning::off));
  CHECK((evicted_from_broken_rows(kvmeld::host_executor(1)) == wanted));
}

TEST_CASE("element types without a default constructor are stored like others") {
  std::vector<own_half> keys(40 * 8, own_half(0x3f80)), values = keys;
  kvmeld::shape const extent{1, 1, 1, 1, 8, 8, 40};
  kvmeld::cache_options options{extent};
  options.zero_emptied = true;
  kvmeld::merged_cache cache(kvmeld::host_executor(1),
                             kvmeld::preset::chelsea::with_schedule({0.4, 0.1, 2, 0.05},
                                                                    kvmeld::quantity::entries(2),
                                                                    kvmeld::quantity::entries(4)),
                             kvmeld::kv{kvmeld::strided<own_half>(keys.data(), "LSHTC", extent, 8),
                                        kvmeld::strided<own_half>(values.data(), "LSHTC", extent, 8)},
                             options);
  cache.open(0, 40);
  cache.compress({0}, kvmeld::budget::entries(10));
  CHECK(cache.length(0, 0, 0) == 10);
  CHECK(keys[0].bits == 0x3f80);
  CHECK(values[10 * 8].bits == 0);
}
