// A shifted context: keys turn by one offset, merged ones too, and everything else is as it was.
#include "padded.hpp"
#include "turned.hpp"
#include "twins.hpp"

#include "layout/tensors.hpp"

#include <kvmeld/compose/any_cache.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace shift_cases {

using namespace sequences_test;
using kvmeld::position_t;
using kvmeld::rope_pairing;

namespace {

// Plans, and keeps the plan's coefficients and the keys they are for. What a merge followed by a shift leaves
// has to be what the same coefficients make of keys that were turned first.
template <class Policy> void merge_then_shift(char const* name, Policy const& policy, rope_pairing pairing) {
  CAPTURE(std::string(name));
  CAPTURE(int(pairing));
  support::engine_memory<float> memory(extent);
  support::dice d(30);
  auto cache = cache_for(memory, policy, support::with_plan());
  open(cache, d, 1, 60);
  auto const x = cache.ref();
  // The first tokens go, so that there is room to shift to.
  cache.plan({1}, budget::entries(36), kvmeld::shortfall::keep);
  kvmeld::plan_ref const& plan = cache.current_plan();
  kvmeld::rope_params const rope = rope_of(pairing);
  position_t const by = 41;
  std::vector<std::vector<std::vector<double>>> wanted;
  std::vector<std::vector<float>> values, degrees;
  for (std::uint32_t item = 0; item < cache.planned_work().tracks(extent); ++item) {
    kvmeld::track const t = cache.planned_work().at(extent, item);
    std::vector<std::vector<double>> keys;
    for (kvmeld::slot_t p = 0; p < 60; ++p) {
      if (plan.fates[plan.at(item, p)] != kvmeld::fate::keep) continue;
      std::vector<double> sum(extent.key_dim, 0.0);
      bool const alone = [&] {
        for (kvmeld::slot_t s = 0; s < 60; ++s) {
          auto const what = plan.fates[plan.at(item, s)];
          if (s != p && what == kvmeld::fate::merge && plan.target[plan.at(item, s)] == p) return false;
        }
        return true;
      }();
      for (kvmeld::slot_t s = 0; s < 60; ++s) {
        auto const what = plan.fates[plan.at(item, s)];
        if (s != p && (what != kvmeld::fate::merge || plan.target[plan.at(item, s)] != p)) continue;
        auto const row = turned(in_double(support::get_row(x.keys, t, s)), pairing, 10000.0, by);
        double const weight = alone ? 1.0 : static_cast<double>(plan.key_weight[plan.at(item, s)]);
        for (std::size_t c = 0; c < row.size(); ++c) sum[c] += weight * row[c];
      }
      keys.push_back(sum);
    }
    wanted.push_back(keys);
  }
  cache.apply();
  support::engine_memory<float> const before = memory;
  auto const ledger_before = support::twin_of(cache);  // a deep copy of the ledger
  cache.shift(1, by, rope);
  CHECK(memory.values == before.values);
  bool merged = false;
  std::uint32_t item = 0;
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    auto const& keys = wanted[item++];
    CHECK(keys.size() == x.length(t));
    for (kvmeld::slot_t s = 0; s < x.length(t); ++s) {
      auto const row = in_double(support::get_row(x.keys, t, s));
      for (std::size_t c = 0; c < row.size(); ++c)
        CHECK(std::fabs(row[c] - keys[s][c]) <= 8 * 0x1p-24 * largest(keys[s]) + 1e-30);
      CHECK(x.position(t, s) == ledger_before.ref().position(t, s) + by);
      CHECK(x.degree(t, s) == ledger_before.ref().degree(t, s));
      merged = merged || x.degree(t, s) > 1.0f;
    }
  });
  CHECK(merged == kvmeld::detail::merges_rows(policy));
  CHECK(cache.tokens(1) == 101);
  CHECK(cache.compressed_at(1) == 101);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
  cache.append({1}, {1});
  support::for_tracks(extent, 1, [&](kvmeld::track t) { CHECK(x.position(t, x.length(t) - 1) == 101); });
}

