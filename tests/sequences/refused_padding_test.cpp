// What padded tracks cannot be, by text.
#include "padded.hpp"

#include "layout/tensors.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace refused_padding_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;

namespace {

constexpr kvmeld::shape extent{1, 2, 2, 1, 12, 8, 96};

template <class Policy> std::string construction(Policy const& policy, kvmeld::cache_options options) {
  support::engine_memory<float> memory(extent);
  return refusal_of([&] { cache_for(memory, policy, options); });
}

// 20 entries in one head, 30 in the other.
template <class Cache> void make_uneven(Cache& cache) {
  std::uint32_t const table[] = {20, 30, 0, 0};
  cache.open(0, 60);
  cache.compress({0}, budget::per_track(table));
}

}  // namespace

TEST_CASE("which caches cannot be padded") {
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::cache_options options = padded(support::with_plan());
  check_text(construction(policy, options), {"merged_cache: options: padded is true",
                                             "it must be false with options.whole_plan, whose plans may be "
                                             "edited to lengths that the host does not know"});
  options = padded();
  check_text(construction(kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.3f, 2.0), options),
             {"merged_cache: options: padded is true", "shares entries",
              "it must be false, because the policy shares entries and no bias per slot can express members "
              "(or use preset::ems::collapsed)"});
  CHECK(construction(kvmeld::preset::ems::collapsed(kvmeld::quantity::entries(6), 6, 0.3f, 2.0), options) ==
        "");
  CHECK(construction(policy, options) == "");
  for (auto bias : {kvmeld::bias_support::shared, kvmeld::bias_support::none}) {
    options.bias = bias;
    options.scope = kvmeld::plan_scope::head;
    options.ignore_degree = true;
    check_text(
        construction(policy, options),
        {"merged_cache: options: padded is true",
         "it must be false, because empty slots are masked by a bias (or set options.bias to per_head, "
         "or to shared with options.scope layer or all_layers)",
         "it must be false, because empty slots are masked by a bias (or set options.bias to per_head, "
         "or to shared with options.scope layer or all_layers)"});
    options.scope = kvmeld::plan_scope::layer;
    CHECK((construction(policy, options) == "") == (bias == kvmeld::bias_support::shared));
  }
}

TEST_CASE("calls that would reach across empty slots are refused") {
  support::engine_memory<float> memory(extent);
  auto cache = cache_for(memory, kvmeld::preset::h2o::defaults(), padded());
  cache.open(0, 60);
  support::dice d(1);
  score(cache, d, 0);
  std::uint32_t const table[] = {20, 30, 0, 0};
  cache.compress({0}, budget::per_track(table));
  cache.append({0}, {3});
  cache.commit({0}, {3});
  std::vector<float> const p(4 * 2 * 96);
  auto const rows = kvmeld::rows_by_head<float const>(p.data(), 4, 2, 96);
  cache_test::refused(cache, memory,
                      [&](auto& c) {
                        c.observe_rows({0, 0, 4}, rows);
                      },
                      {"observe: queries[0] is 4", "got 3 tokens",
                       "it must be at most 3, because sequence 0 got 3 tokens since it was last "
                       "compressed (options.padded: older tokens lie before empty slots)"});
  cache.observe_rows({0, 0, 3}, rows);
  for (std::uint32_t frozen : {20u, 21u}) {
    auto const freeze = [&](auto& c) { c.freeze(0, frozen); };
    auto const fork = [&](auto& c) { c.fork(0, 1, frozen); };
    if (frozen == 20) {
      auto copy = support::twin_of(cache);
      freeze(copy);
      fork(copy);
    } else {
      char const* const allowed = "it must be at most 20, the committed entries of the shortest track of "
                                  "sequence 0 before its first empty slot";
      cache_test::refused(cache, memory, freeze,
                          {"freeze: frozen is 21", allowed, "before its first empty slot"});
      cache_test::refused(cache, memory, fork,
                          {"fork: frozen is 21", allowed, "before its first empty slot"});
    }
  }
}

TEST_CASE("empty slots in pages that became shared") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache cache{kvmeld::host_executor(1), policy, kvmeld::kv{keys.view(), values.view()},
                             padded({extent})};
  make_uneven(cache);
  cache.append({0}, {8});
  cache.commit({0}, {8});
  keys.shared[static_cast<std::size_t>(keys.table[2])] =
      1;  // slots 16 to 23, of which 20 to 23 are empty in head 0
  check_text(refusal_of([&] { cache.compress({0}, budget::entries(25)); }),
             {"compress: slot 23 of track (layer 0, sequence 0, head 0) is not writable",
              "lies behind the empty slot 20",
              "it must be writable, because it lies behind the empty slot 20 (options.padded)"});
  keys.shared[static_cast<std::size_t>(keys.table[2])] = 0;
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 1;  // slots 8 to 15
  cache.compress({0}, budget::entries(25));
  check_padding(cache, 0, 25);
}

TEST_CASE("saved ledgers go back to caches that are padded as theirs was") {
  support::engine_memory<float> memory(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  auto cache = cache_for(memory, policy, padded());
  auto plain = cache_for(memory, policy);
  make_uneven(cache);
  make_uneven(plain);
  check_text(refusal_of([&] { plain.resume(1, cache.save(0)); }), {"it must be 0, as in this cache"});
  check_text(refusal_of([&] { cache.resume(1, plain.save(0)); }),
             {"resume: options.padded of the saved ledger is 0"});
  // What contradicts itself.
  auto const broken = [&](auto change, char const* text) {
    auto copy = support::twin_of(cache);
    change(copy.ledger());
    auto const bytes = copy.save(0);
    check_text(refusal_of([&] { cache.resume(1, bytes); }), {"resume: saved track (layer 0, head", text});
  };
  using kvmeld::ledger_ref;
  kvmeld::track const t = kvmeld::make_track(extent, 0, 0, 0);
  broken([&](ledger_ref const& l) { l.word(t, kvmeld::track_word::empty) = 9; },
         "another number of empty slots");
  broken([&](ledger_ref const& l) { l.word(t, kvmeld::track_word::empty) = 31; },
         "empty slots that cannot be");
  broken([&](ledger_ref const& l) { l.word(t, kvmeld::track_word::padded_from) = 0; },
         "empty slots that cannot be");
  broken([&](ledger_ref const& l) { l.word(t, kvmeld::track_word::padded_from) = 23; },
         "stands for no tokens");
  broken([&](ledger_ref const& l) { l.degree[l.at(t, 5)] = 0.0f; }, "stands for no tokens");
  broken([&](ledger_ref const& l) { l.frozen[0] = 21; }, "an empty slot in its frozen beginning");
  broken([&](ledger_ref const& l) { l.length[1] = 29; },
         "another length than a track that it is padded with");
  cache.resume(1, cache.save(0));
  check_padding(cache, 1, 30);
}

}  // namespace refused_padding_cases
