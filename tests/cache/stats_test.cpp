// Live figures against naive counts: fates of plans, degrees, score masses, output errors of probes.
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache/refusal.hpp"
#include "reference/attention.hpp"
#include "support/cache_bytes.hpp"
#include "support/fenced_executor.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace figures_cases {

using cache_test::refusal_of;
using kvmeld::compose::composed;
using kvmeld::compose::composed_of;
using support::dice;

namespace {

kvmeld::cache_options counting(std::uint32_t members = 0) {
  kvmeld::cache_options options = support::with_plan(members);
  options.stats = true;
  return options;
}

// What entries and members of a track have gathered, in the channels of policies that accumulate attention or
// keep a window of it.
struct gathered {
  std::vector<double> entries;
  double members = 0, all = 0;

  gathered(kvmeld::ledger_ref const& l, kvmeld::track t) {
    bool const accumulates =
        l.channels.count != 0 && l.channels.at[0].tag == kvmeld::channel_tag::accumulated_attention;
    std::uint32_t const counted = accumulates ? 1 : l.channels.count;
    for (std::uint32_t s = 0; s < l.length[t.index]; ++s) {
      entries.push_back(0);
      for (std::uint32_t c = 0; c < counted; ++c)
        entries.back() += static_cast<double>(l.channel_data[c][l.at(t, s)]);
      all += entries.back();
    }
    for (std::uint32_t m = 0; l.members.capacity != 0 && m < l.members.count[t.index]; ++m)
      members += static_cast<double>(l.members.channel_data[0][l.members.at(t, m)]);
    all += members;
  }
};

void check_degrees(kvmeld::ledger_ref const& l, kvmeld::track t, kvmeld::cache_stats const& f) {
  std::uint32_t bins[kvmeld::cache_stats::bins] = {};
  float largest = 0;
  for (std::uint32_t s = 0; s < l.length[t.index]; ++s) {
    float const degree = l.degree[l.at(t, s)];
    largest = std::max(largest, degree);
    std::uint32_t b = 0;
    for (float bound = 2; degree >= bound && b + 1 < kvmeld::cache_stats::bins; bound *= 2) ++b;
    ++bins[b];
  }
  for (std::uint32_t b = 0; b < kvmeld::cache_stats::bins; ++b) CHECK(f.degrees[b] == bins[b]);
  CHECK(f.largest_degree == largest);
  CHECK(f.held == l.length[t.index]);
  CHECK(f.tokens == l.seen[t.sequence]);
}

// Compresses twice, once through compress and once through plan and apply, and counts what a plan of the same
// says.
void counts_are_naive(dice& d, composed const& policy, double min_retained, bool loses) {
  kvmeld::shape const s{2, 2, 2, 2, 16, 8, 160};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, policy, counting(), 2);
  std::uint32_t const slot = d.below(2);
  std::uint32_t length = d.between(80, 160);
  cache.open(slot, length);
  memory.fill_sequence(d, slot, 0, length, support::texture::walk);
  std::vector<double> product(s.tracks(), 1.0);
  std::vector<std::uint32_t> merged_in_all(s.tracks()), dropped_in_all(s.tracks());
  for (bool const apart : {false, true}) {
    for (std::uint32_t c = 0; c < cache.ledger().channels.count; ++c) {
      support::for_tracks(s, slot, [&](kvmeld::track t) {
        support::set_scores(cache.ledger(), t, support::random_scores(d, length), c);
      });
    }
    std::uint32_t const limit = d.between(40, length - 10);
    auto twin = support::twin_of(cache);  // its plan is looked at and never applied
    twin.plan({slot}, kvmeld::budget::entries(limit), kvmeld::shortfall::evict_lowest);
    std::vector<gathered> before;
    support::for_tracks(s, slot, [&](kvmeld::track t) { before.emplace_back(cache.ledger(), t); });
    if (apart) {
      cache.plan({slot}, kvmeld::budget::entries(limit), kvmeld::shortfall::evict_lowest);
      cache.apply();
    } else {
      cache.compress({slot}, kvmeld::budget::entries(limit), kvmeld::shortfall::evict_lowest);
    }
    cache.request_stats({slot});
    CHECK(cache.stats_ready());
    kvmeld::stats_sum sum;
    std::uint32_t item = 0;
    double least = 1;
    support::for_tracks(s, slot, [&](kvmeld::track t) {
      kvmeld::cache_stats const f = cache.stats(t.layer, slot, t.kv_head);
      check_degrees(cache.ledger(), t, f);
      std::uint32_t merged = 0, dropped = 0;
      double lost = 0;
      for (std::uint32_t j = 0; j < length; ++j) {
        kvmeld::fate const what = twin.current_plan().fates[twin.current_plan().at(item, j)];
        if (what == kvmeld::fate::drop) ++dropped, lost += before[item].entries[j];
        if (what != kvmeld::fate::drop && what != kvmeld::fate::keep) ++merged;
      }
      double const retained = before[item].all > 0 ? 1 - lost / before[item].all : 1.0;
      CHECK(f.merged == merged);
      CHECK(f.dropped == dropped);
      CHECK(merged + dropped == length - f.held);
      CHECK(static_cast<double>(f.mass_retained) == doctest::Approx(retained).epsilon(1e-5));
      product[t.index] *= retained;
      CHECK(f.merged_in_all == (merged_in_all[t.index] += merged));
      CHECK(f.dropped_in_all == (dropped_in_all[t.index] += dropped));
      CHECK(static_cast<double>(f.mass_retained_in_all) == doctest::Approx(product[t.index]).epsilon(1e-5));
      least = std::min(least, static_cast<double>(f.mass_retained));
      sum += kvmeld::stats_sum(f);
      ++item;
    });
    CHECK(least >= min_retained);
    CHECK((!loses || least < 0.999));
    kvmeld::stats_sum const told = cache.stats(slot);
    CHECK(told.tracks == 4);
    CHECK(told.held == cache.entries(slot));
    CHECK(told.merged == sum.merged);
    CHECK(told.dropped_in_all == sum.dropped_in_all);
    CHECK(told.degrees[1] == sum.degrees[1]);
    CHECK(static_cast<double>(told.min_mass_retained) == least);
    CHECK(told.mass_retained() >= least);
    length = cache.longest(slot);
    if (length < 60) break;
  }
}

}  // namespace

