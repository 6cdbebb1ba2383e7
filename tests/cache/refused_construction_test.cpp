// What a cache refuses to be built from: extents, tensors, and policies whose parts are configured wrongly.
#include "refusal.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refused_construction_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::quantity;

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 64};

template <class Keys, class Values>
std::string refusal_of_tensors(Keys keys, Values values, kvmeld::shape s = extent) {
  kvmeld::cache_options options{};
  options.extent = s;
  return refusal_of([&] {
    kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                         kvmeld::kv{keys, values}, options};
  });
}

template <class Policy> std::string refusal_of_policy(Policy const& policy) {
  support::engine_memory<float> memory(extent);
  return refusal_of([&] { support::make_cache(memory, policy); });
}

// The same through the function that the cache asks.
template <class Policy> void refuses_policy(Policy const& policy, std::initializer_list<char const*> parts) {
  check_text(refusal_of_policy(policy), parts);
  CHECK(refusal_of_policy(policy) == "merged_cache: " + kvmeld::configuration_problem(policy));
}

}  // namespace

TEST_CASE("extents of nothing and of too much") {
  support::engine_memory<float> memory(extent);
  auto const x = memory.tensors();
  auto const with = [&](std::uint32_t kvmeld::shape::*field, std::uint32_t value) {
    kvmeld::shape s = extent;
    s.*field = value;
    return refusal_of_tensors(x.keys, x.values, s);
  };
  using kvmeld::shape;
  std::pair<char const*, std::uint32_t shape::*> const fields[] = {
      {"layers", &shape::layers},     {"sequences", &shape::sequences},
      {"kv_heads", &shape::kv_heads}, {"queries_per_kv_head", &shape::queries_per_kv_head},
      {"key_dim", &shape::key_dim},   {"value_dim", &shape::value_dim},
      {"capacity", &shape::capacity}};
  for (auto const& [name, field] : fields)
    check_text(with(field, 0), {"shape: ", name, " is 0", "must be 1 to"});
  check_text(with(&shape::sequences, 0x40000000u), {"layers * sequences * kv_heads", "2147483647"});
  check_text(with(&shape::layers, 0xffffffffu), {"layers", "2147483647"});
  check_text(with(&shape::capacity, (1u << 30) + 1), {"shape: capacity is 1073741825", "1 to 1073741824"});
  CHECK(kvmeld::detail::extent_problem(extent).empty());
}

TEST_CASE("tensors that cannot serve the extent") {
  support::engine_memory<float> memory(extent);
  auto const x = memory.tensors();
  float* const k = memory.keys.data();
  float* const v = memory.values.data();
  using strided = kvmeld::strided<float>;
  using transposed = kvmeld::transposed<float>;
  CHECK(refusal_of_tensors(x.keys, x.values).empty());
  check_text(
      refusal_of_tensors(strided(k, "LSHTC", extent, 13), x.values),
      {"keys", "merged_cache: keys: number of channels is 13", "12", "it must be 12, as the shape says"});
  check_text(refusal_of_tensors(x.keys, transposed(v, "LSHCT", extent, 7)),
             {"values", "merged_cache: values: number of channels is 7", "8"});
  check_text(refusal_of_tensors(strided(nullptr, "LSHTC", extent, 12), x.values),
             {"keys", "s: base pointer is null", "tensor"});
  check_text(refusal_of_tensors(x.keys, transposed(nullptr, "LSHCT", extent, 8)),
             {"values", "s: base pointer is null"});
  check_text(refusal_of_tensors(strided(k, "LSTTC", extent, 12), x.values),
             {"keys", "merged_cache: keys: slot stride is 0", "L, S, H, T, C"});
  check_text(refusal_of_tensors(x.keys, strided(v, {100, 50, 25, 8, 0}, extent, 8)),
             {"values", "merged_cache: values: channel stride is 0"});
  // An address that no float can have. Only compared, never read.
  auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(k) + 2);
  check_text(
      refusal_of_tensors(strided(odd, "LSHTC", extent, 12), x.values),
      {"keys", "merged_cache: keys: address modulo 4 is 2", "it must be 0, the alignment of an element"});
}

TEST_CASE("scores configured wrongly") {
  refuses_policy(kvmeld::preset::snapkv::with_window(0),
                 {"score::local.window is 0", "merged_cache: policy: score::local.window is 0"});
  for (std::uint32_t kernel : {0u, 4u})
    refuses_policy(
        kvmeld::preset::snapkv::with_window(8, {kernel, kvmeld::pooling_mode::max}),
        {"pooling.kernel is", std::to_string(kernel).c_str(), "merged_cache: policy: pooling.kernel is"});
}

