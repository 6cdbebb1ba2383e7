// Attention that feeds the scores as it goes leaves what attention and then observation leave, bit for bit.
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cache/refusal.hpp"
#include "support/brief.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

using cache_test::refusal_of;
using kvmeld::compose::composed_of;
using support::dice;

namespace {

struct results {
  std::vector<float> channels;
  support::byte_list words, out, lse;
};

// -ffast-math may add up a logit and subtract its norm in another order where no number is stored in between.
bool same_scores(std::vector<float> const& a, std::vector<float> const& b) {
#if defined(__FAST_MATH__)
  bool same = a.size() == b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    float const far = a[i] < b[i] ? b[i] - a[i] : a[i] - b[i];
    same = same && far <= 1e-5f * (1.0f + a[i]);
  }
  return same;
#else
  return support::bytes_of(a) == support::bytes_of(b);
#endif
}

// Two sequences of ragged tracks with degrees and gaps in their positions, and every option of attention.
template <class T>
void fused_is_separate(dice& d, kvmeld::tuning how, kvmeld::compose::composed const& policy) {
  kvmeld::shape const s{
      2, 2, d.between(1, 2), d.between(1, 5), d.pick({8u, 24u, 64u, 128u}), d.between(4, 40), 200};
  support::engine_memory<T> memory(s);
  kvmeld::cache_options options{s};
  options.ignore_degree = d.chance(0.2);
  kvmeld::merged_cache separate{kvmeld::host_executor(2, how), policy, memory.tensors(), options};
  std::uint32_t const most = d.pick({1u, 2u, 9u, 40u});
  std::uint32_t const lengths[] = {d.between(most, 200), d.between(most, 200)};
  for (std::uint32_t slot : {0u, 1u}) {
    separate.open(slot, lengths[slot]);
    memory.fill_sequence(d, slot, 0, lengths[slot], support::texture::noise);
    auto const& l = separate.ledger();
    l.seen[slot] = 3 * lengths[slot];
    support::for_tracks(s, slot, [&](kvmeld::track t) {
      for (std::uint32_t j = 0; j < lengths[slot]; ++j) {
        l.degree[l.at(t, j)] = static_cast<float>(d.between(1, 5));
        std::uint32_t const ago = lengths[slot] - 1 - j;
        l.position[l.at(t, j)] =
            static_cast<kvmeld::position_t>(3 * lengths[slot] - 1 - (ago < 45 ? ago : 3 * ago - 90));
      }
    });
  }
  kvmeld::attention_params params;
  std::vector<float> sinks(s.query_heads());
  for (float& x : sinks) x = static_cast<float>(d.normal());
  if (d.chance(0.4)) params.sink = sinks.data();
  if (d.chance(0.4)) params.softcap = 3;
  if (d.chance(0.3)) params.scale = 0.2f;
  params.causal = d.chance(0.8);
  params.use_degree = d.chance(0.8);
  if (params.causal && d.chance(0.4)) params.window = d.pick({5u, 60u});
  if (params.window != 0 && d.chance(0.5)) params.window_sinks = 20;
  if (d.chance(0.3)) params.rope.pairing = kvmeld::rope_pairing::half_split;
  kvmeld::query_sample const sample{d.chance(0.5) ? 0 : d.between(1, 12), d.pick({1u, 1u, 3u})};

  std::uint32_t const slots[] = {1, 0}, counts[] = {most, d.between(0, most)};
  kvmeld::query_batch const batch{1, {slots, 2}, {counts, 2}};
  std::uint32_t const heads = s.query_heads();
  std::vector<float> q(std::size_t{2} * most * heads * s.key_dim);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), most, heads, s.key_dim);
  std::uint32_t const parts = d.pick({1u, 1u, 3u});
  std::vector<float> part_memory(kvmeld::attention::split_floats(s, parts, 2, most));
  kvmeld::attention::split_keys const split{parts, part_memory, 64};
  auto const base = d.chance(0.5) ? kvmeld::lse_base::two : kvmeld::lse_base::natural;
  bool const own_sums = d.chance(0.3);  // the call keeps log-sum-exps to itself: natural ones

  auto const run = [&](auto const& original, bool fused) {
    auto cache = support::twin_of(original);
    std::vector<float> out(std::size_t{2} * most * heads * s.value_dim), lse(std::size_t{2} * most * heads);
    auto const to = kvmeld::rows_by_token(out.data(), most, heads, s.value_dim);
    kvmeld::log_sums<float> const sums{kvmeld::rows_by_head(lse.data(), most, heads, 1),
                                       own_sums ? kvmeld::lse_base::natural : base};
    for (int twice = 0; twice < 2; ++twice) {
      if (fused) {
        std::vector<float> room(kvmeld::attention::observed_floats(s, 2, most, sample));
        std::memset(room.data(), 0xff, room.size() * sizeof(float));  // NaN shows
        kvmeld::attention::attend_and_observe(
            cache, batch, rows, to, room, own_sums ? kvmeld::log_sums<float>{} : sums, params, sample, split);
      } else {
        kvmeld::attention::attend(cache.executor(), batch, rows, cache.ref(), to, sums, params, split);
        cache.observe(batch, rows, sums, params, sample);
      }
    }
    if (own_sums) lse.clear();
    results r{{}, {}, support::bytes_of(out), support::bytes_of(lse)};
    kvmeld::ledger_ref const& l = cache.ledger();
    std::vector<std::uint32_t> words;
    for (std::uint32_t slot : slots) {
      support::for_tracks(s, slot, [&](kvmeld::track t) {
        for (std::uint32_t w = 0; w < kvmeld::track_word::count; ++w) words.push_back(l.word(t, w));
        for (std::uint32_t c = 0; c < l.channels.count; ++c)
          for (std::uint32_t j = 0; j < l.length[t.index]; ++j)
            r.channels.push_back(l.channel_data[c][l.at(t, j)]);
      });
    }
    r.words = support::bytes_of(words);
    return r;
  };
  results const a = run(separate, false), b = run(separate, true);
  CHECK(same_scores(a.channels, b.channels));
  CHECK(a.words == b.words);
  CHECK(a.out == b.out);
  CHECK(a.lse == b.lse);
}

}  // namespace

