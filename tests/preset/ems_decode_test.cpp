// EMS while a sequence grows: every token appended, attended to, observed, and compressed every so often,
// against the reference run from end to end.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/ems_decode.hpp"
#include "support/ems_view.hpp"
#include "support/random_cache.hpp"

namespace ems_decode_cases {

using kvmeld::quantity;
using support::dice;

namespace {

namespace ems = kvmeld::preset::ems;

struct run {
  std::size_t steps = 0, members = 0, merged = 0;
  double worst = 0, worst_lse = 0;
};

// One KV head with `group` query heads. The last token is observed with the log-sum-exps that attention gave.
template <class Policy>
run generate(dice& d, Policy policy, std::uint32_t interval, kvmeld::attention_params const& params,
             support::tally& count) {
  std::uint32_t const window = policy.score.window, budget = window + d.between(4, 16),
                      prompt = budget + d.below(30), steps = 40 + d.below(30), group = d.between(1, 4);
  kvmeld::shape const s{
      1, 1, 1, group, 2 * d.between(1, 12), d.between(1, 16), std::max(prompt, budget + interval) + 1};
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  support::engine_memory<float> memory(s);
  kvmeld::cache_options sizes{};
  sizes.members =
      Policy::merge_type::facts.shares ? ems::members_for(budget, policy.select.magnification) : 0;
  auto cache = make_cache(memory, policy, sizes);
  support::rows k = support::random_rows(d, prompt + steps, s.key_dim, support::texture::clusters),
                v = support::random_rows(d, prompt + steps, s.value_dim, support::texture::clusters);
  for (auto* all : {&k, &v})
    for (auto& row : *all)
      for (float& x : row) x += 0.4f;
  auto const queries = support::random_rows(d, (prompt + steps) * group, s.key_dim, support::texture::noise);
  auto const exactly = [](std::vector<float> const& row) { return reference::row(row.begin(), row.end()); };

  reference::attention_options options;
  options.scale = 1 / std::sqrt(double{1} * s.key_dim);
  options.softcap = static_cast<double>(params.softcap);
  reference::rotary_options rotary;
  rotary.pairs = params.rope.pairing == kvmeld::rope_pairing::none ? reference::rotary_pairs::none
                 : params.rope.pairing == kvmeld::rope_pairing::half_split
                     ? reference::rotary_pairs::half_split
                     : reference::rotary_pairs::interleaved;
  auto const reference_options = support::ems_options_of(policy, budget, sizes.members);

  // The prompt: all of its queries, causal.
  cache.open(0, prompt);
  memory.fill(t, 0, {k.begin(), k.begin() + prompt}, {v.begin(), v.begin() + prompt});
  std::vector<float> q, out, lse;
  auto const attend = [&](std::uint32_t first, std::uint32_t tokens) {
    q.clear();
    for (std::uint32_t i = first * group; i < (first + tokens) * group; ++i)
      q.insert(q.end(), queries[i].begin(), queries[i].end());
    out.assign(tokens * group * s.value_dim, 0.0f);
    lse.assign(tokens * group, 0.0f);
    auto const rows = kvmeld::rows_by_token<float const>(q.data(), tokens, group, s.key_dim);
    kvmeld::attention::attend(cache.executor(), {0, 0, tokens}, rows, cache.ref(),
                              kvmeld::rows_by_token(out.data(), tokens, group, s.value_dim),
                              kvmeld::rows_by_head(lse.data(), tokens, group, 1), params);
    cache.observe({0, 0, tokens}, rows, kvmeld::rows_by_head<float const>(lse.data(), tokens, group, 1),
                  params);
  };
  attend(0, prompt);
  cache.compress({0}, kvmeld::budget::entries(budget));

  reference::matrix first_keys, first_values;
  for (std::uint32_t i = 0; i < prompt; ++i) {
    first_keys.push_back(exactly(k[i]));
    first_values.push_back(exactly(v[i]));
  }
  reference::ems_state start = reference::ems_fresh(first_keys, first_values);
  reference::matrix rows(prompt, reference::row(prompt, 0.0));
  auto causal = options;
  causal.causal = true;
  for (std::uint32_t g = 0; g < group; ++g) {
    reference::matrix head;
    for (std::uint32_t i = 0; i < prompt; ++i) head.push_back(exactly(queries[i * group + g]));
    auto const seen = reference::attend_shared(head, start, causal, rotary);
    for (std::uint32_t i = 0; i < prompt; ++i)
      for (std::uint32_t j = 0; j < prompt; ++j) rows[i][j] += seen.probability[i][j] / group;
  }
  reference::ems_observe(start, rows, window);
  auto const compressed = reference::ems_compress(start, reference_options);
  bool certain = support::decided(compressed, start);
  std::vector<reference::ems_token> tokens;
  for (std::uint32_t i = prompt; i < prompt + steps; ++i) {
    reference::matrix heads;
    for (std::uint32_t g = 0; g < group; ++g) heads.push_back(exactly(queries[i * group + g]));
    tokens.push_back({exactly(k[i]), exactly(v[i]), heads});
  }
  auto const expected =
      reference::ems_decode(compressed.after, tokens, reference_options, interval, options, rotary);
  // Errors add up over the steps, so that decisions have to be clearer than those of one compression.
  certain = certain && expected.score_margin > 2e-5 && expected.similarity_margin > 2e-5;
  if (!certain) {
    ++count.skipped;
    return {};
  }
  ++count.compared;
  run r;
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::uint32_t const n = cache.longest(0);
    memory.fill(t, n, {k[prompt + step]}, {v[prompt + step]});
    cache.append({0}, {1});
    cache.commit({0}, {1});
    attend(prompt + step, 1);
    for (std::uint32_t g = 0; g < group; ++g) {
      for (std::uint32_t c = 0; c < s.value_dim; ++c)
        r.worst = std::max(
            r.worst, std::fabs(static_cast<double>(out[g * s.value_dim + c]) - expected.outputs[step][g][c]));
      r.worst_lse = std::max(r.worst_lse, std::fabs(static_cast<double>(lse[g]) - expected.lse[step][g]));
    }
    if ((step + 1) % interval == 0) cache.compress({0}, kvmeld::budget::entries(budget));
    ++r.steps;
  }
  auto const got = support::read_ems(cache.ref(), t, window);
  CHECK(support::ledger_difference(support::by_position(expected.after), support::by_position(got)) == "");
  CHECK(r.worst < 1e-4);
  CHECK(r.worst_lse < 1e-4);
  double degrees = 0;
  for (auto const& slot : got.slots) degrees += slot.degree;
  r.members = got.members.size();
  r.merged = static_cast<std::size_t>(degrees) - got.slots.size();
  return r;
}

template <class Make> void generate_often(std::uint64_t seed, Make make, bool rotates) {
  dice d(seed);
  support::tally count;
  std::size_t merged = 0;
  for (int i = 0; i < 90; ++i) {
    std::uint32_t const window = d.between(1, 8), intervals[] = {1, 1, 2, 5, 8};
    kvmeld::attention_params params;
    if (d.chance(0.3)) params.softcap = 4.0f;
    constexpr kvmeld::rope_pairing ways[] = {kvmeld::rope_pairing::none, kvmeld::rope_pairing::half_split,
                                             kvmeld::rope_pairing::interleaved};
    if (rotates) params.rope.pairing = d.pick(ways);
    merged += generate(d, make(d, window), d.pick(intervals), params, count).merged;
  }
  MESSAGE("compared ", count.compared, " runs, skipped ", count.skipped,
          "; tokens merged at their ends: ", merged);
  CHECK(count.compared > 40);
  CHECK(merged > 400);
}

}  // namespace

TEST_CASE("EMS with shared entries generates as the reference does, rotated or not") {
  generate_often(
      221,
      [](dice& d, std::uint32_t window) {
        return ems::shared(quantity::entries(window), window, d.pick({0.3f, 0.6f}), d.pick({2.0, 4.0}));
      },
      true);
}

TEST_CASE("EMS with collapsed entries generates as the reference does") {
  generate_often(
      222,
      [](dice& d, std::uint32_t window) {
        return ems::collapsed(quantity::entries(window), window, d.pick({0.3f, 0.6f}), d.pick({2.0, 4.0}));
      },
      false);
}

}  // namespace ems_decode_cases
