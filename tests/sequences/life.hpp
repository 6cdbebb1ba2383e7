// What the tests of living sequences share: tokens that come with rows and scores, and digests of a sequence.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "support/brief.hpp"
#include "support/cache_bytes.hpp"
#include "support/compositions.hpp"
#include "support/random_cache.hpp"

namespace sequences_test {

using kvmeld::budget;

// Every preset with numbers for short tracks, those that share entries too: give caches room for `members`.
inline constexpr std::uint32_t members = 60;

template <class F> void each_policy_once(F each) {
  using kvmeld::quantity;
  auto const f = support::few_types(each);
  support::each_preset(f);
  f("ems", kvmeld::preset::ems::shared(quantity::entries(6), 6, 0.3f, 2.0));
  f("ems collapsed", kvmeld::preset::ems::collapsed(quantity::entries(6), 6, 0.3f, 2.0));
  f("d2o", kvmeld::preset::d2o::defaults());
  f("cam", kvmeld::preset::cam::over_h2o());
}

// The same policies. Brief tests take every other one, and the others in a later
// run of CI.
template <class F> void each_policy(F f) {
  std::uint64_t turn = support::test_run() / 6;
  auto const some = [&](char const* name, auto const& policy) {
    if (!support::brief() || turn++ % 2 == 0) f(name, policy);
  };
  each_policy_once(some);
}

template <class T, class Policy>
auto cache_for(support::engine_memory<T>& memory, Policy const& policy, kvmeld::cache_options options = {}) {
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? members : 0;
  return support::make_cache(memory, policy, options);
}

template <class Cache> float degree(Cache const& cache, kvmeld::track t, kvmeld::slot_t s) {
  return cache.ledger().degree[cache.ledger().at(t, s)];
}

// Scores for every entry of a sequence, in every channel, as if attention had been observed, and a table as
// if queries had.
template <class Cache> void score(Cache& cache, support::dice& d, std::uint32_t slot) {
  support::for_tracks(cache.options().extent, slot, [&](kvmeld::track t) {
    for (std::uint32_t c = 0; c < cache.ledger().channels.count; ++c) {
      support::set_scores(cache.ledger(), t, support::random_scores(d, cache.ref().length(t)), c);
      if (cache.ledger().members.capacity == 0) continue;
      auto const scores = support::random_scores(d, cache.ledger().members.count[t.index]);
      for (std::uint32_t m = 0; m < scores.size(); ++m)
        cache.ledger().members.channel_data[c][cache.ledger().members.at(t, m)] = scores[m];
    }
    support::set_table(cache.ledger(), t, d);
  });
}

// Rows of `n` tokens behind what each track holds.
template <class Cache> void write_rows(Cache& cache, support::dice& d, std::uint32_t slot, std::uint32_t n) {
  kvmeld::shape const& s = cache.options().extent;
  auto const x = cache.ref();
  support::for_tracks(s, slot, [&](kvmeld::track t) {
    std::uint32_t const from = cache.ledger().is_open[slot] != 0 ? x.length(t) : 0;
    auto const k = support::random_rows(d, n, s.key_dim, support::texture::walk);
    auto const v = support::random_rows(d, n, s.value_dim, support::texture::noise);
    for (std::uint32_t i = 0; i < n; ++i) {
      support::put_row(x.keys, t, from + i, k[i]);
      support::put_row(x.values, t, from + i, v[i]);
    }
  });
}

template <class Cache>
void open(Cache& cache, support::dice& d, std::uint32_t slot, std::uint32_t n, std::uint32_t frozen = 0,
          std::uint32_t id = 0) {
  write_rows(cache, d, slot, n);
  cache.open(slot, n, frozen, kvmeld::sequence_id{id});
  score(cache, d, slot);
}

template <class Cache> void feed(Cache& cache, support::dice& d, std::uint32_t slot, std::uint32_t n) {
  write_rows(cache, d, slot, n);
  cache.append({slot}, {n});
  cache.commit({slot}, {n});
  score(cache, d, slot);
}

// Bits of rows [first, last) of every track; `last` at most the length.
template <class Cache>
support::byte_list rows_of(Cache const& cache, std::uint32_t slot, std::uint32_t first = 0,
                           std::uint32_t last = 0xffffffffu) {
  support::byte_list out;
  auto const x = cache.ref();
  support::for_tracks(cache.options().extent, slot, [&](kvmeld::track t) {
    for (std::uint32_t s = first; s < kvmeld::min_of(last, x.length(t)); ++s) {
      for (auto const& row : {support::get_row(x.keys, t, s), support::get_row(x.values, t, s)}) {
        auto const bytes = support::bytes_of(row);
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
  });
  return out;
}

// Everything there is to a sequence: its saved ledger and its rows.
template <class Cache> support::byte_list digest(Cache const& cache, std::uint32_t slot) {
  support::byte_list out = cache.save(slot), rows = rows_of(cache, slot);
  out.insert(out.end(), rows.begin(), rows.end());
  return out;
}

// Raw rows of a sequence into the tracks of another cache of the same shape.
template <class Cache, class Other>
void copy_rows(Cache const& from, std::uint32_t slot, Other& to, std::uint32_t other) {
  auto const x = from.ref();
  auto const y = to.ref();
  support::for_tracks(from.options().extent, slot, [&](kvmeld::track t) {
    kvmeld::track const u = kvmeld::make_track(to.options().extent, t.layer, other, t.kv_head);
    for (std::uint32_t s = 0; s < x.length(t); ++s) {
      support::put_row(y.keys, u, s, support::get_row(x.keys, t, s));
      support::put_row(y.values, u, s, support::get_row(x.values, t, s));
    }
  });
}

}  // namespace sequences_test
