// Tuned forms for teams made of warps, on threads that multiply as a matrix unit does: whole lives beside the
// host's generic ones, and how good every chosen partner is.
#include <kvmeld/backend/warps/matching_side.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "scenario.hpp"
#include "support/compositions.hpp"
#include "support/track_view.hpp"
#include "support/warp_executor.hpp"

namespace warps_cases {

namespace {

// 16-bit rows at multiples of 16 bytes, and wherever 17 and 19 channels put them.
template <class K, class V> struct matrix_rows {
  using key_type = K;
  using value_type = V;
  static auto view(K* k, V* v, kvmeld::shape const& s) {
    return kvmeld::kv{kvmeld::strided<K>(k, "LSHTC", s, s.key_dim),
                      kvmeld::strided<V>(v, "LSTHC", s, s.value_dim)};
  }
};
// vLLM's forms: keys in groups of 8 channels in pages of 20, values row by row in pages of 20.
struct page_rows {
  using key_type = kvmeld::bfloat16;
  using value_type = kvmeld::float16;
  static auto view(kvmeld::bfloat16* k, kvmeld::float16* v, kvmeld::shape const& s) {
    constexpr std::uint32_t page = 20;
    static std::int32_t const table[] = {3, 1, 0, 2, 7, 5, 4, 6, 9, 8, 10, 11};
    REQUIRE(s.sequences * s.capacity / page <= std::size(table));
    std::uint32_t const pages = s.capacity / page;
    std::int64_t const head = std::int64_t{page} * s.key_dim;
    kvmeld::page_strides const groups{head * s.kv_heads * s.layers, head * s.kv_heads, head, 8, 8 * page};
    return kvmeld::kv{kvmeld::tiled(kvmeld::paged(kvmeld::pool_pages(k, kvmeld::table_rows(table, pages)),
                                                  page, groups, s, s.key_dim / 8),
                                    8),
                      kvmeld::paged(kvmeld::pool_pages(v, kvmeld::table_rows(table, pages)), page,
                                    kvmeld::dense_pages("PLHTC", s.sequences * pages, page, s, s.value_dim),
                                    s, s.value_dim)};
  }
};
constexpr lanes_test::sizes_of_life paged_life{{1, 2, 2, 1, 48, 40, 120}, 110, 44, 50, 30};
constexpr lanes_test::sizes_of_life aligned_life{{1, 2, 1, 2, 48, 32, 300}, 290, 44, 90, 60};
constexpr lanes_test::sizes_of_life odd_life{{1, 2, 2, 1, 17, 19, 120}, 110, 44, 50, 30};

template <class Storage, class Policy>
void same_on_warps(char const* name, Policy const& policy, lanes_test::sizes_of_life const& life,
                   bool replaced = true, bool same_ledger = true) {
  CAPTURE(std::string(name));
  auto const fallback = kvmeld::shortfall::keep;
  auto const host =
      lanes_test::play<Storage>(kvmeld::host_executor(1, kvmeld::tuning::off), policy, fallback, life);
  // Threads outnumber the cores by far: two warps only where one would not meet all there is.
  std::uint32_t const warps = life.first > 200 ? 2 : 1;
  CAPTURE(warps);
  support::warp_executor const executor(warps);
  auto const got = lanes_test::play<Storage>(executor, policy, fallback, life);
  CHECK((executor.tuned_launches() > 0) == replaced);
  CHECK(got.keys == host.keys);
  CHECK(got.values == host.values);
  CHECK((!same_ledger || got.ledger == host.ledger));
  CHECK(got.lengths == host.lengths);
}

// One warp's products of random rows, as matching_side takes them.
template <class Layout> struct product_phase {
  Layout layout;
  std::uint32_t rows, columns;
  float* out;  // [rows][columns]

  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const {
    return kvmeld::tuned_form::matching_side<Layout>::bytes(32, 64, layout.channels());
  }
  template <class Team> void operator()(Team const& team, kvmeld::tile const& t) const {
    kvmeld::tuned_form::matching_side<Layout> const side(team, layout, t.where, 32, 64);
    side.load_sources(team, rows, [](std::uint32_t i) { return 2 * i; });
    side.load_targets(team, columns, [&](std::uint32_t i) { return columns - 1 - i; });
    team.finish_copies();
    team.sync();
    side.measure(team, rows, columns);
    team.sync();
    auto const place = kvmeld::place_in_warp(team);
    for (std::uint32_t row = 16 * kvmeld::warp_of(team); row < rows; row += 16 * kvmeld::warps_of(team)) {
      kvmeld::tuned_form::strip_products<64> p;
      side.multiply(team, row, 0, p);
      for (std::uint32_t r = 0; r < 8; ++r) {
        for (std::uint32_t i = 0; i < 4; ++i) {
          std::uint32_t const a = row + place.group + (i >= 2 ? 8 : 0), b = 8 * r + 2 * place.pair + i % 2;
          if (a < rows && b < columns) out[a * columns + b] = side.cosine_of(p.c[r][i], a, b);
        }
      }
    }
  }
};

double exact_cosine(std::vector<double> const& a, std::vector<double> const& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    ab += a[c] * b[c];
    aa += a[c] * a[c];
    bb += b[c] * b[c];
  }
  return aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa) / std::sqrt(bb);
}

