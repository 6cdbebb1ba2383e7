// Compiled without exceptions and RTTI: bad calls of every kind. Each has to be refused by a status, or
// answered with nothing where it returns no status; none may end the program, and afterwards the cache is as
// it was and works.
#include <kvmeld/attention/log_degree_by_page.hpp>
#include <kvmeld/cache/plan_readings.hpp>
#include <kvmeld/calibrate.hpp>
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "compiled with what this program does without"
#endif

namespace {

using namespace kvmeld;

int failures = 0, checks = 0;

void expect(bool holds, std::string const& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}
void refused(status const& s, std::string const& says) {
  expect(!s.ok() && s.text().find(says) != std::string::npos,
         "is to be refused with \"" + says + "\", says \"" + s.text() + "\"");
}
void accepted(status const& s, std::string const& what) { expect(s.ok(), what + ": " + s.text()); }

constexpr std::uint32_t far = 0xffffffffu;
double const nan = std::numeric_limits<double>::quiet_NaN();

shape const extent{2, 2, 2, 2, 8, 8, 64};

struct tensors {
  std::vector<float> k = std::vector<float>(extent.slots() * extent.key_dim),
                     v = std::vector<float>(extent.slots() * extent.value_dim);
  tensors() {
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = v[i] = static_cast<float>(i * 37 % 101) - 50.0f;
  }
  kv<strided<float>, strided<float>> rows() {
    return {{k.data(), "LSTHC", extent, 8}, {v.data(), "LSTHC", extent, 8}};
  }
};

using dropping = preset::h2o::type;
using cache_type = merged_cache<host_executor, dropping, strided<float>, strided<float>>;

cache_options sizes_with_plan() {
  cache_options options{extent};
  options.whole_plan = true;
  return options;
}

// The calls that a cache and an any_cache have in common, each with what is wrong with it. `bad` calls leave
// `cache` as it was.
template <class Cache> void bad_calls(Cache& cache, std::string const& every = {}) {
  auto const says = [&](char const* text) { return every.empty() ? std::string(text) : every; };
  std::vector<float> some(std::size_t{64} * 64, 0.5f), out(some.size());
  auto const rows = rows_by_head(static_cast<float const*>(some.data()), 1, 4, 8);
  auto const null = rows_by_head(static_cast<float const*>(nullptr), 1, 4, 8);
  auto const to = rows_by_head(out.data(), 1, 4, 8);
  std::uint32_t const pair[2] = {0, 0}, one[1] = {1};

  refused(cache.open(2, 4), says("open"));
  refused(cache.open(0, 4), says("open"));
  refused(cache.open(1, 65), says("open"));
  refused(cache.open(1, 4, 5), says("open"));
  refused(cache.close(1), says("close"));
  refused(cache.close(far), says("close"));
  refused(cache.append({1}, {1}), says("append"));
  refused(cache.append({0}, {far}), says("append"));
  refused(cache.append({pair, 2}, {one, 1}), says("append"));
  refused(cache.append({pair, 2}, {pair, 2}), says("append"));
  refused(cache.commit({0}, {1}), says("commit"));
  refused(cache.fork(1, 0), says("fork"));
  refused(cache.fork(0, 9), says("fork"));
  refused(cache.fork(0, 1, 65), says("fork"));
  refused(cache.truncate(0, 65), says("truncate"));
  refused(cache.freeze(0, 65), says("freeze"));
  refused(cache.shift(0, -1000), says("shift"));
  refused(cache.renumber(9), says("renumber"));
  refused(cache.drop_positions(9, 0, 1), says("drop_positions"));
  refused(cache.adopt(1, 4, 4, page_metadata<>{}), says("adopt"));
  refused(cache.export_page_metadata({0}, page_metadata<>{}), says("export_page_metadata"));
  refused(cache.plan({1}, budget::entries(8)), says("plan"));
  refused(cache.apply(), says("apply"));
  refused(cache.compress({0}, budget::entries(0)), says("compress"));
  refused(cache.compress({0}, budget::per_track(nullptr)), says("compress"));
  refused(cache.compress({pair, 2}, budget::entries(8)), says("compress"));
  refused(cache.compress({2}, budget::entries(8)), says("compress"));
  refused(cache.observe_rows({2, 0, 1}, rows), says("observe"));
  refused(cache.observe_rows({0, 2, 1}, rows), says("observe"));
  refused(cache.observe_rows({0, 0, far}, rows), says("observe"));
  refused(cache.observe_rows({0, 0, 1}, null), says("observe"));
  refused(cache.observe({0, 0, 1}, null, log_sums<float const>{}), says("observe"));
  refused(cache.observe({0, 0, 1}, rows, log_sums<float const>{}), says("observe"));
  refused(cache.request_stats({0}), says("stats"));
  refused(cache.save(1, span<std::byte>{}), says("save"));
  refused(cache.save(0, span<std::byte>{}), says("save"));
  refused(cache.resume(1, span<std::byte const>{}), says("resume"));
  expect(cache.save(1).empty() && cache.save(9).empty(), "save of nothing is empty");
  expect(cache.saved_bytes(1) == 0 && cache.saved_bytes(far) == 0, "nothing has no bytes");
  expect(cache.length(2, 0, 0) == 0 && cache.length(0, 2, 0) == 0 && cache.length(0, 0, 2) == 0, "length");
  expect(cache.longest(2) == 0 && cache.length_bound(2) == 0 && cache.tokens(2) == 0, "longest");
  expect(cache.entries(far) == 0 && cache.warnings(far) == 0 && cache.compressed_at(far) == 0, "entries");
  expect(cache.length_after(2, budget::entries(8)) == 0, "length_after");
  expect(!cache.due(2, trigger{8, 1}), "due");
  expect(cache.stats(0).tokens == 0 && cache.stats(far).tokens == 0, "stats");
  (void)cache.stats(0, far, 0);
  cache.sync_lengths(far);
  (void)cache.poll_lengths();
  if constexpr (std::is_same_v<Cache, any_cache>) {
    refused(cache.attend({2, 0, 1}, rows, to), "attend");
    refused(cache.attend({0, 2, 1}, rows, to), "attend");
    refused(cache.attend({0, 0, 1}, null, to), "attend");
    refused(cache.attend_and_observe({0, 0, 1}, rows, to, {}), says("attend"));
    refused(cache.attend_and_observe({2, 0, 1}, rows, to, {out.data(), out.size()}), says("attend"));
    refused(cache.write_log_degree(2, {0}, to), "write_log_degree");
    refused(cache.write_log_degree(0, {2}, to), "write_log_degree");
  } else {
    host_executor host;
    attention_params const params;
    refused(attention::attend(host, {2, 0, 1}, rows, cache.ref(), to, {}, params), "attend");
    refused(attention::attend(host, {0, 2, 1}, rows, cache.ref(), to, {}, params), "attend");
    refused(attention::attend(host, {0, 0, 1}, null, cache.ref(), to, {}, params), "attend");
    refused(attention::attend_and_observe(cache, {0, 0, 1}, rows, to, {}, {}, params), says("attend"));
    refused(attention::write_log_degree(host, cache.ref(), 2, {0}, to), "write_log_degree");
    refused(attention::write_log_degree(host, cache.ref(), 0, {2}, to), "write_log_degree");
    std::ostringstream text;
    print_plan(text, cache);
    refused(cache.set_rounds(far, 3), says("set_rounds"));
    expect(cache.rounds(far) == 0, "rounds");
  }
}

void cache_refuses() {
  tensors t;
  cache_type cache{host_executor{}, preset::h2o::defaults(), t.rows(), sizes_with_plan()};
  accepted(cache.valid(), "construction");
  accepted(cache.open(0, 60), "open");
  std::vector<std::byte> const before = cache.save(0);
  std::vector<float> const keys = t.k, values = t.v;
  bad_calls(cache);
  expect(cache.save(0) == before && keys == t.k && values == t.v, "refused calls change nothing");

  std::vector<std::byte> garbage = before;
  for (std::size_t at = 0; at < garbage.size(); at += 7) {
    garbage[at] ^= std::byte{0x5a};
    refused(cache.resume(1, {garbage.data(), garbage.size()}), "resume");
    garbage[at] = before[at];
  }
  for (std::size_t size = 0; size < before.size(); size += 11)
    refused(cache.resume(1, {before.data(), size}), "resume");
  accepted(cache.resume(1, {before.data(), before.size()}), "resume");
  expect(cache.save(1) == before, "what was resumed is what was saved");

  std::vector<float> const rows(std::size_t{extent.query_heads()} * extent.capacity, 0.01f);
  auto const observe = [&] {
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      accepted(cache.observe_rows({layer, 0, 1}, rows_by_head(rows.data(), 1, 4, 64)), "observe_rows");
    }
  };
  observe();
  accepted(cache.plan({0}, budget::entries(48)), "plan");
  accepted(cache.close(0), "close");
  refused(cache.apply(), "apply");
  accepted(cache.open(0, 60), "open");
  observe();
  accepted(cache.compress({0}, budget::entries(40)), "compress");
  expect(cache.longest(0) == 40, "the cache works afterwards");