TEST_CASE("attention that observes leaves the bits of attention and observation") {
  dice d(71);
  for (int i = 0; i < support::cases(60); ++i) {
    CAPTURE(i);
    auto const how = i % 2 == 0 ? kvmeld::tuning::on : kvmeld::tuning::off;
    auto const policy = i % 3 == 0   ? composed_of(kvmeld::preset::h2o::defaults())
                        : i % 3 == 1 ? composed_of(kvmeld::preset::snapkv::with_window(6))
                                     : composed_of(kvmeld::preset::scissorhands::defaults(11));
    fused_is_separate<kvmeld::float16>(d, how, policy);
    fused_is_separate<float>(d, how, policy);
  }
}

TEST_CASE("attention that observes: what it refuses, and what it needs no memory for") {
  kvmeld::shape const s{1, 1, 1, 2, 4, 4, 16};
  support::engine_memory<float> memory(s);
  dice d(72);
  memory.fill_sequence(d, 0, 0, 16, support::texture::noise);
  std::vector<float> q(3 * 2 * 4, 0.5f), out(3 * 2 * 4), room(200);
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), 3, 2, 4);
  auto const to = kvmeld::rows_by_token(out.data(), 3, 2, 4);
  auto cache = make_cache(memory, composed_of(kvmeld::preset::h2o::defaults()));
  cache.open(0, 10);
  auto const before = cache.save(0);
  auto const fused = [&](auto& c, kvmeld::query_batch const& batch, std::size_t floats,
                         kvmeld::query_sample p) {
    return refusal_of([&] {
      kvmeld::attention::attend_and_observe(c, batch, rows, to, {room.data(), floats}, {},
                                            kvmeld::attention_params{}, p);
    });
  };
  CHECK(kvmeld::attention::observed_floats(s, 1, 3) == 2 * (3 * 16 + 3));
  CHECK(kvmeld::attention::observed_floats(s, 1, 3, kvmeld::last_queries(1)) == 2 * (16 + 3));
  CHECK(fused(cache, {0, 0, 3}, 101, {}) ==
        "attention::attend_and_observe: number of floats of memory is 101; it must be at least 102, for 1 "
        "sequences of up to 3 queries");
  CHECK(fused(cache, {0, 0, 3}, 200, {0, 0}) ==
        "attention::attend_and_observe: sample.stride is 0; it must be at least 1");
  CHECK(fused(cache, {0, 1, 3}, 200, {}) == "attention::attend: sequence is 1; it must be 0 to 0");
  cache.append({0}, {1});
  CHECK(fused(cache, {0, 0, 1}, 200, {}) ==
        "observe: number of pending entries of sequence 0 is 1; it must be 0 (call commit first)");
  CHECK(out == std::vector<float>(out.size(), 0.0f));  // nothing ran
  cache.commit({0}, {0});
  CHECK(cache.save(0) == before);
  CHECK(fused(cache, {0, 0, 3}, 102, {}) == "");
  CHECK(cache.ledger().word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 3);

  auto blind = make_cache(memory, composed_of(kvmeld::preset::streaming_llm::with_sinks()));
  blind.open(0, 10);
  std::vector<float> const seen = out;
  out.assign(out.size(), 0.0f);
  CHECK(fused(blind, {0, 0, 3}, 0, {}) == "");
  CHECK(support::bytes_of(out) == support::bytes_of(seen));

  auto shared = make_cache(memory, kvmeld::preset::ems::shared(), support::with_plan(16));
  shared.open(0, 10);
  CHECK(fused(shared, {0, 0, 1}, 200, {}) ==
        "attention::attend_and_observe: policy is one that shares entries; it must be one that does not, "
        "because members have logits of their own (or call attention::attend, then observe)");
  CHECK(refusal_of([&] {
          shared.observe_logits({0, 0, 1}, {}, {});
        }) == "observe_logits: policy is one that shares entries; it must be one that does not, because "
              "members have logits of their own (or call observe)");

  // The same behind any_cache, which refuses other types of outputs as attend does.
  auto const held = kvmeld::make_any_cache(std::move(cache));
  kvmeld::any_cache& any = *held;
  CHECK(refusal_of([&] {
          any.attend_and_observe({0, 0, 3}, rows, to, {room.data(), 101});
        }).find("number of floats of memory is 101; it must be at least ") != std::string::npos);
  any.attend_and_observe({0, 0, 3}, rows, to, room);
  CHECK(any.ledger().word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 6);
  std::vector<kvmeld::float16> half_out(out.size());
  CHECK(refusal_of([&] {
          any.attend_and_observe({0, 0, 3}, rows, kvmeld::rows_by_token(half_out.data(), 3, 2, 4), room);
        }) == "any_cache::attend_and_observe: element type of the outputs is another than that of the "
              "queries; it must be the same, or float");
}

