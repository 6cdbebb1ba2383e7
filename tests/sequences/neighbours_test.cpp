// One bad sequence in a batch of eight: the other seven live as if it were not there, bit for bit.
#include "life.hpp"

#include <functional>

namespace neighbours_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{1, 8, 2, 2, 12, 8, 72};
constexpr std::uint32_t bad = 3;

enum class ill { nan_rows, huge_rows, nan_scores, empty, full, short_one };
constexpr ill ills[] = {ill::nan_rows, ill::huge_rows, ill::nan_scores,
                        ill::empty,    ill::full,      ill::short_one};

// What can be wrong with a sequence.
template <class Cache> void open_bad(Cache& cache, support::dice& d, ill kind) {
  std::uint32_t const n = kind == ill::empty       ? 0
                          : kind == ill::full      ? extent.capacity
                          : kind == ill::short_one ? 1
                                                   : 50;
  write_rows(cache, d, bad, n);
  if (kind == ill::nan_rows || kind == ill::huge_rows) {
    float const x = kind == ill::nan_rows ? kvmeld::bits_float(0x7fc00000u) : 3e38f;
    support::for_tracks(extent, bad, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < n; ++s) {
        support::put_row(cache.ref().keys, t, s, std::vector<float>(extent.key_dim, x));
        support::put_row(cache.ref().values, t, s, std::vector<float>(extent.value_dim, x));
      }
    });
  }
  cache.open(bad, n);
}

// Rows of attention of every listed sequence, NaN for the bad one where its scores are.
template <class Cache>
void observe(Cache& cache, std::vector<std::uint32_t> const& slots, std::vector<float> const& rows,
             ill kind) {
  std::vector<float> own;
  std::vector<std::uint32_t> counts;
  std::size_t const each = rows.size() / 8;
  for (std::uint32_t q : slots) {
    for (std::size_t i = 0; i < each; ++i) {
      own.push_back(q == bad && kind == ill::nan_scores ? kvmeld::bits_float(0x7fc00000u)
                                                        : rows[q * each + i]);
    }
    counts.push_back(kvmeld::min_of(7u, cache.longest(q)));
  }
  support::observe_numbers(cache, {0, slots, counts}, own.data(), 7, extent.capacity * 2);
}

// The life of a batch with or without the bad one; digests of the seven.
template <class Policy>
std::vector<support::byte_list> live(Policy const& policy, bool with, ill kind, kvmeld::shortfall fallback) {
  support::engine_memory<float> memory(extent);
  auto cache = cache_for(memory, policy);
  std::vector<std::uint32_t> slots;
  for (std::uint32_t q = 0; q < 8; ++q) {
    support::dice d(100 + q);
    if (q != bad) open(cache, d, q, 40 + q);
    if (q == bad && with) open_bad(cache, d, kind);
    if (q != bad || with) slots.push_back(q);
  }
  support::dice d(7);
  std::vector<float> rows(std::size_t{8} * 7 * 4 * extent.capacity * 2);
  for (float& x : rows) x = static_cast<float>(d.uniform());
  observe(cache, slots, rows, kind);
  cache.compress(slots, budget::entries(30), fallback);
  std::vector<support::byte_list> out;
  for (std::uint32_t q : slots) {
    if (cache.longest(q) + 3 > extent.capacity) continue;  // what is full takes no more
    support::dice own(200 + q);
    write_rows(cache, own, q, 3);
    cache.append({q}, {3});
    cache.commit({q}, {2});
  }
  observe(cache, slots, rows, kind);
  cache.compress(slots, budget::entries(27), fallback);
  std::vector<float> query(std::size_t{8} * 4 * 12), result(std::size_t{8} * 4 * 8);
  for (std::size_t i = 0; i < query.size(); ++i) query[i] = static_cast<float>(d.normal());
  for (std::uint32_t q : slots) {
    std::vector<std::uint32_t> const one{1}, place{q};
    kvmeld::attention::attend(cache.executor(), {0, place, one},
                              kvmeld::rows_by_token<float const>(query.data() + q * 48, 1, 4, 12),
                              cache.ref(), kvmeld::rows_by_token(result.data() + q * 32, 1, 4, 8));
    if (q == bad) continue;
    out.push_back(digest(cache, q));
    auto const bits =
        support::bytes_of(std::vector<float>(result.begin() + q * 32, result.begin() + (q + 1) * 32));
    out.back().insert(out.back().end(), bits.begin(), bits.end());
    CHECK(cache.longest(q) < 40);
  }
  return out;
}

}  // namespace

TEST_CASE("a bad sequence harms no neighbour, for every preset") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
      auto const alone = live(policy, false, ill::empty, fallback);
      for (ill kind : ills) {
        CAPTURE(int(kind));
        CHECK(live(policy, true, kind, fallback) == alone);
      }
    }
  });
}

TEST_CASE("a sequence that is refused refuses the batch, and leaves it as it was") {
  support::engine_memory<float> memory(extent);
  support::dice d(1);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  std::vector<std::uint32_t> all;
  for (std::uint32_t q = 0; q < 8; ++q) {
    open(cache, d, q, 50, q == bad ? 40u : 0u);
    all.push_back(q);
  }
  cache_test::refused(cache, memory, [&](auto& c) { c.compress(all, budget::entries(30)); },
                      {"compress", "sequence 3", "40 sinks or frozen"});
  cache_test::refused(cache, memory,
                      [&](auto& c) {
                        c.append(all, std::vector<std::uint32_t>{1, 1, 1, 23, 1, 1, 1, 1});
                      },
                      {"append", "append: counts[3] is 23", "sequence 3"});
  all.erase(all.begin() + bad);
  cache.compress(all, budget::entries(30));
  CHECK(cache.longest(bad) == 50);
  CHECK(cache.longest(bad + 1) == 30);
}

}  // namespace neighbours_cases