  cache_type moved(std::move(cache));
  bad_calls(cache, "moved");  // NOLINT: calls of what was moved from are refused
  expect(moved.longest(0) == 40, "what it was moved to works");
  cache_type plain{host_executor{}, preset::h2o::defaults(), t.rows(), cache_options{extent}};
  refused(plain.plan({0}, budget::entries(8)), "whole_plan");
}

// A cache that could not be made: it says why, and so does every call.
template <class Policy, class Rows>
void no_cache(Policy const& policy, Rows const& rows, cache_options const& options, std::string const& says) {
  using type = merged_cache<host_executor, Policy, decltype(Rows::keys), decltype(Rows::values)>;
  type cache{host_executor{}, policy, rows, options};
  refused(cache.valid(), says);
  type copy = cache.clone(rows), moved(std::move(cache));
  refused(copy.valid(), says);
  copy = std::move(moved);
  refused(copy.valid(), says);
  expect(copy.workspace_bytes() == 0 && copy.ledger_bytes() == 0, "no cache has no bytes");
  refused(copy.open(0, 1), says);
  refused(copy.rebind({rows.keys, rows.values}), says);
}

void construction_refuses() {
  tensors t;
  auto const rows = t.rows();
  auto const policy = preset::h2o::defaults();
  auto const with = [](auto change) {
    cache_options options{extent};
    change(options);
    return options;
  };
  no_cache(policy, rows, with([](cache_options& l) { l.extent.layers = 0; }), "layers");
  no_cache(policy, rows, with([](cache_options& l) { l.extent.capacity = 0; }), "capacity");
  no_cache(policy, rows, with([](cache_options& l) { l.extent.key_dim = 0; }), "");
  no_cache(policy, rows, with([](cache_options& l) { l.extent = {far, far, far, far, far, far, far}; }), "");
  kv<strided<float>, strided<float>> bad = rows;
  bad.keys = strided<float>(t.k.data(), "LSTHX", extent, 8);
  no_cache(policy, bad, cache_options{extent}, "stride");
  bad.keys = strided<float>(t.k.data(), static_cast<char const*>(nullptr), extent, 8);
  no_cache(policy, bad, cache_options{extent}, "stride");
  bad.keys = strided<float>(nullptr, "LSTHC", extent, 8);
  no_cache(policy, bad, cache_options{extent}, "null");
  bad.keys = strided<float>(t.k.data(), "LSTHC", extent, 0);
  no_cache(policy, bad, cache_options{extent}, "slot stride is 0");
  bad = rows;
  bad.values = bad.keys;
  no_cache(policy, bad, cache_options{extent}, "");

  compose::composed parts;
  expect(!compose::find("no such score", parts.score), "a score that is not there");
  expect(!compose::find("", parts.identify), "an identifier that is not there");
  compose::find("none", parts.score);
  compose::find("top", parts.select);  // which needs a score
  compose::find("evict_rest", parts.identify);
  compose::find("drop", parts.merge);
  no_cache(parts, rows, cache_options{extent}, "score");

  std::vector<float> const some(64, 0.5f);
  std::vector<float> out(64);
  auto const query = rows_by_head(some.data(), 1, 4, 8);
  auto const to = rows_by_head(out.data(), 1, 4, 8);
  cache_type cache{host_executor{}, policy, rows, with([](cache_options& l) { l.extent.layers = 0; })};
  bad_calls(cache, cache.valid().text());
  host_executor host;
  // What would be good calls of any other cache.
  refused(attention::attend(host, {0, 0, 1}, query, cache.ref(), to), "attend");
  refused(attention::write_log_degree(host, cache.ref(), 0, {0}, to), "write_log_degree");
  auto const held = make_any_cache(std::move(cache));
  any_cache& any = *held;
  bad_calls(any, any.valid().text());
  refused(any.attend({0, 0, 1}, query, to), "attend");
  refused(any.write_log_degree(0, {0}, to), "write_log_degree");
}