namespace {

double shown_mass = 0;
void show(double mass, std::uint32_t const (&degrees)[kvmeld::cache_stats::bins], std::uint64_t merged,
          std::uint64_t dropped) {
  shown_mass = mass + degrees[0] * 0.0 + static_cast<double>(merged + dropped) * 0.0;
}

}  // namespace

// The code of docs/observing.md.
TEST_CASE("the calls of the page about observing") {
  kvmeld::shape const extent{1, 1, 2, 2, 8, 8, 64};
  support::engine_memory<float> tensors(extent);
  dice d(73);
  tensors.fill_sequence(d, 0, 0, 64, support::texture::noise);
  kvmeld::cache_options options;
  options.stats = true;
  auto cache = make_cache(tensors, composed_of(kvmeld::preset::h2o::defaults()), options);
  std::uint32_t const layer = 0, slot = 0, kv_head = 1, sequences = 1, n = 20;
  cache.open(slot, 64);
  kvmeld::attention_params params;
  std::vector<float> q(n * 4 * 8), o(n * 4 * 8), sums(n * 4), full(o.size()), errors(4);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const queries = kvmeld::rows_by_token<float const>(q.data(), n, 4, 8);
  auto const out = kvmeld::rows_by_token(o.data(), n, 4, 8);
  auto const lse = kvmeld::rows_by_head(sums.data(), n, 4, 1);
  auto const scratch = out;
  auto const expected = kvmeld::rows_by_token<float const>(full.data(), n, 4, 8);
  kvmeld::attention::attend(cache.executor(), {layer, slot, n}, queries, cache.ref(),
                            kvmeld::rows_by_token(full.data(), n, 4, 8), lse, params);

  cache.observe({layer, slot, n}, queries, lse, params);

  cache.observe({layer, slot, n}, queries, kvmeld::in_base_two(lse), params);

  cache.observe({layer, slot, n}, queries, lse, params, kvmeld::last_queries(32));

  cache.observe({layer, slot, n}, queries, lse, params, kvmeld::every_nth(10));

  std::vector<float> memory(kvmeld::attention::observed_floats(extent, sequences, n));
  kvmeld::attention::attend_and_observe(cache, {layer, slot, n}, queries, out, memory, lse, params);

  cache.compress({slot}, kvmeld::budget::entries(30));
  cache.request_stats({slot});
  // later, at any time: never waits
  if (cache.stats_ready()) {
    kvmeld::stats_sum const all = cache.stats(slot);
    kvmeld::cache_stats const one = cache.stats(layer, slot, kv_head);
    show(all.mass_retained(), one.degrees, all.merged_in_all, all.dropped_in_all);
  }
  CHECK(shown_mass > 0.3);
  CHECK(shown_mass < 1);

  params.causal = false;
  kvmeld::attention::output_error(cache.executor(), {layer, slot, n}, queries, cache.ref(), expected, scratch,
                                  errors, params);
  CHECK(errors[3] > 0.01f);
}
