// Changed bytes of saved sequences: `resume` refuses them and changes nothing, or the cache it leaves can be
// lived with.
#include "choices.hpp"
#include "compositions.hpp"
#include "sequences/saved_edits.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

#include <kvmeld/testing.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace {

using fuzz::choices;
using kvmeld::budget;

constexpr kvmeld::shape extent{1, 3, 2, 1, 4, 3, 16};

// False if the call was refused.
template <class F> bool attempt(F call) {
  try {
    call();
    return true;
  } catch (kvmeld::invalid_argument const&) {
    return false;
  }
}

// Sequence 0 has lived and sequence 1 is closed.
template <class Policy> struct world {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, std::declval<Policy const&>())) cache;

  world(Policy const& policy, std::uint64_t seed) : cache(support::make_cache(memory, policy, options())) {
    support::dice d(seed);
    memory.fill_sequence(d, 0, 0, 12, support::texture::walk);
    cache.open(0, 12, d.below(3));
    score(d, 0);
    attempt([&] { cache.compress({0}, budget::entries(9), kvmeld::shortfall::evict_lowest); });
    if (d.chance(0.7)) cache.append({0}, {d.between(1, 3)});
    if (d.chance(0.5)) attempt([&] { cache.commit({0}, {1}); });
  }
  static kvmeld::cache_options options() {
    return support::with_plan(kvmeld::shares_entries<typename Policy::merge_type>::value ? 48 : 0);
  }
  void score(support::dice& d, std::uint32_t q) {
    kvmeld::ledger_ref const& l = cache.ledger();
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (std::uint32_t c = 0; c < l.channels.count; ++c)
        support::set_scores(l, t, support::random_scores(d, l.length[t.index]), c);
      l.word(t, kvmeld::track_word::observed_rows) = 1;
    });
  }
  void sound(char const* after) const {
    std::string const broken = kvmeld::testing::invariant_problem(cache);
    if (!broken.empty()) fuzz::fail(std::string(after) + ": " + broken);
  }
};

template <class Policy> void resume_and_live(Policy const& policy, choices& c) {
  world<Policy> w(policy, c.below(256));
  support::byte_list const bytes = saved_edits::spoiled(w.cache.save(0), c);

  support::byte_list const ledger = support::ledger_bytes(w.cache), rows = w.memory.bytes();
  if (!attempt([&] { w.cache.resume(1, bytes); })) {
    fuzz::require(support::ledger_bytes(w.cache) == ledger, "resume refused, but the ledger changed");
    fuzz::require(w.memory.bytes() == rows, "resume refused, but rows changed");
    return;
  }
  w.sound("resume");
  fuzz::require(w.cache.save(1) == bytes, "save gives other bytes than resume took");
  support::dice d(7);
  bool const scored = c.chance(0.5);
  for (int step = 0; step < 12; ++step) {
    switch (c.below(9)) {
    case 0: attempt([&] { w.cache.append({1}, {c.below(4)}); }); break;
    case 1: attempt([&] { w.cache.commit({1}, {c.below(3)}); }); break;
    case 2: attempt([&] { w.cache.truncate(1, w.cache.tokens(1) - c.below(3)); }); break;
    case 3: attempt([&] { w.cache.shift(1, static_cast<int>(c.below(9)) - 4); }); break;
    case 4: attempt([&] { w.cache.fork(1, 2); }); break;
    case 5: attempt([&] { w.cache.renumber(1); }); break;
    case 6: {
      int const first = static_cast<int>(c.below(20));
      attempt([&] { w.cache.drop_positions(1, first, first + static_cast<int>(c.below(9))); });
      break;
    }
    default:
      if (scored) w.score(d, 1);
      attempt(
          [&] { w.cache.compress({1}, budget::entries(c.between(3, 12)), kvmeld::shortfall::evict_lowest); });
    }
    w.sound("a call after resume");
  }
  attempt([&] { w.cache.close(2); });
  w.cache.close(1);
  w.sound("close");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices c(data, size);
  if (c.chance(0.2)) {
    resume_and_live(fuzz::sharing(), c);
  } else {
    resume_and_live(c.pick(fuzz::compositions()), c);
  }
  return 0;
}