void any_cache_refuses() {
  tensors t;
  auto const held =
      make_any_cache(cache_type{host_executor{}, preset::h2o::defaults(), t.rows(), sizes_with_plan()});
  any_cache& cache = *held;
  accepted(cache.open(0, 60), "open");
  std::vector<std::byte> const before = cache.save(0);
  bad_calls(cache);
  expect(cache.save(0) == before, "refused calls change nothing");
}

void calibration_refuses() {
  using namespace calibrate;
  tensors t;
  shape const few{1, 1, 1, 1, 8, 8, 64};
  shape const vast{far, far, far, far, far, far, far};
  expect(unmatched_shares(host_executor{}, t.rows(), vast, 0, 10).empty(),
         "unmatched_shares of a vast shape");
  outlier_rule rule;
  rule.chunk = 0;
  expect(unmatched_shares(host_executor{}, t.rows(), extent, 0, 10, rule).empty(),
         "unmatched_shares, chunk 0");
  expect(unmatched_shares(host_executor{}, t.rows(), extent, 5, 10).empty(), "unmatched_shares, sequence 5");
  expect(unmatched_shares(host_executor{}, t.rows(), extent, 0, 1000).empty(),
         "unmatched_shares, 1000 tokens");
  auto const paper = preset::kvmerger::paper_50();
  expect(thresholds_for(host_executor{}, paper, t.rows(), extent, nan, [](auto&) {}).empty(), "ratio NaN");
  expect(thresholds_for(host_executor{}, paper, t.rows(), extent, 0.5, [](auto&) {}).empty(), "no sample");
  expect(thresholds_for(host_executor{}, paper, t.rows(), few, 0.5, [](auto& c) { (void)c.open(7, 20); })
             .empty(),
         "a sample in another sequence");
  expect(outlier_heads({}, 0.1).empty() && outlier_heads({0.5}, nan).empty(), "outlier_heads");
  expect(outlier_shares({true}, 0.5).empty() && outlier_shares({false}, nan).empty(), "outlier_shares");
  std::vector<cost_curve> const good(4, cost_curve{{0.5, 1.0}, {1.0, 0.0}});
  expect(allot({}, 0.5).empty() && allot(good, nan).empty() && allot(good, 0.5, -1).empty(), "allot");
  expect(allot(std::vector<cost_curve>(1), 0.5).empty(), "allot of empty curves");
  auto const cost = [](std::vector<double> const&) { return 0.0; };
  expect(measure_heads(0, {0.5, 1.0}, cost).empty(), "measure_heads of none");
  expect(measure_heads(4, {}, cost).empty(), "measure_heads without shares");
  expect(measure_heads(4, {0.5, 1.0}, nullptr).empty(), "measure_heads without a measure");
  calibration c;
  expect(!calibration_problem(c, extent).empty(), "a calibration of nothing");
  expect(c.find("nothing") == nullptr, "find");
  expect(entries_of({}, 10).empty(), "entries_of nothing");
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  std::printf("cache\n");
  cache_refuses();
  std::printf("construction\n");
  construction_refuses();
  std::printf("any_cache\n");
  any_cache_refuses();
  std::printf("calibration\n");
  calibration_refuses();
  std::printf("%d of %d checks failed\n", failures, checks);
  return failures == 0 ? 0 : 1;
}
