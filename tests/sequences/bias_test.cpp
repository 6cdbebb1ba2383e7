// What a cache's consumer can add to logits, and what a policy needs it to add.
#include "life.hpp"

namespace bias_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;

namespace {

constexpr kvmeld::shape extent{1, 1, 2, 2, 12, 8, 64};

auto chelsea() {
  return kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                kvmeld::quantity::entries(4));
}

template <class Policy>
std::string made_with(Policy const& policy, kvmeld::bias_support bias,
                      kvmeld::plan_scope scope = kvmeld::plan_scope::head, bool ignore = false) {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.bias = bias;
  options.scope = scope;
  options.ignore_degree = ignore;
  return refusal_of([&] { support::make_cache(memory, policy, options); });
}

}  // namespace

TEST_CASE("policies whose entries carry degrees need a consumer that takes them") {
  using kvmeld::bias_support;
  using kvmeld::plan_scope;
  CHECK(made_with(chelsea(), bias_support::per_head).empty());
  check_text(
      made_with(chelsea(), bias_support::none),
      {"merged_cache: options: bias is bias_support::", "bias_support::none", "per_head",
       "it must be per_head, or shared with options.scope layer or all_layers, because merged entries stand "
       "for several tokens (or set options.ignore_degree)"});
  check_text(made_with(chelsea(), bias_support::none, plan_scope::layer), {"bias_support::none"});
  check_text(made_with(chelsea(), bias_support::shared),
             {"merged_cache: options: bias is bias_support::", "bias_support::shared", "options.scope",
              "layer or all_layers"});
  CHECK(made_with(chelsea(), bias_support::shared, plan_scope::layer).empty());
  CHECK(made_with(chelsea(), bias_support::shared, plan_scope::all_layers).empty());
  CHECK(made_with(chelsea(), bias_support::none, plan_scope::head, true).empty());
  CHECK(made_with(chelsea(), bias_support::shared, plan_scope::head, true).empty());
  support::each_eviction_preset([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    CHECK(made_with(policy, bias_support::none).empty());
    CHECK(made_with(policy, bias_support::shared).empty());
  });
  CHECK(
      made_with(kvmeld::preset::kvmerger::paper_50(), bias_support::none).empty());  // no degrees as printed
  check_text(made_with(kvmeld::preset::kvmerger::for_budget(), bias_support::none), {"bias_support::none"});
}

TEST_CASE("ignored degrees weigh nothing in attention and in the written bias") {
  support::engine_memory<float> memory(extent), same(extent);
  support::dice d(2), same_dice = d;
  kvmeld::cache_options ignoring{};
  ignoring.ignore_degree = true;
  auto plain = support::make_cache(memory, chelsea());
  open(plain, d, 0, 60);
  plain.compress({0}, budget::entries(24));
  auto cache = support::make_cache(same, chelsea(), ignoring);  // its plans are the same
  open(cache, same_dice, 0, 60);
  cache.compress({0}, budget::entries(24));
  kvmeld::track const t = cache.ref().where(0, 0, 1);
  bool merged = false;
  for (kvmeld::slot_t s = 0; s < 24; ++s) {
    merged = merged || plain.ref().log_degree(t, s) > 0.0f;
    CHECK(cache.ref().log_degree(t, s) == 0.0f);
    CHECK(cache.ref().degree(t, s) == plain.ref().degree(t, s));
  }
  CHECK(merged);

  std::vector<float> q(4 * 12), out(4 * 8), expected(4 * 8), bias(2 * 64);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const attend = [&](auto& c, kvmeld::attention_params const& params, std::vector<float>& to) {
    kvmeld::attention::attend(c.executor(), {0, 0, 1}, kvmeld::rows_by_token<float const>(q.data(), 1, 4, 12),
                              c.ref(), kvmeld::rows_by_token(to.data(), 1, 4, 8), {}, params);
  };
  kvmeld::attention_params without;
  without.use_degree = false;
  attend(cache, {}, out);
  attend(plain, without, expected);
  CHECK(support::same_bits(out, expected));
  attend(plain, {}, expected);
  CHECK_FALSE(support::same_bits(out, expected));
  std::uint32_t const slots[] = {0};
  kvmeld::attention::write_log_degree(cache.executor(), cache.ref(), 0, {slots, 1},
                                      kvmeld::rows_by_head(bias.data(), 1, 2, 64));
  for (std::uint32_t s = 0; s < 24; ++s) CHECK(bias[s] == 0.0f);
}

TEST_CASE("ignored degrees weigh nothing in scores either") {
  support::engine_memory<float> memory(extent), same(extent);
  support::dice d(6), same_dice = d;
  auto const policy = kvmeld::preset::kvmerger::for_budget();
  kvmeld::cache_options ignoring{};
  ignoring.ignore_degree = true;
  auto plain = support::make_cache(memory, policy);
  open(plain, d, 0, 60);
  plain.compress({0}, budget::entries(24));
  auto cache = support::make_cache(same, policy, ignoring);
  open(cache, same_dice, 0, 60);
  cache.compress({0}, budget::entries(24));
  auto const scores = [](auto const& c) {
    std::vector<float> out;
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < c.ref().length(t); ++s)
        out.push_back(c.ledger().channel_data[0][c.ledger().at(t, s)]);
    });
    return out;
  };
  std::vector<float> q(4 * 12), lse(4, 3.0f);
  for (float& x : q) x = static_cast<float>(d.normal());
  kvmeld::attention_params without;
  without.use_degree = false;
  auto const queries = kvmeld::rows_by_token<float const>(q.data(), 1, 4, 12);
  auto const norms = kvmeld::rows_by_head<float const>(lse.data(), 1, 4, 1);
  auto const with = support::twin_of(plain);
  plain.observe({0, 0, 1}, queries, norms, without);
  cache.observe({0, 0, 1}, queries, norms);
  CHECK(scores(cache) == scores(plain));
  auto degrees = support::twin_of(with);
  degrees.observe({0, 0, 1}, queries, norms);
  CHECK(scores(degrees) != scores(plain));
}

}  // namespace bias_cases
