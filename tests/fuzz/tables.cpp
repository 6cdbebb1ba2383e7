// Random block tables: validate_pages says what a naive look at them says, and tables that it accepts can be
// lived in.
#include "choices.hpp"

#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_state.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/random_cache.hpp"

namespace {

using fuzz::choices;

constexpr std::uint32_t layers = 2, heads = 2, channels = 3;

// A table as an engine may fill it: dense or CSR, one row per sequence or per sequence and head.
struct table_case {
  kvmeld::shape extent;
  std::uint32_t page_size, pool_pages, row;  // row: entries of a row of a dense table
  bool csr, folded;
  std::vector<std::int32_t> entries, first;
  std::vector<std::uint8_t> shared;
  std::vector<std::uint32_t> lengths;

  explicit table_case(choices& c)
      : extent{layers, c.between(1, 3), heads, 1, channels, channels, c.between(1, 24)},
        page_size(c.between(1, 9)),
        pool_pages(c.between(1, 40)),
        row(kvmeld::ceil_div(extent.capacity, page_size)),
        csr(c.chance(0.4)),
        folded(csr && c.chance(0.5)) {
    std::uint32_t const rows = extent.sequences * (folded ? heads : 1);
    std::uint32_t next = c.below(pool_pages);
    for (std::uint32_t r = 0; r < rows; ++r) {
      first.push_back(static_cast<std::int32_t>(entries.size()));
      // Pages in order, so that many tables are right; some entries are not.
      for (std::uint32_t i = 0; i < row; ++i)
        entries.push_back(static_cast<std::int32_t>(next++ % pool_pages));
    }
    first.push_back(static_cast<std::int32_t>(entries.size()));
    shared.assign(pool_pages, 0);
    for (std::uint32_t q = 0; q < extent.sequences; ++q) lengths.push_back(c.below(extent.capacity + 1));
    constexpr std::int32_t odd[] = {
        -1, 0, 1, 40, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
    for (std::uint32_t edits = c.below(5); edits > 0; --edits) {
      std::uint32_t const at = c.below(static_cast<std::uint32_t>(entries.size()));
      switch (c.below(7)) {
      case 0: entries[at] = c.pick(odd); break;
      case 1: entries[at] = static_cast<std::int32_t>(c.below(pool_pages)); break;
      case 2: first[c.below(static_cast<std::uint32_t>(first.size()))] = c.pick(odd); break;
      case 3: entries.resize(at + 1); break;
      case 4: shared[c.below(pool_pages)] = 1; break;
      case 5: lengths[c.below(extent.sequences)] = extent.capacity + c.below(3); break;
      default: lengths.resize(c.below(4)); break;
      }
      if (entries.empty()) entries.push_back(0);
    }
  }
  auto rows(std::vector<float>& pool) const {
    kvmeld::page_table<std::int32_t> const table =
        csr ? kvmeld::table_csr(first.data(), entries.data(), folded ? heads : 1)
            : kvmeld::table_rows(entries.data(), row);
    kvmeld::pool_pages const pages(pool.data(), table, shared.data(), pool_pages);
    kvmeld::page_strides strides = kvmeld::dense_pages("LPTHC", pool_pages, page_size, extent, channels);
    return kvmeld::paged(pages, page_size, strides, extent, channels);
  }
  // Whether a page is listed for the slots of a sequence, and not shared.
  bool may_change(std::uint32_t q, std::uint32_t page) const {
    bool listed = false;
    for (std::uint32_t h = 0; h < (folded ? heads : 1); ++h) {
      std::size_t const r = folded ? std::size_t{q} * heads + h : q;
      std::size_t const begin = csr ? static_cast<std::size_t>(first[r]) : r * row;
      for (std::uint32_t s = 0; s < lengths[q]; s += page_size)
        listed = listed || entries[begin + s / page_size] == static_cast<std::int32_t>(page);
    }
    return listed && shared[page] == 0;
  }
  // Rows of all layers in one page.
  std::vector<float> page_of(std::vector<float> const& pool, std::uint32_t page) const {
    std::size_t const n = std::size_t{page_size} * heads * channels;
    std::vector<float> out;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      auto const at = pool.begin() + static_cast<std::ptrdiff_t>((layer * pool_pages + page) * n);
      out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(n));
    }
    return out;
  }
  // The same question asked slot by slot, with 64-bit numbers.
  bool sound() const {
    if (lengths.size() != extent.sequences) return false;
    std::vector<char> used(pool_pages, 0);
    for (std::uint32_t q = 0; q < extent.sequences; ++q) {
      if (lengths[q] > extent.capacity) return false;
      for (std::uint32_t h = 0; h < (folded ? heads : 1); ++h) {
        std::int64_t const r = folded ? std::int64_t{q} * heads + h : q;
        for (std::uint32_t s = 0; s < lengths[q]; s += page_size) {
          std::int64_t const i = s / page_size;
          std::int64_t const begin = csr ? first[static_cast<std::size_t>(r)] : r * row;
          std::int64_t end = static_cast<std::int64_t>(entries.size());
          if (csr && first[static_cast<std::size_t>(r) + 1] < end)
            end = first[static_cast<std::size_t>(r) + 1];
          if (begin < 0 || begin + i >= end) return false;
          std::int64_t const page = entries[static_cast<std::size_t>(begin + i)];
          if (page < 0 || page >= std::int64_t{pool_pages}) return false;
          auto const p = static_cast<std::size_t>(page);
          if (used[p] != 0 && shared[p] == 0) return false;
          used[p] = 1;
        }
      }
    }
    return true;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices c(data, size);
  table_case const t(c);
  std::vector<float> keys(std::size_t{t.pool_pages} * layers * heads * t.page_size * channels, 1.0f);
  std::vector<float> values = keys;
  auto const k = t.rows(keys), v = t.rows(values);
  std::string const problem = kvmeld::validate_pages(k, t.extent, t.pool_pages,
                                                     {t.lengths.data(), t.lengths.size()}, t.entries.size());
  if (problem.empty() != t.sound()) fuzz::fail("a naive look at the table differs from: " + problem);
  if (!problem.empty()) return 0;

  // Where the table covers a sequence, it is filled and compressed. Nothing outside of its pages may change.
  kvmeld::cache_options options;
  options.extent = t.extent;
  kvmeld::merged_cache cache(kvmeld::host_executor(1),
                             kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05},
                                                                    kvmeld::quantity::entries(1),
                                                                    kvmeld::quantity::entries(1)),
                             kvmeld::kv{k, v}, options);
  support::dice d(5);
  for (std::uint32_t q = 0; q < t.extent.sequences; ++q) {
    if (t.lengths[q] == 0) continue;
    support::for_tracks(t.extent, q, [&](kvmeld::track where) {
      auto const rows = support::random_rows(d, t.lengths[q], channels, support::texture::walk);
      for (std::uint32_t s = 0; s < t.lengths[q]; ++s) {
        if (k.writable(where, s)) support::write_row(k, where, s, rows[s]);
        if (v.writable(where, s)) support::write_row(v, where, s, rows[s]);
      }
    });
    cache.open(q, t.lengths[q]);
    std::vector<float> const keys_before = keys, values_before = values;
    bool const accepted = [&] {
      try {
        cache.compress({q}, kvmeld::budget::entries(3 + c.below(20)));
        return true;
      } catch (kvmeld::invalid_argument const&) {
        return false;
      }
    }();
    for (std::uint32_t page = 0; page < t.pool_pages; ++page) {
      if (accepted && t.may_change(q, page)) continue;
      fuzz::require(t.page_of(keys, page) == t.page_of(keys_before, page) &&
                        t.page_of(values, page) == t.page_of(values_before, page),
                    "a page changed that is shared, or no page of the sequence");
    }
    std::string const broken = kvmeld::testing::invariant_problem(cache);
    if (!broken.empty()) fuzz::fail(broken);
  }
  return 0;
}
