// Every preset with numbers for short tracks, and mixes of their parts: what the tests that run "every
// policy" run.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <type_traits>

namespace support {

inline kvmeld::round_schedule steep() { return {0.45, 0.05, 3, 0.05}; }

template <class F> void each_eviction_preset(F f) {
  using kvmeld::quantity;
  f("streaming_llm", kvmeld::preset::streaming_llm::with_sinks(3));
  f("h2o", kvmeld::preset::h2o::defaults());
  f("snapkv", kvmeld::preset::snapkv::with_window(6, {5, kvmeld::pooling_mode::mean}));
  f("tova", kvmeld::preset::tova::defaults());
  f("kvzip", kvmeld::preset::kvzip::for_budget(quantity::entries(3), quantity::entries(1)));
  f("kvzip_plus", kvmeld::preset::kvzip_plus::for_budget({}, quantity::entries(3), quantity::entries(1)));
  f("kvzap", kvmeld::preset::kvzap::with_threshold(0.5f, quantity::entries(3), quantity::entries(1)));
  f("scissorhands", kvmeld::preset::scissorhands::defaults(7));
  f("keydiff", kvmeld::preset::keydiff::for_budget(quantity::entries(3), quantity::entries(1)));
  f("leverage", kvmeld::preset::leverage::for_budget(quantity::entries(3), quantity::entries(1)));
  auto compactor = kvmeld::preset::compactor::with_rope({});
  compactor.score.chunk = 16;  // several chunks in short tracks
  f("compactor", compactor);
  f("expected_attention",
    kvmeld::preset::expected_attention::with_rope({}, quantity::entries(3), quantity::entries(1)));
  f("triattention", kvmeld::preset::triattention::with_rope({}, quantity::entries(3), quantity::entries(1)));
  f("rkv", kvmeld::preset::rkv::for_budget(quantity::entries(3), quantity::entries(1)));
  f("dropkv", kvmeld::preset::dropkv::with_window(5, quantity::entries(3), quantity::entries(1)));
  auto matching = kvmeld::preset::attention_matching::for_budget(quantity::entries(3), quantity::entries(1));
  matching.score.kept.count = 5;
  f("attention_matching", matching);
  f("snapkv, fitted", kvmeld::preset::fitting(kvmeld::preset::snapkv::with_window(6), {4}));
  f("knorm", kvmeld::preset::knorm::for_budget());
  f("lagkv", kvmeld::preset::lagkv::with_lag(5, 2));
}

template <class F> void each_cam_preset(F f) {
  namespace cam = kvmeld::preset::cam;
  f("cam over streaming_llm", cam::over_streaming_llm());
  f("cam over h2o", cam::over_h2o());
  f("cam over streaming_llm as printed", cam::as_printed(cam::over_streaming_llm(), 5));
  f("cam over h2o as printed, by the maximum", cam::as_printed(cam::over_h2o(), 6, true));
  auto some = cam::over(kvmeld::preset::scissorhands::defaults().select, kvmeld::score::above_mean{7});
  some.identify.targets = 5;
  some.identify.mode = kvmeld::identify::mask_mode::threshold;
  f("cam over scissorhands, five targets", some);
}

template <class F> void each_keepkv_preset(F f) {
  auto keepkv = kvmeld::preset::keepkv::for_budget();
  f("keepkv", keepkv);
  keepkv.identify.chunk = 14;
  f("keepkv in chunks of 14", keepkv);
}

template <class F> void each_kvmerger_preset(F f) {
  f("kvmerger for a budget", kvmeld::preset::kvmerger::for_budget());
  f("kvmerger as printed", kvmeld::preset::kvmerger::paper_50());
}

template <class F> void each_chelsea_preset(F f) {
  using kvmeld::quantity;
  auto chelsea = kvmeld::preset::chelsea::with_schedule(steep(), quantity::entries(3), quantity::entries(5));
  f("chelsea", chelsea);
  chelsea.identify.chunk = 12;
  f("chelsea in chunks of 12", chelsea);
}

template <class F> void each_centroid_preset(F f) {
  using kvmeld::quantity;
  auto centroids = kvmeld::preset::with_centroids(
      kvmeld::preset::kvzip::for_budget(quantity::entries(3), quantity::entries(1)),
      {kvmeld::rope_pairing::half_split}, quantity::of_budget(0.4));
  f("kvzip, centroids", centroids);
  centroids.identify = {8, 2};
  f("kvzip, centroids of short stretches, of keys as they lie", centroids);
}

// EMS for values that are noise. Those that share want options.members.
template <class F> void each_ems_preset(F f) {
  using namespace kvmeld;
  f("ems", preset::ems::shared(quantity::entries(6), 6, 0.05f));
  f("ems collapsed", preset::ems::collapsed(quantity::entries(6), 6, 0.05f));
  auto needle = preset::ems::needle();
  needle.select.window = quantity::entries(12);
  needle.identify.admission.theta = 0.02f;
  f("ems for needles", needle);
}

// Centres found otherwise, and other scores for members.
template <class F> void each_center_mix(F f) {
  using namespace kvmeld;
  select::tiers const tiers{quantity::entries(2), quantity::entries(4), quantity::entries(3), 2.5};
  f("nearest by the product as printed, shared",
    policy{score::local{5, {3, pooling_mode::mean}}, tiers,
           identify::nearest_center<admit::threshold, identify::resemblance::signed_product>{{0.05f, true}},
           merge::shared{}});
  f("nearest key, collapsed",
    policy{score::global_local{5, {}}, tiers,
           identify::nearest_center<admit::threshold, identify::resemblance::keys>{{0.4f}},
           merge::collapsed{}});
}

template <class F> void each_preset(F f) {
  each_eviction_preset(f);
  each_kvmerger_preset(f);
  each_chelsea_preset(f);
  each_centroid_preset(f);
  each_cam_preset(f);
  each_keepkv_preset(f);
}

// `f` for policies as they are: one of each way through the rounds as its own type, all others composed at
// run time, which is one type and compiles once. tests/composition compares compositions with the policies
// that they are made of.
template <class F> auto few_types(F f) {
  return [=](char const* name, auto const& policy) {
    using type = std::decay_t<decltype(policy)>;
    if constexpr (std::is_same_v<type, kvmeld::preset::streaming_llm::type> ||
                  std::is_same_v<type, kvmeld::preset::h2o::type> ||
                  std::is_same_v<type, kvmeld::preset::kvmerger::type> ||
                  std::is_same_v<type, kvmeld::preset::chelsea::type> ||
                  !std::is_constructible_v<kvmeld::compose::any_merge, decltype(policy.merge)>) {
      f(name, policy);
    } else {
      f(name, kvmeld::compose::composed_of(policy));
    }
  };
}

// Parts in combinations that no preset has.
template <class F> void each_consecutive_mix(F f) {
  using namespace kvmeld;
  select::top const half_recent{quantity::entries(2), quantity::of_budget(0.25), quantity::of_budget(0.25)};
  identify::consecutive_threshold<admit::threshold> chained{
      identify::anchor_rule::chain, identify::pivot_rule::newest, true, {0.4f}};
  f("chained sets, averaged", policy{score::global{}, half_recent, chained, merge::average{}});
  identify::consecutive_threshold<admit::exact_budget> exact{
      identify::anchor_rule::chain, identify::pivot_rule::highest_score, true, {12}};
  f("exact sets, dropped",
    policy{score::local{4, {3, pooling_mode::max}}, half_recent, exact, merge::drop{}});
  identify::consecutive_threshold<admit::exact_budget> const sets{};
  f("exact sets by mass", policy{score::global{}, half_recent, sets, merge::mass_preserving{}});
}

template <class F> void each_bipartite_mix(F f) {
  using namespace kvmeld;
  select::top const heavy{quantity::entries(1), quantity::entries(4), quantity::of_budget(0.25)};
  identify::chunked_bipartite<admit::exact_budget> const exact{16, {}};
  f("bipartite to the budget, by score", policy{score::local{8, {}}, heavy, exact, merge::score_weighted{}});
  merge::gaussian wide{};
  wide.sigma = merge::bandwidth::eq7_000;
  identify::chunked_bipartite<admit::threshold> const similar{20, {0.3f}};
  f("bipartite by threshold, Gaussian",
    policy{score::none{}, select::sinks_and_recents{quantity::entries(2), quantity::entries(4)}, similar,
           wide});
  f("leverage_dropkv", preset::leverage_dropkv::for_budget(quantity::entries(4), quantity::entries(2)));
  f("spans, dropped", policy{score::global{}, heavy, identify::local_span{}, merge::drop{}});
  f("nothing identified", policy{score::global{}, heavy, identify::none{}, merge::drop{}});
}

}  // namespace support