TEST_CASE("figures count what plans do, and the attention that is left") {
  namespace preset = kvmeld::preset;
  dice d(81);
  for (int i = 0; i < 8; ++i) {
    counts_are_naive(d, composed_of(preset::h2o::defaults()), 0.01, true);
    counts_are_naive(d, composed_of(preset::snapkv::with_window(9)), 0.01, true);
    counts_are_naive(d, composed_of(preset::cam::over_h2o()), 0.01, false);
    counts_are_naive(d, composed_of(preset::d2o::defaults()), 0.01, false);
    counts_are_naive(d, composed_of(preset::kvmerger::for_budget()), 1 - 1e-5, false);
    counts_are_naive(d, composed_of(preset::streaming_llm::with_sinks()), 1, false);
  }
}

TEST_CASE("figures of several rounds, of shared entries, and of sequences that begin anew") {
  dice d(82);
  kvmeld::shape const s{1, 2, 2, 2, 16, 8, 200};
  support::engine_memory<float> memory(s);
  memory.fill_sequence(d, 0, 0, 200, support::texture::walk);
  auto chelsea = make_cache(memory, composed_of(kvmeld::preset::chelsea::llama3()), counting());
  chelsea.open(0, 200);
  chelsea.compress({0}, kvmeld::budget::entries(90));
  CHECK(chelsea.rounds(0) > 1);
  chelsea.request_stats({0});
  CHECK(chelsea.stats(0, 0, 1).merged == 110);
  CHECK(chelsea.stats(0, 0, 1).dropped == 0);
  CHECK(chelsea.stats(0).mass_retained() == 1.0);
  CHECK(chelsea.stats(0).largest_degree > 2);
  check_degrees(chelsea.ledger(), kvmeld::make_track(s, 0, 0, 1), chelsea.stats(0, 0, 1));
  // Within its budget: the last compression did nothing.
  chelsea.compress({0}, kvmeld::budget::entries(90));
  chelsea.fork(0, 1);
  chelsea.request_stats({0, 1});
  CHECK(chelsea.stats(0, 0, 1).merged == 0);
  CHECK(chelsea.stats(0, 0, 1).merged_in_all == 110);
  CHECK(chelsea.stats(0, 1, 1).merged_in_all == 0);  // its own, from here on
  CHECK(chelsea.stats(0, 1, 1).held == 90);
  auto const saved = chelsea.save(0);
  chelsea.close(0);
  chelsea.resume(0, saved);
  chelsea.request_stats({0});
  CHECK(chelsea.stats(0).merged_in_all == 0);
  CHECK(chelsea.stats(0).mass_retained_in_all() == 1.0);

  memory.fill_sequence(d, 0, 0, 200, support::texture::walk);
  auto ems = make_cache(memory, kvmeld::preset::ems::shared(kvmeld::quantity::entries(32), 32, 0.0f, 1.5),
                        counting(300));
  ems.open(0, 200);
  for (std::uint32_t again : {0u, 1u}) {
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      support::set_scores(ems.ledger(), t, support::random_scores(d, ems.ledger().length[t.index]));
    });
    std::vector<gathered> before;
    support::for_tracks(s, 0, [&](kvmeld::track t) { before.emplace_back(ems.ledger(), t); });
    std::uint32_t const held = ems.longest(0);
    ems.compress({0}, kvmeld::budget::entries(100 - 30 * again));
    ems.request_stats({0});
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      kvmeld::cache_stats const f = ems.stats(0, 0, t.kv_head);
      double const after = gathered(ems.ledger(), t).all;
      CHECK(static_cast<double>(f.mass_retained) ==
            doctest::Approx(after / before[t.kv_head].all).epsilon(1e-5));
      CHECK(f.merged + f.dropped == held - f.held);
      CHECK(f.merged > 0);
    });
  }

  // Shared entries observe the sample alone, too: as if the others had never been asked.
  constexpr std::uint32_t n = 12;
  std::vector<float> q(n * 4 * 16), lse(n * 4, 5.0f);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), n, 4, 16);
  auto const sums = kvmeld::rows_by_token<float const>(lse.data(), n, 4, 1);
  auto const observed = [&](std::uint32_t queries, kvmeld::query_sample sample, std::uint32_t first,
                            bool apart) {
    auto cache = support::twin_of(ems);
    kvmeld::attention_params params;
    params.causal = !apart && sample.stride == 1;
    std::int64_t const step = apart ? 3 : 1;
    kvmeld::head_rows<float const> const some{rows.row(0, 0, first), 0, rows.head_stride,
                                              step * rows.row_stride};
    kvmeld::head_rows<float const> const same{sums.row(0, 0, first), 0, sums.head_stride,
                                              step * sums.row_stride};
    cache.observe({0, 0, queries}, some, same, params, sample);
    return support::ledger_bytes(cache);
  };
  CHECK(ems.ledger().members.count[0] > 0);
  CHECK(observed(n, kvmeld::last_queries(5), 0, false) == observed(5, {}, n - 5, false));
  CHECK(observed(n, kvmeld::last_queries(5), 0, false) != observed(n, {}, 0, false));
  CHECK(observed(n, kvmeld::every_nth(3), 0, false) == observed(n / 3, {}, 2, true));  // queries 2, 5, 8, 11
}

