// A padded cache beside one that is not, on equal tokens.
#pragma once

#include "life.hpp"

#include <kvmeld/testing.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace sequences_test {

// Every preset that may be padded.
template <class F> void each_padded_policy(F f) {
  each_policy([&](char const* name, auto const& policy) {
    // Chunks of attention are counted in slots, with the empty ones.
    if (kvmeld::detail::fold_of(policy.score).chunk != 0) return;
    if constexpr (!kvmeld::shares_entries<typename std::decay_t<decltype(policy)>::merge_type>::value)
      f(name, policy);
  });
}

inline kvmeld::cache_options padded(kvmeld::cache_options options = {}) {
  options.padded = true;
  return options;
}

// Slots of a track that hold an entry, by degree alone.
template <class Cache> std::vector<kvmeld::slot_t> held_slots(Cache const& cache, kvmeld::track t) {
  std::vector<kvmeld::slot_t> out;
  for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) {
    if (degree(cache, t, s) > 0.0f) out.push_back(s);
  }
  return out;
}

// The entries of a track in their order, bit by bit: rows, degree, position, flags, channels.
template <class Cache> support::byte_list entries_of(Cache const& cache, kvmeld::track t) {
  support::byte_list out;
  auto const add = [&](auto const& numbers) {
    auto const bytes = support::bytes_of(numbers);
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  auto const x = cache.ref();
  kvmeld::ledger_ref const& l = cache.ledger();
  for (kvmeld::slot_t s : held_slots(cache, t)) {
    add(support::get_row(x.keys, t, s));
    add(support::get_row(x.values, t, s));
    std::vector<float> numbers{x.degree(t, s), static_cast<float>(x.position(t, s)),
                               static_cast<float>(l.flags[l.at(t, s)])};
    for (std::uint32_t c = 0; c < l.channels.count; ++c) numbers.push_back(l.channel_data[c][l.at(t, s)]);
    add(numbers);
  }
  return out;
}

// All tracks of a sequence are `length` long; what they hold beyond entries is empty as promised.
template <class Cache> void check_padding(Cache const& cache, std::uint32_t slot, std::uint32_t length) {
  kvmeld::ledger_ref const& l = cache.ledger();
  auto const x = cache.ref();
  std::size_t held = 0;
  support::for_tracks(l.extent, slot, [&](kvmeld::track t) {
    CHECK(l.length[t.index] == length);
    held += held_slots(cache, t).size();
    for (kvmeld::slot_t s = 0; s < length; ++s) {
      if (degree(cache, t, s) > 0.0f) continue;
      CHECK(degree(cache, t, s) == 0.0f);
      CHECK(x.log_degree(t, s) == kvmeld::element_traits<float>::lowest);
      CHECK(support::get_row(x.keys, t, s) == std::vector<float>(l.extent.key_dim, 0.0f));
      CHECK(support::get_row(x.values, t, s) == std::vector<float>(l.extent.value_dim, 0.0f));
      CHECK(l.flags[l.at(t, s)] == 0);
      CHECK((s == 0 || x.position(t, s) == x.position(t, s - 1)));
    }
  });
  CHECK(cache.entries(slot) == held);
  CHECK(cache.longest(slot) == length);
  CHECK(cache.length_bound(slot) == length);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
}

template <class Executor, class Policy> class padded_pair {
  using memory_type = support::engine_memory<float>;
  using layout = kvmeld::strided<float>;

public:
  padded_pair(Executor executor, Policy const& policy, kvmeld::shape const& s, std::uint32_t seed)
      : d(seed),
        memory(s),
        plain_memory(s),
        cache(executor, policy, memory.tensors(), padded({s})),
        plain(executor, policy, plain_memory.tensors(), kvmeld::cache_options{s}) {}

  template <class F> void both(F f) {
    f(cache);
    f(plain);
  }
  // Rows of `n` tokens behind what each track of either holds; NaN behind the last.
  void write(std::uint32_t q, std::uint32_t n) {
    kvmeld::shape const& s = memory.extent;
    support::for_tracks(s, q, [&](kvmeld::track t) {
      auto const k = support::random_rows(d, n, s.key_dim, support::texture::walk);
      auto const v = support::random_rows(d, n, s.value_dim, support::texture::noise);
      auto const place = [&](auto& c, memory_type& m) {
        std::uint32_t const from = c.ledger().is_open[q] != 0 ? c.ref().length(t) : 0;
        m.fill(t, from, k, v);
        if (from + n == s.capacity) return;
        support::rows const bad(1, std::vector<float>(s.key_dim, kvmeld::bits_float(0x7fc00000u)));
        m.fill(t, from + n, bad, {std::vector<float>(s.value_dim, kvmeld::bits_float(0x7fc00000u))});
      };
      place(cache, memory);
      place(plain, plain_memory);
    });
  }
  // The same scores for the same entries; NaN where there are none.
  void score(std::uint32_t q) {
    support::for_tracks(memory.extent, q, [&](kvmeld::track t) {
      for (std::uint32_t c = 0; c < cache.ledger().channels.count; ++c) {
        auto const held = held_slots(cache, t);
        auto const scores = support::random_scores(d, static_cast<std::uint32_t>(held.size()));
        std::vector<float> spread(cache.ref().length(t), kvmeld::bits_float(0x7fc00000u));
        for (std::size_t i = 0; i < held.size(); ++i) spread[held[i]] = scores[i];
        support::set_scores(cache.ledger(), t, spread, c);
        support::set_scores(plain.ledger(), t, scores, c);
      }
      support::dice same = d;
      support::set_table(cache.ledger(), t, d);
      support::set_table(plain.ledger(), t, same);
    });
  }
  void open(std::uint32_t q, std::uint32_t n, std::uint32_t frozen = 0) {
    write(q, n);
    both([&](auto& c) { c.open(q, n, frozen, kvmeld::sequence_id{7 * q}); });
    score(q);
  }
  void feed(std::uint32_t q, std::uint32_t n, std::uint32_t accepted) {
    write(q, n);
    both([&](auto& c) {
      c.append({q}, {n});
      c.commit({q}, {accepted});
    });
    score(q);
  }
  // Budgets of their own for every track.
  void compress(std::vector<std::uint32_t> const& slots, std::uint32_t least, std::uint32_t most,
                kvmeld::shortfall fallback) {
    std::vector<std::uint32_t> table(memory.extent.tracks());
    for (std::uint32_t& n : table) n = d.between(least, most);
    both([&](auto& c) { c.compress(slots, budget::per_track(table.data()), fallback); });
  }
  void check(std::uint32_t q) {
    support::for_tracks(memory.extent, q, [&](kvmeld::track t) {
      CHECK(held_slots(cache, t).size() == plain.ref().length(t));
      CHECK(entries_of(cache, t) == entries_of(plain, t));
    });
    CHECK(cache.tokens(q) == plain.tokens(q));
    CHECK(cache.warnings(q) == plain.warnings(q));
    CHECK(cache.rounds(q) == plain.rounds(q));
    CHECK(cache.compressed_at(q) >= plain.compressed_at(q));
    CHECK(cache.entries(q) == plain.entries(q));
  }
  bool ragged(std::uint32_t q) const {
    bool differ = false;
    std::uint32_t const first = plain.length(0, q, 0);
    support::for_tracks(memory.extent, q,
                        [&](kvmeld::track t) { differ = differ || plain.ref().length(t) != first; });
    return differ;
  }

  support::dice d;
  memory_type memory, plain_memory;
  kvmeld::merged_cache<Executor, Policy, layout, layout> cache, plain;
};

}  // namespace sequences_test
