// A composition on two tensors of any layout against the same on plain strided ones.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/compositions.hpp"
#include "support/random_cache.hpp"
#include "tensors.hpp"

namespace layout_test {

inline constexpr kvmeld::shape extent{1, 2, 2, 1, 24, 16, 61};

// What a plain tensor has to store so that it holds the same numbers.
template <class Tensor>
using plain_of = strided_tensor<std::conditional_t<Tensor::quantised, float, typename Tensor::element>>;

template <class Keys, class Values> struct tensor_pair {
  Keys keys{extent, extent.key_dim};
  Values values{extent, extent.value_dim};
  auto view() { return kvmeld::kv{keys.view(), values.view()}; }
};

// Random rows into `x`; what x made of them into `plain`.
template <class Pair, class Plain>
void write(Pair& x, Plain& plain, support::dice& d, std::uint32_t sequence, std::uint32_t first,
           std::uint32_t n) {
  auto const a = x.view();
  auto const b = plain.view();
  support::for_tracks(extent, sequence, [&](kvmeld::track t) {
    auto const k = support::random_rows(d, n, extent.key_dim, support::texture::walk);
    auto const v = support::random_rows(d, n, extent.value_dim, support::texture::noise);
    for (std::uint32_t i = 0; i < n; ++i) {
      support::put_row(a.keys, t, first + i, k[i]);
      support::put_row(a.values, t, first + i, v[i]);
      support::put_row(b.keys, t, first + i, support::get_row(a.keys, t, first + i));
      support::put_row(b.values, t, first + i, support::get_row(a.values, t, first + i));
    }
  });
}

template <class Cache> void score(Cache& cache, support::dice& d) {
  for (std::uint32_t sequence = 0; sequence < 2; ++sequence) {
    support::for_tracks(extent, sequence, [&](kvmeld::track t) {
      support::set_table(cache.ledger(), t, d);
      if (cache.ledger().channels.count == 0) return;
      support::set_scores(cache.ledger(), t, support::random_scores(d, cache.ref().length(t)));
    });
  }
}

// Rows of `got` that differ from those of `wanted` by more than half a step of storage.
template <class Tensor, class Layout, class Plain>
std::size_t wrong_rows(Tensor const& tensor, Layout const& got, Plain const& wanted, kvmeld::track t,
                       std::uint32_t length) {
  std::size_t wrong = 0;
  for (kvmeld::slot_t s = 0; s < length; ++s) {
    auto const a = support::get_row(got, t, s), b = support::get_row(wanted, t, s);
    if (support::same_bits(a, b)) continue;
    if (!Tensor::quantised) {
      ++wrong;
      continue;
    }
    double const step = static_cast<double>(tensor.step(b.data()));
    for (std::size_t c = 0; c < a.size(); ++c)
      wrong += std::fabs(static_cast<double>(a[c]) - static_cast<double>(b[c])) <= 0.51 * step ? 0 : 1;
  }
  return wrong;
}

template <class Keys, class Values, class Policy> void same_as_plain(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  constexpr bool quantised = Keys::quantised || Values::quantised;
  tensor_pair<Keys, Values> x;
  tensor_pair<plain_of<Keys>, plain_of<Values>> plain;
  support::dice d(21);
  write(x, plain, d, 0, 0, 57);
  write(x, plain, d, 1, 0, 40);
  kvmeld::cache_options options{};
  options.extent = extent;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), policy, x.view(), options};
  kvmeld::merged_cache expected{kvmeld::host_executor(1), policy, plain.view(), options};
  auto const both = [&](auto call) {
    support::dice mine = d, theirs = d;
    call(cache, mine);
    call(expected, theirs);
  };
  both([](auto& c, support::dice& own) {
    c.open(0, 57, 3);
    c.open(1, 40);
    score(c, own);
    c.compress({0, 1}, kvmeld::budget::entries(26));
  });
  auto const compare = [&] {
    // A key that was requantised may decide otherwise in the next round.
    bool const exact =
        !(Keys::quantised && kvmeld::facts_of<kvmeld::identify_facts>(policy.identify).repeats);
    for (std::uint32_t sequence = 0; sequence < 2; ++sequence) {
      support::for_tracks(extent, sequence, [&](kvmeld::track t) {
        CHECK(cache.ref().length(t) == expected.ref().length(t));
        if (!exact) return;
        CHECK(wrong_rows(x.keys, x.keys.view(), plain.keys.view(), t, cache.ref().length(t)) == 0);
        CHECK(wrong_rows(x.values, x.values.view(), plain.values.view(), t, cache.ref().length(t)) == 0);
      });
    }
    if (exact) CHECK(support::ledger_bytes(cache) == support::ledger_bytes(expected));
  };
  compare();
  CHECK(cache.entries(0) < 2 * 57);
  if (quantised) return;
  write(x, plain, d, 0, cache.longest(0), 2);
  both([](auto& c, support::dice& own) {
    c.append({0}, {2});
    c.commit({0}, {2});
    score(c, own);
    c.compress({0, 1}, kvmeld::budget::entries(24));
  });
  compare();
}

template <class Keys, class Values> void every_preset_same_as_plain() {
  support::each_preset(support::few_types(
      [](char const* name, auto const& policy) { same_as_plain<Keys, Values>(name, policy); }));
}

}  // namespace layout_test