// Two queries, rotated for where they are, and the sum of everything they see.
template <class Cache>
std::vector<float> attended(Cache& cache, std::vector<float> const& raw, rope_pairing pairing,
                            std::uint32_t at) {
  std::uint32_t const heads = extent.query_heads(), dk = extent.key_dim, dv = extent.value_dim;
  std::vector<float> q;
  for (std::uint32_t row = 0; row < 2 * heads; ++row) {
    std::vector<double> const one(raw.begin() + row * dk, raw.begin() + (row + 1) * dk);
    for (double v : turned(one, pairing, 10000.0, at + row / heads)) q.push_back(static_cast<float>(v));
  }
  std::vector<float> out(2 * heads * dv), lse(2 * heads);
  auto const params = kvmeld::attention_params{};
  auto const from = kvmeld::rows_by_token<float const>(q.data(), 2, heads, dk);
  kvmeld::attention::attend(cache.executor(), {1, 0, 2}, from, cache.ref(),
                            kvmeld::rows_by_token(out.data(), 2, heads, dv),
                            kvmeld::rows_by_head(lse.data(), 2, heads, 1), params);
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

// Attention of queries that move with their keys.
template <class Policy>
void same_logits(char const* name, Policy const& policy, rope_pairing pairing, bool pads) {
  CAPTURE(std::string(name));
  CAPTURE(int(pairing));
  CAPTURE(pads);
  support::engine_memory<float> memory(extent);
  support::dice d(12);
  kvmeld::cache_options options{};
  options.padded = pads;
  auto cache = cache_for(memory, policy, options);
  open(cache, d, 0, 70);
  std::vector<std::uint32_t> table(extent.tracks());
  for (std::uint32_t& n : table) n = d.between(28, 50);
  cache.compress({0}, budget::per_track(table.data()), kvmeld::shortfall::evict_lowest);
  write_rows(cache, d, 0, 2);
  cache.append({0}, {2});
  cache.commit({0}, {2});
  std::vector<float> raw(2 * extent.query_heads() * extent.key_dim);
  for (float& v : raw) v = static_cast<float>(d.normal());
  auto const before = attended(cache, raw, pairing, 70);
  for (position_t by : {1000, -1037, 14}) {
    cache.shift(0, by, rope_of(pairing));
    CHECK(kvmeld::testing::invariant_problem(cache) == "");
    auto const after = attended(cache, raw, pairing, cache.tokens(0) - 2);
    for (std::size_t i = 0; i < before.size(); ++i)
      CHECK(std::fabs(static_cast<double>(after[i]) - static_cast<double>(before[i])) < 2e-5);
    if (by == 1000) {  // room below for the next
      CHECK(cache.tokens(0) == 1072);
      cache.shift(0, 37);
      cache.shift(0, -37);
      cache.shift(0, 37, rope_of(pairing));
    }
  }
  if (pads) check_padding(cache, 0, cache.length_bound(0));
}

}  // namespace

TEST_CASE("merging and then shifting is shifting and then merging") {
  for (auto pairing : {rope_pairing::half_split, rope_pairing::interleaved}) {
    support::each_chelsea_preset(
        [&](char const* name, auto const& p) { merge_then_shift(name, p, pairing); });
    support::each_keepkv_preset([&](char const* name, auto const& p) { merge_then_shift(name, p, pairing); });
    merge_then_shift("kvmerger", kvmeld::preset::kvmerger::for_budget(), pairing);
    merge_then_shift("ems collapsed",
                     kvmeld::preset::ems::collapsed(kvmeld::quantity::entries(6), 6, 0.3f, 2.0), pairing);
    merge_then_shift("h2o", kvmeld::preset::h2o::defaults(), pairing);
  }
}

TEST_CASE("queries that move with their keys see what they saw, for every preset") {
  for (auto pairing : {rope_pairing::half_split, rope_pairing::interleaved}) {
    each_padded_policy([&](char const* name, auto const& policy) {
      for (bool pads : {false, true}) same_logits(name, policy, pairing, pads);
    });
  }
}