TEST_CASE("selectors configured wrongly") {
  auto const bad = quantity::of_budget(1.5), negative = quantity::of_length(-0.25),
             fine = quantity::entries(1);
  auto h2o = kvmeld::preset::h2o::defaults();
  h2o.select = {bad, fine, fine};
  refuses_policy(h2o, {"select::top.sinks", "1.5", "0 to 1"});
  h2o.select = {fine, negative, fine};
  refuses_policy(h2o, {"select::top.recents", "-0.25", "0 to 1"});
  h2o.select = {fine, fine, bad};
  refuses_policy(h2o, {"select::top.heavy", "1.5", "0 to 1"});
  auto streaming = kvmeld::preset::streaming_llm::with_sinks(2);
  streaming.select = {negative, fine};
  refuses_policy(streaming, {"select::sinks_and_recents.sinks", "-0.25", "0 to 1"});
  streaming.select = {fine, bad};
  refuses_policy(streaming, {"select::sinks_and_recents.recents", "1.5", "0 to 1"});
}

TEST_CASE("identifiers and admissions configured wrongly") {
  auto chelsea = kvmeld::preset::chelsea::llama2();
  for (std::uint32_t chunk : {0u, 1u}) {
    chelsea.identify.chunk = chunk;
    refuses_policy(chelsea, {"identify::chunked_bipartite.chunk is", std::to_string(chunk).c_str(),
                             "merged_cache: policy: identify::chunked_bipartite.chunk is"});
  }
  chelsea.identify.chunk = 256;
  auto const schedule = [&](kvmeld::round_schedule s, std::initializer_list<char const*> parts) {
    chelsea.identify.admission.schedule = s;
    refuses_policy(chelsea, parts);
  };
  schedule({0.0, 0.1, 2, 0.05},
           {"top_share.schedule.initial is 0", "merged_cache: policy: admit::top_share.schedule.initial is"});
  schedule({1.25, 0.1, 2, 0.05}, {"top_share.schedule.initial is 1.25",
                                  "merged_cache: policy: admit::top_share.schedule.initial is"});
  schedule({0.3, -0.5, 2, 0.05}, {"top_share.schedule.alpha is -0.5", "0 to 1"});
  schedule({0.3, 0.1, 2, 1.5}, {"top_share.schedule.floor is 1.5", "0 to 1"});
  auto kvmerger = kvmeld::preset::kvmerger::for_budget();
  for (std::uint32_t bisections : {0u, 65u}) {
    kvmerger.identify.admission.bisections = bisections;
    refuses_policy(kvmerger, {"exact_budget.bisections is", std::to_string(bisections).c_str(), "1 to 64"});
  }
  auto printed = kvmeld::preset::kvmerger::paper_50();
  for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u}) {
    printed.identify.admission.theta = kvmeld::bits_float(bits);
    refuses_policy(printed, {"threshold.theta is ", "a finite number", "everything or nothing"});
  }
}

TEST_CASE("merge functions configured wrongly") {
  auto p = kvmeld::preset::kvmerger::for_budget();
  p.merge.sigma = kvmeld::merge::bandwidth::fixed;
  p.merge.fixed_sigma = 0.0f;
  refuses_policy(p, {"merge::gaussian.fixed_sigma is 0", "above 0"});
  p.merge.fixed_sigma = kvmeld::bits_float(0x7f800000u);
  refuses_policy(p, {"merge::gaussian.fixed_sigma", "finite"});
  p.merge.fixed_sigma = 5.0f;
  CHECK(refusal_of_policy(p).empty());
  p.merge.scale_values_by_set_size = true;
  refuses_policy(p, {"merge::gaussian", "degrees", "scale_values_by_set_size",
                     "merged_cache: policy: merge::gaussian.scale_values_by_set_size is true"});
}

TEST_CASE("the first problem is named, in the order score, selector, identifier, merge function") {
  auto p = kvmeld::preset::kvmerger::for_budget();
  p.merge.scale_values_by_set_size = true;
  p.identify.admission.bisections = 0;
  refuses_policy(p, {"bisections"});
  p.select.recents = quantity::of_budget(2.0);
  refuses_policy(p, {"select::top.recents"});
}

}  // namespace refused_construction_cases