template <class T> void check_products(support::dice& d) {
  std::uint32_t const channels = d.between(1, 70), rows = d.between(1, 32), columns = d.between(1, 64);
  kvmeld::shape const s{1, 1, 2, 1, channels, 1, 64};
  std::uint32_t const shift = d.below(3) * 4;  // some rows lie at multiples of 16 bytes, some do not
  std::vector<T> memory(s.slots() * channels + shift);
  for (T& x : memory) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
  kvmeld::strided<T> const layout(memory.data() + shift, d.chance(0.5) ? "LSHTC" : "LSTHC", s, channels);
  kvmeld::track const where = kvmeld::make_track(s, 0, 0, 1);
  support::write_row(layout, where, 4, std::vector<float>(channels, 0.0f));  // cosines of a zero row are 0
  std::vector<float> got(std::size_t{rows} * columns, -7.0f);
  std::uint32_t const sequences[] = {0};
  kvmeld::track_source const source{s, {sequences, 1}};
  support::warp_executor executor(d.between(1, 2));
  executor.launch(product_phase<kvmeld::strided<T>>{layout, rows, columns, got.data()}, s, 2, source);
  double far = 0;
  for (std::uint32_t i = 0; i < rows; ++i) {
    auto const a = support::read_row(layout, where, 2 * i);
    for (std::uint32_t j = 0; j < columns; ++j) {
      auto const b = support::read_row(layout, where, columns - 1 - j);
      far = std::max(far, std::abs(static_cast<double>(got[i * columns + j]) - exact_cosine(a, b)));
    }
  }
  CHECK(far <= 0x1p-22 * (channels + 8));
}

// Every partner that a plan chose is as similar as the best one, up to what tuned forms are allowed.
template <class T, class Policy, class Partners, class Similarity>
std::uint32_t check_partners(support::engine_memory<T>& memory, Policy const& policy, std::uint32_t length,
                             std::uint32_t budget, double bound, Partners partners, Similarity similarity) {
  kvmeld::cache_options options = support::with_plan();
  options.extent = memory.extent;
  auto const x = memory.tensors();
  support::warp_executor const executor(2);
  kvmeld::merged_cache cache{executor, policy, x, options};
  cache.open(0, length);
  if constexpr (kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>.needs_centers) {
    std::vector<float> p(length);
    support::dice d(length);
    for (float& y : p) y = static_cast<float>(d.uniform());
    cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(p.data(), 1, 1, length));
  }
  REQUIRE(cache.plan({0}, kvmeld::budget::entries(budget)).ok());
  CHECK(executor.tuned_launches() == 1);  // planning moves nothing
  kvmeld::plan_ref const& plan = cache.current_plan();
  kvmeld::track const where = kvmeld::make_track(memory.extent, 0, 0, 0);
  std::vector<std::vector<double>> keys, values;
  for (std::uint32_t i = 0; i < length; ++i) {
    keys.push_back(support::read_row(x.keys, where, i));
    values.push_back(support::read_row(x.values, where, i));
  }
  auto const alike = [&](std::uint32_t i, std::uint32_t j) {
    return similarity(exact_cosine(keys[i], keys[j]), exact_cosine(values[i], values[j]));
  };
  std::uint32_t merged = 0;
  for (std::uint32_t i = 0; i < length; ++i) {
    if (plan.fates[plan.at(0, i)] != kvmeld::fate::merge) continue;
    ++merged;
    double best = -2;
    for (std::uint32_t j : partners(plan, i, length)) best = std::max(best, alike(i, j));
    CHECK(alike(i, plan.target[plan.at(0, i)]) >= best - 2 * bound);
  }
  return merged;
}

}  // namespace

TEST_CASE_TEMPLATE("matrix units multiply rows as they are stored", T, kvmeld::float16, kvmeld::bfloat16) {
  support::dice d(91);
  for (int i = 0; i < 12; ++i) check_products<T>(d);
}