TEST_CASE("members move with the rows they share") {
  support::engine_memory<float> memory(extent);
  support::dice d(2);
  auto const policy = kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.05f, 2.0);
  auto cache = cache_for(memory, policy);
  open(cache, d, 0, 70);
  cache.compress({0}, budget::entries(30));
  kvmeld::ledger_ref const& l = cache.ledger();
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 1);
  CHECK(l.members.count[t.index] > 0);
  auto const copy = support::twin_of(cache);
  cache.shift(0, 500, rope_of(rope_pairing::half_split));
  for (std::uint32_t m = 0; m < l.members.count[t.index]; ++m) {
    std::size_t const i = l.members.at(t, m);
    CHECK(l.members.position[i] == copy.ledger().members.position[i] + 500);
    CHECK(l.members.norm[i] == copy.ledger().members.norm[i]);
  }
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
  cache_test::refused(cache, memory, [](auto& c) { c.shift(0, 3, rope_of(rope_pairing::half_split), 540); },
                      {"shift: first is 540", "is shared by tokens on both sides",
                       "it must be 0, because slot 6 of track (layer 0, sequence 0, head 0) is shared by "
                       "tokens on both sides of it (or shift without rotation)"});
  cache.shift(0, 3, {}, 540);
}

TEST_CASE("sinks stay while the rest moves up to them") {
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(4));
  open(cache, d, 0, 70);
  cache.compress({0}, budget::entries(20));
  write_rows(cache, d, 0, 3);
  cache.append({0}, {3});
  cache.commit({0}, {3});
  auto const before = memory;
  auto const x = cache.ref();
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 0);
  CHECK(x.position(t, 4) == 54);
  auto const lower = [&](auto& c) { c.shift(0, -51, rope_of(rope_pairing::interleaved), 4); };
  cache_test::refused(
      cache, memory, lower,
      {"shift: offset is -51", "shift: offset is -51",
       "it must be at least -50, because track (layer 0, sequence 0, head 0) holds position 54 and keeps 3"});
  cache.shift(0, -50, rope_of(rope_pairing::interleaved), 4);
  for (kvmeld::slot_t s = 0; s < 23; ++s) {
    CHECK(x.position(t, s) == position_t(s));
    auto const was = support::get_row(
        kvmeld::strided<float>(const_cast<float*>(before.keys.data()), "LSHTC", extent, 12), t, s);
    if (s < 4) {
      CHECK(support::get_row(x.keys, t, s) == was);
    } else {
      auto const now = in_double(support::get_row(x.keys, t, s));
      auto const wanted = turned(in_double(was), rope_pairing::interleaved, 10000.0, -50);
      for (std::size_t c = 0; c < now.size(); ++c)
        CHECK(std::fabs(now[c] - wanted[c]) <= 4 * 0x1p-24 * largest(wanted));
    }
  }
  CHECK(cache.tokens(0) == 23);
  CHECK(cache.compressed_at(0) == 20);
  cache.truncate(0, 21);
  CHECK(cache.length(0, 0, 0) == 21);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
}

TEST_CASE("an executor whose memory the host cannot read shifts the same bits") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    auto const by = [](std::uint32_t q, position_t offset, rope_pairing pairing) {
      return [=](auto& c) { c.shift(q, offset, rope_of(pairing)); };
    };
    twins pair(policy, 13);
    for (std::uint32_t q : {0u, 1u}) pair.open(q);
    for (int step = 0; step < 6; ++step) {
      pair.append();
      pair.turn(0, by(0, 900, rope_pairing::half_split));
      pair.check();
      pair.compress(kvmeld::shortfall::evict_lowest);
      pair.turn_while_reporting(1, by(1, 55, rope_pairing::interleaved));
      pair.turn(0, by(0, -900, rope_pairing::half_split));
      pair.check();
      pair.turn(1, by(1, -20, rope_pairing::none));
      pair.other_calls();
      pair.check();
    }
  });
}