TEST_CASE(
    "figures of memory that the host cannot read arrive later, and a cache that counts nothing says so") {
  dice d(83);
  kvmeld::shape const s{1, 2, 2, 2, 8, 4, 60};
  support::engine_memory<float> memory(s), twin(s);
  memory.fill_sequence(d, 1, 0, 60, support::texture::walk);
  twin = memory;
  kvmeld::cache_options options{s};
  options.stats = true;
  auto const policy = kvmeld::preset::streaming_llm::with_sinks();
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(), options};
  auto const held =
      kvmeld::make_any_cache(kvmeld::merged_cache{kvmeld::host_executor(1), policy, twin.tensors(), options});
  kvmeld::any_cache& near = *held;
  auto const both = [&](auto f) {
    f(near);
    f(far);
  };
  CHECK_FALSE(far.stats_ready());  // none was asked for
  both([](auto& c) {
    c.open(1, 60);
    c.compress({1}, kvmeld::budget::entries(33));
    c.request_stats({1});
    c.request_stats({1});
  });
  CHECK(far.stats(1).held == 0);  // not there yet
  CHECK_FALSE(far.stats_ready());
  far.compress({1}, kvmeld::budget::entries(20));  // too late for this request
  CHECK_FALSE(far.stats_ready());
  CHECK(far.stats_ready());
  CHECK_FALSE(far.stats_ready());
  CHECK(near.stats_ready());
  for (auto const& f : {far.stats(0, 1, 1), near.stats(0, 1, 1)}) {
    CHECK(f.held == 33);
    CHECK(f.dropped == 27);
    CHECK(f.tokens == 60);
    CHECK(f.degrees[0] == 33);
    CHECK(f.largest_degree == 1.0f);
    CHECK(f.mass_retained == 1.0f);
  }
  CHECK(near.stats(1).dropped == 54);
  auto copy = support::twin_of(far);
  CHECK(copy.stats(1).held == 66);

  CHECK(refusal_of([&] { far.request_stats({0}); }) ==
        "request_stats: sequence is 0; it must be open (call open first)");
  CHECK(refusal_of([&] { far.stats(2); }) == "stats: sequence is 2; it must be 0 to 1");
  CHECK(refusal_of([&] { far.stats(0, 1, 2); }) == "stats: head is 2; it must be 0 to 1");
  support::fenced_graph graph(far.executor());
  CHECK(refusal_of([&] { (void)graph.record(far.executor(), [&] { far.request_stats({1}); }); }) ==
        "request_stats: recording is on; it must be off, because this call cannot be recorded");
  options.stats = false;
  kvmeld::merged_cache plain{kvmeld::host_executor(1), policy, twin.tensors(), options};
  plain.open(1, 10);
  CHECK(refusal_of([&] { plain.request_stats({1}); }) ==
        "request_stats: options.stats is false; it must be true when the cache is constructed; "
        "otherwise nothing is counted");
  CHECK(refusal_of([&] { plain.stats(1); }) == "stats: options.stats is false; it must be true when the "
                                               "cache is constructed; otherwise nothing is counted");
  options.stats = true;
  kvmeld::merged_cache const counts{kvmeld::host_executor(1), policy, twin.tensors(), options};
  CHECK(counts.workspace_bytes() - plain.workspace_bytes() <= 2 * (s.tracks() * 112 + 64));
}

