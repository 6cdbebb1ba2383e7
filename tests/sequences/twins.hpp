// Two caches that are told the same: one in host memory, one whose memory the host cannot touch.
#pragma once

#include "life.hpp"

#include "support/fenced_executor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sequences_test {

inline constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 96};

template <class Policy> class twins {
  using memory_type = support::engine_memory<float>;

public:
  // `near_pages` and `far_pages`: where the ledgers' entries lie.
  twins(Policy const& policy, std::uint32_t seed, kvmeld::ledger_pages const& near_pages = {},
        kvmeld::ledger_pages const& far_pages = {})
      : d_(seed),
        pages_(near_pages.count != 0 || far_pages.count != 0),
        near_memory_(extent),
        far_memory_(extent),
        near_(cache_for(near_memory_, policy, options(near_pages))),
        far_(support::fenced_executor(), policy, far_memory_.tensors(), options(far_pages)) {}

  // Tokens arrive and are observed, all at once or after drafts were rejected.
  void open(std::uint32_t q) {
    std::uint32_t const n = d_.between(20, 60), frozen = most_frozen(3), id = d_.below(100);
    write(q, n);
    both([&](auto& c) { c.open(q, n, frozen, kvmeld::sequence_id{id}); });
    observe({q});
  }
  void append() {
    std::vector<std::uint32_t> slots, counts, accepted;
    for (std::uint32_t q : opened()) {
      if (far_.length_bound(q) + 5 > extent.capacity) continue;
      slots.push_back(q);
      counts.push_back(d_.below(6));
      accepted.push_back(d_.below(counts.back() + 1));
      write(q, counts.back());
    }
    both([&](auto& c) {
      c.append(slots, counts);
      c.commit(slots, accepted);
    });
    observe(slots);
  }
  void observe(std::vector<std::uint32_t> const& slots) {
    std::vector<std::uint32_t> const rows(slots.size(), 2);
    std::uint32_t const tokens = extent.capacity + members;
    std::vector<float> p(slots.size() * extent.query_heads() * 2 * tokens);
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      for (float& x : p) x = static_cast<float>(d_.uniform()) * 0.1f;
      both([&](auto& c) { support::observe_numbers(c, {layer, slots, rows}, p.data(), 2, tokens); });
    }
  }
  void compress(kvmeld::shortfall fallback) {
    std::uint32_t least = 18;
    for (std::uint32_t q : opened()) least = std::max(least, far_.length_bound(q) * 3 / 10 + 6);
    std::vector<std::uint32_t> table(extent.tracks());
    for (std::uint32_t& n : table) n = d_.between(least, 45);
    auto const allowed =
        d_.chance(0.5) ? budget::per_track(table.data()) : budget::entries(d_.between(least, 45));
    bool const in_two = d_.chance(0.3);
    both([&](auto& c) {
      if (in_two) {
        c.plan(opened(), allowed, fallback);
        c.apply();
      } else {
        c.compress(opened(), allowed, fallback);
      }
    });
  }
  void other_calls() {
    std::uint32_t const q = opened()[d_.below(static_cast<std::uint32_t>(opened().size()))];
    if (d_.chance(0.3) && far_.compressed_at(q) + 2 < far_.tokens(q)) {
      std::uint32_t const tokens = far_.tokens(q) - 1;
      far_.sync_lengths(q);
      both([&](auto& c) { c.truncate(q, tokens); });
    }
    if (d_.chance(0.2)) {
      if (is_open(2)) both([&](auto& c) { c.close(2); });
      std::uint32_t const from = d_.below(2), id = d_.below(9);
      both([&](auto& c) { c.fork(from, 2, 0, kvmeld::sequence_id{id}); });
    }
    if (d_.chance(0.2)) {
      std::uint32_t const frozen = most_frozen(4);
      both([&](auto& c) { c.freeze(q, frozen); });
    }
    if (d_.chance(0.2)) both([&](auto& c) { c.set_rounds(q, 0); });
    if (d_.chance(0.3)) drop_positions(q);
    if (d_.chance(0.2)) {
      auto const bytes = near_.save(q);
      both([&](auto& c) {
        c.close(q);
        c.resume(q, {bytes.data(), bytes.size()});
      });
    }
    if (d_.chance(0.2)) {  // copies are deep
      auto copy = support::twin_of(far_);
      std::swap(far_, copy);
      copy.close(q);
    }
  }

  // Positions of which some were compressed and some may be empty, behind those of frozen entries. Now and
  // then back to a token before them.
  void drop_positions(std::uint32_t q) {
    kvmeld::ledger_ref const& l = near_.ledger();
    int frozen = 0;
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      if (l.frozen[q] != 0) frozen = std::max(frozen, 1 + l.position[l.at(t, l.frozen[q] - 1)]);
    });
    int const seen = static_cast<int>(near_.tokens(q));
    auto const held_before = [&](int position) {  // in the shortest track
      std::uint32_t least = extent.capacity;
      support::for_tracks(extent, q,
                          [&](kvmeld::track t) { least = std::min(least, l.first_slot_from(t, position)); });
      return least;
    };
    if (frozen >= seen || held_before(seen) < 20) return;
    int const first = frozen + static_cast<int>(d_.below(static_cast<std::uint32_t>(seen - frozen)));
    int const last = first + static_cast<int>(d_.below(static_cast<std::uint32_t>(seen - first) + 1));
    both([&](auto& c) { c.drop_positions(q, first, std::min(last, first + 9)); });
    if (!d_.chance(0.4)) return;
    std::uint32_t const least = std::max(far_.compressed_at(q), static_cast<std::uint32_t>(frozen));
    std::uint32_t const to = std::max(least, static_cast<std::uint32_t>(std::max(0, first - 2)));
    if (to <= near_.tokens(q) && held_before(static_cast<int>(to)) > 9)
      both([&](auto& c) { c.truncate(q, to); });
  }

  // A call that turns keys. Rows that are shared do not turn, so nothing may be frozen.
  template <class F> void turn(std::uint32_t q, F call) {
    both([&](auto& c) {
      c.freeze(q, 0);
      call(c);
    });
  }
  // The same while a report of lengths is on its way.
  template <class F> void turn_while_reporting(std::uint32_t q, F call) {
    far_.request_lengths();
    turn(q, call);
    while (!far_.poll_lengths()) continue;
  }

  // The same entries, bit for bit, and bounds that hold.
  void check() {
    CHECK(near_memory_ == far_memory_);
    if (d_.chance(0.2)) far_.request_lengths();
    far_.poll_lengths();
    for (std::uint32_t q : opened()) {
      CHECK(far_.length_bound(q) >= near_.longest(q));
      CHECK(far_.tokens(q) == near_.tokens(q));
      CHECK(far_.compressed_at(q) >= near_.compressed_at(q));
      CHECK(far_.save(q) == near_.save(q));
      if (!d_.chance(0.5)) continue;
      far_.sync_lengths(q);
      CHECK(far_.length_bound(q) == near_.longest(q));
      CHECK(far_.entries(q) == near_.entries(q));
      CHECK(far_.warnings(q) == near_.warnings(q));
      CHECK(far_.rounds(q) == near_.rounds(q));
    }
  }