TEST_CASE("which shifts are refused") {
  support::engine_memory<float> memory(extent);
  support::dice d(1);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  auto const rope = rope_of(rope_pairing::half_split);
  auto const refused = [&](auto call, std::initializer_list<char const*> parts) {
    cache_test::refused(cache, memory, call, parts);
  };
  refused([&](auto& c) { c.shift(3, 1, rope); }, {"shift: sequence is 3", "it must be 0 to 2"});
  refused([&](auto& c) { c.shift(0, 1, rope); }, {"shift: sequence is 0"});
  open(cache, d, 0, 40, 3);
  refused([&](auto& c) { c.shift(0, -1); },
          {"shift: offset is -1", "holds position 0",
           "it must be at least 0, because track (layer 0, sequence 0, head 0) holds position 0"});
  refused([&](auto& c) { c.shift(0, 5, rope); },
          {"shift: slot 0 of track (layer 0, sequence 0, head 0) is frozen"});
  refused([&](auto& c) { c.shift(0, 5, rope, 2); }, {"shift: slot 2 of track", "is frozen"});
  refused([&](auto& c) { c.shift(0, 5, rope, 41); },
          {"shift: first is 41", "it must be 0 to 40, the tokens seen"});
  refused([&](auto& c) { c.shift(0, 5, rope, -1); }, {"shift: first is -1"});
  refused([&](auto& c) { c.shift(0, 2147483647); },
          {"shift: offset is 2147483647",
           "it must be at most 2147483607, so that the tokens of a sequence are at most 2147483647"});
  auto odd = rope;
  odd.rotary_dim = 5;
  refused([&](auto& c) { c.shift(0, 5, odd, 3); }, {"shift: rope.rotary_dim is 5"});
  odd = rope;
  odd.positions = kvmeld::rope_positions::slot;
  refused([&](auto& c) { c.shift(0, 5, odd, 3); }, {"shift: rope.positions is rope_positions::slot",
                                                    "it must be rope_positions::stored, because keys that "
                                                    "turn lie rotated for the positions stored with them"});
  cache.append({0}, {2});
  refused([&](auto& c) { c.shift(0, 5, rope, 3); }, {"shift: number of pending entries of sequence 0 is 2"});
  cache.commit({0}, {0});
  cache.shift(0, 5, rope, 3);
  cache.shift(0, 5);  // frozen keys that lie unrotated
  CHECK(cache.tokens(0) == 50);
  // Values that are channels of the keys.
  kvmeld::strided<float> const keys = memory.tensors().keys;
  kvmeld::cache_options options{extent};
  kvmeld::merged_cache latent{kvmeld::host_executor(1), cache.policy(),
                              kvmeld::kv{keys, kvmeld::latent(keys, extent.value_dim)}, options};
  latent.open(0, 40);
  cache_test::check_text(cache_test::refusal_of([&] { latent.shift(0, 5, rope); }),
                         {"shift: rope.pairing is a rotation"});
  latent.shift(0, 5);
  // Behind one interface.
  auto const held = kvmeld::make_any_cache(std::move(cache));
  kvmeld::any_cache& any = *held;
  any.shift(0, 5);
  CHECK(any.tokens(0) == 55);
}

TEST_CASE("shared rows do not turn: refused, or where the host cannot ask, found") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 1;  // slots 8 to 15 of sequence 0
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::kv const tensors{keys.view(), values.view()};
  kvmeld::cache_options const options{extent};
  auto const rope = rope_of(rope_pairing::half_split);
  support::dice d(4);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    auto const k = support::random_rows(d, 30, extent.key_dim, support::texture::noise);
    for (std::uint32_t s = 0; s < 30; ++s) support::put_row(tensors.keys, t, s, k[s]);
  });
  kvmeld::merged_cache near{kvmeld::host_executor(1), policy, tensors, options};
  near.open(0, 30);
  auto const before = keys.memory;
  cache_test::check_text(cache_test::refusal_of([&] { near.shift(0, 9, rope); }),
                         {"shift: slot 8 of track (layer 0, sequence 0, head 0) is not writable"});
  CHECK(keys.memory == before);
  kvmeld::merged_cache far{support::fenced_executor(), policy, tensors, options};
  far.open(0, 30);
  far.shift(0, 9, rope);
  far.sync_lengths(0);
  CHECK((far.warnings(0) & kvmeld::warning::unrotated) != 0);
  tensor was(extent, extent.key_dim);
  was.memory = before;
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    for (std::uint32_t s = 0; s < 30; ++s) {
      bool const same = support::get_row(tensors.keys, t, s) == support::get_row(was.view(), t, s);
      CHECK(same == (s >= 8 && s < 16));
    }
  });
}

}  // namespace shift_cases