TEST_CASE("the output error of probes is that of naive sums") {
  dice d(84);
  for (int i = 0; i < 10; ++i) {
    kvmeld::shape const s{1, 2, 2, d.between(1, 3), 16, d.between(4, 24), 120};
    support::engine_memory<kvmeld::float16> memory(s);
    auto cache = make_cache(memory, composed_of(kvmeld::preset::streaming_llm::with_sinks()), counting());
    std::uint32_t const slots[] = {1, 0}, counts[] = {d.between(1, 9), d.between(0, 9)};
    for (std::uint32_t slot : slots) {
      cache.open(slot, 120);
      memory.fill_sequence(d, slot, 0, 120, support::texture::noise);
    }
    kvmeld::query_batch const batch{0, {slots, 2}, {counts, 2}};
    kvmeld::attention_params params;
    params.causal = false;
    std::uint32_t const heads = s.query_heads();
    std::vector<float> q(std::size_t{2} * 9 * heads * s.key_dim),
        full(std::size_t{2} * 9 * heads * s.value_dim), scratch(full.size()), errors(2 * heads, -1.0f);
    for (float& x : q) x = static_cast<float>(d.normal());
    auto const rows = kvmeld::rows_by_token<float const>(q.data(), 9, heads, s.key_dim);
    auto const view = [&](auto& v) { return kvmeld::rows_by_token(v.data(), 9, heads, s.value_dim); };
    kvmeld::head_rows<float const> const expected =
        kvmeld::rows_by_token<float const>(full.data(), 9, heads, s.value_dim);
    auto const measure = [&] {
      kvmeld::attention::output_error(cache.executor(), batch, rows, cache.ref(), expected, view(scratch),
                                      errors, params);
    };
    kvmeld::attention::attend(cache.executor(), batch, rows, cache.ref(), view(full), {}, params);
    measure();
    for (float e : errors) CHECK(e == 0.0f);
    cache.compress({0, 1}, kvmeld::budget::entries(d.between(20, 100)));
    measure();
    double largest = 0;
    for (std::uint32_t m = 0; m < 2; ++m) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        auto const track =
            support::read_track(cache.ref(), kvmeld::make_track(s, 0, slots[m], h / s.queries_per_kv_head));
        reference::matrix asked;
        for (std::uint32_t r = 0; r < counts[m]; ++r) {
          float const* const from = rows.row(m, h, r);
          asked.emplace_back(from, from + s.key_dim);
        }
        reference::attention_options o;
        o.scale = 0.25;
        auto const got = reference::attend(asked, track, o);
        double apart = 0, norm = 0;
        for (std::uint32_t r = 0; r < counts[m]; ++r) {
          for (std::uint32_t c = 0; c < s.value_dim; ++c) {
            double const x = static_cast<double>(expected.row(m, h, r)[c]);
            norm += x * x;
            apart += (got.output[r][c] - x) * (got.output[r][c] - x);
          }
        }
        double const want = counts[m] == 0 ? 0.0 : std::sqrt(apart / norm);
        largest = std::max(largest, want);
        CHECK(static_cast<double>(errors[m * heads + h]) == doctest::Approx(want).epsilon(1e-4));
      }
    }
    CHECK(largest > 0.01);
    std::fill(full.begin(), full.end(), 0.0f);
    measure();
    CHECK(errors[0] == 1.0f);
    if (i != 0) continue;
    auto const refused = [&](kvmeld::head_rows<float const> e, kvmeld::head_rows<float> to,
                             std::size_t room) {
      return refusal_of([&] {
        kvmeld::attention::output_error(cache.executor(), batch, rows, cache.ref(), e, to,
                                        {errors.data(), room}, params);
      });
    };
    CHECK(refused({}, view(scratch), errors.size()) ==
          "attention::output_error: expected.data is null; it must be rows of the queries' heads");
    CHECK(refused(expected, {}, errors.size()) ==
          "attention::output_error: scratch.data is null; it must be rows of the queries' heads");
    CHECK(refused(expected, view(scratch), 1) ==
          kvmeld::refusal("attention::output_error", "number of errors", 1, "at least ", 2 * heads,
                          ", for 2 sequences of ", heads, " query heads"));
  }
}