protected:
  // Frozen entries gather no attention if their page may be shared, so a ledger in pages has none here.
  std::uint32_t most_frozen(std::uint32_t limit) {
    std::uint32_t const n = d_.below(limit);
    return pages_ ? 0 : n;
  }
  static kvmeld::cache_options options(kvmeld::ledger_pages const& pages) {
    kvmeld::cache_options s{extent};
    s.ledger_pages = pages;
    s.whole_plan = true;
    s.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? members : 0;
    return s;
  }
  template <class F> void both(F f) {
    f(near_);
    f(far_);
  }
  bool is_open(std::uint32_t q) const { return near_.ledger().is_open[q] != 0; }
  std::vector<std::uint32_t> opened() const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t q = 0; q < extent.sequences; ++q) {
      if (is_open(q)) out.push_back(q);
    }
    return out;
  }
  // Rows of new tokens go behind what each track really holds, which an engine's kernels ask cache_ref.
  void write(std::uint32_t q, std::uint32_t n) {
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      std::uint32_t const from = is_open(q) ? near_.ref().length(t) : 0;
      auto const k = support::random_rows(d_, n, extent.key_dim, support::texture::walk);
      auto const v = support::random_rows(d_, n, extent.value_dim, support::texture::noise);
      near_memory_.fill(t, from, k, v);
      far_memory_.fill(t, from, k, v);
    });
  }

  support::dice d_;
  bool pages_;
  memory_type near_memory_, far_memory_;
  decltype(cache_for(std::declval<memory_type&>(), std::declval<Policy const&>())) near_;
  kvmeld::merged_cache<support::fenced_executor, Policy, kvmeld::strided<float>, kvmeld::strided<float>> far_;
};

}  // namespace sequences_test
