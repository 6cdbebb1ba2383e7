// The host's mirror of a ledger: it repeats operations as they are on each track, and takes them back.
#include <kvmeld/cache/host_mirror.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/sequences/append.hpp>
#include <kvmeld/sequences/close.hpp>
#include <kvmeld/sequences/commit.hpp>
#include <kvmeld/sequences/fork.hpp>
#include <kvmeld/sequences/freeze.hpp>
#include <kvmeld/sequences/open.hpp>
#include <kvmeld/sequences/set_rounds.hpp>
#include <kvmeld/sequences/truncate.hpp>

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace mirror_cases {

namespace {

constexpr kvmeld::shape extent{3, 4, 2, 1, 4, 4, 90};
using kvmeld::detail::host_mirror;
using numbers = std::vector<std::uint32_t>;

// All that calls read.
numbers all_of(host_mirror& mirror) {
  kvmeld::ledger_ref l;
  l.extent = extent;
  l = mirror.view(l);
  numbers out;
  auto const add = [&](std::uint32_t const* from, std::size_t n) { out.insert(out.end(), from, from + n); };
  std::size_t const tracks = extent.tracks(), sequences = extent.sequences;
  add(l.length, tracks);
  add(l.warnings, tracks);
  add(l.track_words, tracks * kvmeld::track_word::count);
  for (auto const* of : {l.seen, l.pending, l.frozen, l.id, l.is_open}) add(of, sequences);
  add(l.sequence_words, sequences * kvmeld::sequence_word::count);
  for (std::uint32_t q = 0; q < extent.sequences; ++q) out.push_back(mirror.known(q) ? 1 : 0);
  return out;
}

// A mirror, and the numbers that it should have, of which each track's are computed by themselves.
struct mirrored {
  host_mirror mirror{extent};
  kvmeld::ledger_ref l;

  mirrored() {
    l.extent = extent;
    l = mirror.view(l);
  }
  template <class Operation> void apply(Operation const& operation, std::uint32_t q, std::uint32_t n) {
    host_mirror copy = mirror;
    kvmeld::ledger_ref expected;
    expected.extent = extent;
    expected = copy.view(expected);
    if (Operation::over_tracks)
      support::for_tracks(extent, q, [&](kvmeld::track t) { operation.on_track(expected, t, n); });
    operation.on_sequence(expected, q, n);
    mirror.apply(operation, q, n);
    CHECK(all_of(mirror) == all_of(copy));
  }
  // A call that a cache might make.
  void random_call(support::dice& d) {
    namespace sequences = kvmeld::sequences;
    std::uint32_t const q = d.below(extent.sequences), room = extent.capacity - l.longest(q);
    if (l.is_open[q] == 0) return apply(sequences::open{0, q}, q, d.between(12, 40));
    switch (d.below(11)) {
    case 0:
    case 1: return apply(sequences::append{}, q, d.below(room + 1));
    case 2:
    case 3: return apply(sequences::commit{}, q, d.below(l.pending[q] + 1));
    case 4:
      if (l.pending[q] == 0) apply(sequences::truncate{}, q, l.seen[q] - d.below(2));
      return;
    case 5: return apply(sequences::freeze{}, q, d.below(3));
    case 6: return apply(sequences::set_rounds{}, q, d.below(9));
    case 7: return mirror.observe(q, d.below(extent.layers), 1 + d.below(3));
    case 8: {
      std::uint32_t const into = (q + 1) % extent.sequences;
      if (l.is_open[into] == 0 && l.pending[q] == 0) apply(sequences::fork{q, 0, 7}, into, 0);
      return;
    }
    case 9: return apply(sequences::close{}, q, 0);
    default:
      if (l.pending[q] != 0) return;
      mirror.drop_padding(q);
      support::for_tracks(extent, q, [&](kvmeld::track t) {
        mirror.lower(t, kvmeld::min_of(l.length[t.index], 10 + d.below(3)));
      });
      mirror.compressed(q);
      mirror.mark_inexact(q);
      if (d.chance(0.5)) mirror.pad(q, false);
    }
  }
};

}  // namespace

TEST_CASE("a mirror repeats what an operation does to each track, and takes calls back") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    support::dice d(seed);
    mirrored x;
    auto const calls = [&](std::uint32_t n) {
      for (std::uint32_t i = 0; i < n; ++i) x.random_call(d);
    };
    for (int turn = 0; turn < 8; ++turn) {
      calls(d.below(12));
      numbers const before = all_of(x.mirror);
      x.mirror.keep();
      calls(d.below(d.chance(0.5) ? 3 : 12));
      if (d.chance(0.3)) {  // they were launched
        x.mirror.keep_nothing();
        continue;
      }
      x.mirror.take_back();
      x.l = x.mirror.view(x.l);
      CHECK(all_of(x.mirror) == before);
    }
  }
}

TEST_CASE("the longest track of a sequence") {
  mirrored x;
  x.apply(kvmeld::sequences::open{0, 0}, 1, 30);
  CHECK(x.l.longest(1) == 30);
  CHECK(x.l.longest(0) == 0);
  support::for_tracks(extent, 1, [&](kvmeld::track t) { x.mirror.lower(t, 5 + t.layer * 2 + t.kv_head); });
  CHECK(x.l.longest(1) == 5 + 2 * 2 + 1);
}

}  // namespace mirror_cases