TEST_CASE("sums add up every number of a track's stats") {
  kvmeld::cache_stats a, b;
  a.tokens = 100, a.held = 40, a.merged = 7, a.dropped = 11, a.merged_in_all = 19, a.dropped_in_all = 23;
  b.tokens = 1000, b.held = 300, b.merged = 50, b.dropped = 60, b.merged_in_all = 70, b.dropped_in_all = 80;
  a.largest_degree = 5.0f, b.largest_degree = 3.0f;
  a.mass_retained = 0.5f, b.mass_retained = 0.75f;
  a.mass_retained_in_all = 0.25f, b.mass_retained_in_all = 0.5f;
  for (std::uint32_t i = 0; i < kvmeld::cache_stats::bins; ++i) a.degrees[i] = i, b.degrees[i] = 100 * i;
  kvmeld::stats_sum sum(a);
  sum += kvmeld::stats_sum(b);
  CHECK(sum.tracks == 2);
  CHECK(sum.tokens == 1100);
  CHECK(sum.held == 340);
  CHECK(sum.merged == 57);
  CHECK(sum.dropped == 71);
  CHECK(sum.merged_in_all == 89);
  CHECK(sum.dropped_in_all == 103);
  CHECK(sum.largest_degree == 5.0f);
  CHECK(sum.min_mass_retained == 0.5f);
  CHECK(sum.masses == 1.25);
  CHECK(sum.masses_in_all == 0.75);
  for (std::uint32_t i = 0; i < kvmeld::cache_stats::bins; ++i) CHECK(sum.degrees[i] == 101 * i);
}

TEST_CASE("a sequence that was never asked about has lost nothing") {
  support::engine_memory<float> memory({1, 2, 1, 1, 8, 8, 40});
  auto cache = make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(), counting());
  cache.open(0, 40);
  cache.open(1, 30);
  for (int again = 0; again < 2; ++again) {
    CHECK(cache.stats(0, 1, 0).tokens == 0);
    CHECK(cache.stats(0, 1, 0).mass_retained == 1.0f);
    CHECK(cache.stats(0, 1, 0).mass_retained_in_all == 1.0f);
    CHECK(cache.stats(1).min_mass_retained == 1.0f);
    cache.request_stats({0});
    CHECK(cache.stats_ready());
  }
  CHECK(cache.stats(0, 0, 0).tokens == 40);
}

}  // namespace figures_cases
