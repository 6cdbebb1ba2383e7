// Rows behind the end of a shortened track are never read again: NaN in all of them changes nothing.
#include "life.hpp"

#include <kvmeld/testing.hpp>

namespace emptied_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{1, 2, 2, 2, 12, 8, 72};

// What is left of two sequences that are compressed, grow, are attended to and compressed again.
template <class Policy>
std::vector<support::byte_list> live(Policy const& policy, bool poisoned, bool zeroed) {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.zero_emptied = zeroed;
  auto cache = cache_for(memory, policy, options);
  support::dice d(3);
  for (std::uint32_t q : {0u, 1u}) open(cache, d, q, 60 - 7 * q);
  auto const compress = [&](std::uint32_t entries) {
    kvmeld::testing::watch const before(cache);
    cache.compress({0, 1}, budget::entries(entries));
    CHECK(before.after_compress(cache, {0, 1}) == "");
    if (poisoned) CHECK(before.poison_emptied(cache, {0, 1}) != 0);
  };
  std::vector<support::byte_list> out;
  std::vector<std::uint32_t> const slots{0, 1}, one{1, 1};
  for (std::uint32_t round = 0; round < 3; ++round) {
    compress(30 - round);
    std::vector<float> query(std::size_t{2} * 4 * 12), result(std::size_t{2} * 4 * 8);
    for (float& x : query) x = static_cast<float>(d.normal());
    kvmeld::attention::attend(cache.executor(), {0, slots, one},
                              kvmeld::rows_by_token<float const>(query.data(), 1, 4, 12), cache.ref(),
                              kvmeld::rows_by_token(result.data(), 1, 4, 8));
    out.push_back(support::bytes_of(result));
    for (std::uint32_t q : slots) {
      feed(cache, d, q, 4);
      out.push_back(digest(cache, q));
    }
  }
  return out;
}

}  // namespace

TEST_CASE("what is left in emptied rows is never read, for every preset") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    auto const wanted = live(policy, false, false);
    CHECK(live(policy, true, false) == wanted);
    CHECK(live(policy, false, true) == wanted);
  });
}

}  // namespace emptied_cases