TEST_CASE("matching in chunks on warps is the host's") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  auto const chelsea = kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(3),
                                                              kvmeld::quantity::entries(5));
  same_on_warps<matrix_rows<bfloat16, float16>>("chelsea", chelsea, aligned_life);
  same_on_warps<matrix_rows<float16, bfloat16>>("chelsea, odd rows", chelsea, odd_life);
  auto small = chelsea;
  small.identify.chunk = 31;  // too small for a matrix unit
  same_on_warps<matrix_rows<bfloat16, float16>>("chelsea, small chunks", small, odd_life, false);
  same_on_warps<lanes_test::row_keys>("chelsea in float", chelsea, odd_life);  // only compaction is replaced
}

TEST_CASE("a lone entry at the end of a track, and no centre at all") {
  // Chunks of 32 leave one entry of 33, 65 and 97; rows of NaN are no centres.
  auto policy = kvmeld::preset::chelsea::with_schedule({0.5, 0.0, 0, 0.05}, kvmeld::quantity::entries(0),
                                                       kvmeld::quantity::entries(0));
  policy.identify.chunk = 32;
  support::dice d(12);
  for (std::uint32_t length : {33u, 64u, 65u, 97u}) {
    CAPTURE(length);
    auto const run = [&](auto executor) {
      support::dice same(length);
      support::engine_memory<kvmeld::float16> memory({1, 1, 1, 1, 16, 16, 100});
      memory.fill_sequence(same, 0, 0, length, support::texture::walk);
      kvmeld::cache_options options{memory.extent};
      kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
      cache.open(0, length);
      cache.compress({0}, kvmeld::budget::entries(length - 10));
      return support::ledger_bytes(cache);
    };
    CHECK(run(support::warp_executor(1)) == run(kvmeld::host_executor(1, kvmeld::tuning::off)));
  }
  auto const d2o = [](auto executor) {
    support::dice same(4);
    support::engine_memory<kvmeld::float16> memory({1, 1, 1, 1, 16, 16, 60});
    memory.fill_sequence(same, 0, 0, 60, support::texture::walk);
    for (std::uint32_t i = 20; i < 60; ++i) {
      support::write_row(memory.tensors().keys, {0, 0, 0, 0}, i,
                         std::vector<float>(16, kvmeld::bits_float(0x7fc00000u)));
    }
    kvmeld::cache_options options{memory.extent};
    kvmeld::merged_cache cache{executor, kvmeld::preset::d2o::defaults(), memory.tensors(), options};
    cache.open(0, 60);
    std::vector<float> p(60);
    for (std::uint32_t i = 0; i < 60; ++i) p[i] = 0.01f * static_cast<float>(i);
    cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(p.data(), 1, 1, 60));
    cache.compress({0}, kvmeld::budget::entries(20));
    return support::ledger_bytes(cache);
  };
  CHECK(d2o(support::warp_executor(1)) == d2o(kvmeld::host_executor(1, kvmeld::tuning::off)));
}

TEST_CASE("pages and groups of channels on warps are the host's") {
  same_on_warps<page_rows>("chelsea",
                           kvmeld::preset::chelsea::with_schedule(
                               support::steep(), kvmeld::quantity::entries(3), kvmeld::quantity::entries(5)),
                           paged_life);
  same_on_warps<page_rows>("ems", kvmeld::preset::ems::shared(kvmeld::quantity::entries(5), 5, 0.01f),
                           paged_life);
}

TEST_CASE("matching with centres on warps is the host's") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  support::each_ems_preset([](char const* name, auto const& p) {
    same_on_warps<matrix_rows<bfloat16, float16>>(name, p, odd_life);
  });
  // The ledger holds D2O's threshold, a mean of cosines.
  same_on_warps<matrix_rows<float16, float16>>("d2o", kvmeld::preset::d2o::defaults(), aligned_life, true,
                                               false);
}

TEST_CASE("rows compacted slice by slice are the host's") {
  using kvmeld::float16;
  auto const h2o = kvmeld::preset::h2o::defaults();
  same_on_warps<matrix_rows<float16, float16>>("48 and 32 channels", h2o, aligned_life, true, true);
  constexpr lanes_test::sizes_of_life wide{{1, 2, 1, 1, 70, 33, 120}, 110, 44, 50, 30};
  same_on_warps<matrix_rows<float16, float>>("70 and 33 channels", h2o, wide, true, true);
  same_on_warps<matrix_rows<float16, float16>>("one slice", h2o, odd_life, false, true);
}

