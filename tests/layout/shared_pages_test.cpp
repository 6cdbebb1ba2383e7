// Pages that others use too: never written, never moved, and their entries pinned.
#include "policies.hpp"

namespace shared_pages_cases {

using namespace layout_test;

namespace {

using tensor = paged_tensor<float, 7>;

// Bytes of the shared pages of a pool.
support::byte_list shared_bytes(tensor const& x) {
  support::byte_list out;
  std::size_t const page = x.memory.size() / x.shared.size();
  for (std::size_t p = 0; p < x.shared.size(); ++p) {
    if (x.shared[p] == 0) continue;
    auto const* const begin = reinterpret_cast<std::byte const*>(x.memory.data() + p * page);
    out.insert(out.end(), begin, begin + page * sizeof(float));
  }
  return out;
}

// Keys shared on the first `key_pages` pages of sequence 0, values on the first `value_pages`.
template <class Policy>
void leaves_shared_pages_alone(char const* name, Policy const& policy, std::uint32_t key_pages,
                               std::uint32_t value_pages) {
  CAPTURE(std::string(name));
  CAPTURE(key_pages);
  CAPTURE(value_pages);
  tensor_pair<tensor, tensor> x, plain;
  support::dice d(31);
  write(x, plain, d, 0, 0, 57);
  write(x, plain, d, 1, 0, 50);
  for (std::uint32_t p = 0; p < key_pages; ++p) x.keys.shared[static_cast<std::size_t>(x.keys.table[p])] = 1;
  for (std::uint32_t p = 0; p < value_pages; ++p)
    x.values.shared[static_cast<std::size_t>(x.values.table[p])] = 1;
  auto const keys = shared_bytes(x.keys), values = shared_bytes(x.values);
  CHECK((key_pages == 0) == keys.empty());

  kvmeld::cache_options options{};
  options.extent = extent;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), policy, x.view(), options};
  kvmeld::merged_cache frozen{kvmeld::host_executor(1), policy, plain.view(), options};
  std::uint32_t const pinned = 7 * kvmeld::max_of(key_pages, value_pages);
  cache.open(0, 57);
  cache.open(1, 50);
  frozen.open(0, 57, pinned);
  frozen.open(1, 50);
  support::dice first = d, second = d;
  score(cache, first);
  score(frozen, second);
  cache.compress({0, 1}, kvmeld::budget::entries(40));
  frozen.compress({0, 1}, kvmeld::budget::entries(40));

  CHECK(shared_bytes(x.keys) == keys);
  CHECK(shared_bytes(x.values) == values);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    CHECK(cache.ref().length(t) < 57);
    for (kvmeld::slot_t s = 0; s < pinned; ++s) {
      CHECK(cache.ref().degree(t, s) == 1.0f);
      CHECK(cache.ref().position(t, s) == static_cast<kvmeld::position_t>(s));
    }
    // The same plan as with a frozen beginning of that length.
    CHECK(cache.ref().length(t) == frozen.ref().length(t));
    CHECK(wrong_rows(x.keys, x.keys.view(), plain.keys.view(), t, cache.ref().length(t)) == 0);
    CHECK(wrong_rows(x.values, x.values.view(), plain.values.view(), t, cache.ref().length(t)) == 0);
    for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s)
      CHECK(cache.ref().position(t, s) == frozen.ref().position(t, s));
  });
}

}  // namespace

TEST_CASE("shared pages are pinned and never written") {
  support::each_preset(support::few_types([](char const* name, auto const& policy) {
    leaves_shared_pages_alone(name, policy, 2, 2);
    leaves_shared_pages_alone(name, policy, 2, 0);
    leaves_shared_pages_alone(name, policy, 0, 1);
  }));
}

TEST_CASE("the shielded beginning reaches to the last shared page") {
  tensor_pair<tensor, tensor> x, plain;
  support::dice d(33);
  write(x, plain, d, 0, 0, 57);
  x.values.shared[static_cast<std::size_t>(x.values.table[3])] = 1;  // slots 21 to 27
  auto const values = shared_bytes(x.values);
  kvmeld::cache_options options{};
  options.extent = extent;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2), x.view(),
                             options};
  cache.open(0, 57);
  cache.compress({0}, kvmeld::budget::entries(35));
  CHECK(shared_bytes(x.values) == values);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    CHECK(cache.ref().length(t) == 35);
    for (kvmeld::slot_t s = 0; s < 28; ++s) CHECK(cache.ref().position(t, s) == static_cast<int>(s));
    CHECK(cache.ref().position(t, 28) == 57 - 7);
  });
}

}  // namespace shared_pages_cases