TEST_CASE("a chunk's partners are the best up to the stated bound") {
  support::dice d(5);
  auto policy = kvmeld::preset::chelsea::with_schedule({0.5, 0.0, 0, 0.05}, kvmeld::quantity::entries(0),
                                                       kvmeld::quantity::entries(0));
  for (std::uint32_t chunk : {32u, 77u, 300u, 600u}) {
    CAPTURE(chunk);
    policy.identify.chunk = chunk;
    std::uint32_t const length = 500 + d.below(100), dim = d.between(8, 40);
    support::engine_memory<kvmeld::bfloat16> memory({1, 1, 1, 1, dim, 4, 640});
    memory.fill_sequence(d, 0, 0, length, support::texture::clusters);
    std::uint32_t const merged = check_partners(
        memory, policy, length, 10, 0x1p-22 * (dim + 8),
        [&](kvmeld::plan_ref const&, std::uint32_t i, std::uint32_t n) {
          std::vector<std::uint32_t> list;
          std::uint32_t const begin = i / chunk * chunk;
          for (std::uint32_t j = begin + 1; j < std::min(n, begin + chunk); j += 2) list.push_back(j);
          return list;
        },
        [](double k, double) { return k; });
    CHECK(merged >= length / 2 - 1);
  }
}

TEST_CASE("of targets that are nearly as good, one within the bound is taken") {
  // Rows differ from a few by the last place of a channel or two: cosines of a chunk lie within some 2^-20.
  support::dice d(14);
  auto policy = kvmeld::preset::chelsea::with_schedule({0.5, 0.0, 0, 0.05}, kvmeld::quantity::entries(0),
                                                       kvmeld::quantity::entries(0));
  policy.identify.chunk = 200;
  constexpr std::uint32_t length = 200, dim = 64;
  support::engine_memory<kvmeld::float16> memory({1, 1, 1, 1, dim, 4, length});
  auto const few = support::random_rows(d, 3, dim, support::texture::noise);
  support::rows keys, values(length, std::vector<float>(4, 1.0f));
  for (std::uint32_t i = 0; i < length; ++i) {
    keys.push_back(few[d.below(3)]);
    for (std::uint32_t change = d.below(3); change-- > 0;) keys.back()[d.below(dim)] *= 1.0f + 0x1p-10f;
  }
  memory.fill(kvmeld::make_track(memory.extent, 0, 0, 0), 0, keys, values);
  std::uint32_t const merged = check_partners(
      memory, policy, length, 10, 0x1p-22 * (dim + 8),
      [&](kvmeld::plan_ref const&, std::uint32_t, std::uint32_t n) {
        std::vector<std::uint32_t> list;
        for (std::uint32_t j = 1; j < n; j += 2) list.push_back(j);
        return list;
      },
      [](double k, double) { return k; });
  CHECK(merged == length / 2);
}

TEST_CASE("centres are the best up to the stated bound") {
  support::dice d(6);
  std::uint32_t const length = 330, dim = 40;
  support::engine_memory<kvmeld::float16> memory({1, 1, 1, 1, dim, dim, 400});
  memory.fill_sequence(d, 0, 0, length, support::texture::clusters);
  auto policy = kvmeld::preset::d2o::defaults();
  std::uint32_t const merged = check_partners(
      memory, policy, length, 180, 0x1p-22 * (dim + 8),
      [&](kvmeld::plan_ref const& plan, std::uint32_t, std::uint32_t n) {
        std::vector<std::uint32_t> list;
        for (std::uint32_t j = 0; j < n; ++j) {
          if (plan.fates[plan.at(0, j)] == kvmeld::fate::merge) list.push_back(plan.target[plan.at(0, j)]);
        }
        return list;
      },
      [](double k, double) { return k; });
  CHECK(merged > 20);
}

TEST_CASE("without room in shared memory, and with tuning off, phases are the generic ones") {
  auto const chelsea = kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(3),
                                                              kvmeld::quantity::entries(5));
  using storage = matrix_rows<kvmeld::float16, kvmeld::float16>;
  auto const host = lanes_test::play<storage>(kvmeld::host_executor(1, kvmeld::tuning::off), chelsea,
                                              kvmeld::shortfall::keep, odd_life);
  for (support::warp_executor const& executor : {support::warp_executor(1, kvmeld::tuning::off),
                                                 support::warp_executor(1, kvmeld::tuning::on, 2000)}) {
    CHECK(host == lanes_test::play<storage>(executor, chelsea, kvmeld::shortfall::keep, odd_life));
    CHECK(executor.tuned_launches() == 0);
  }
}

}  // namespace warps_cases
