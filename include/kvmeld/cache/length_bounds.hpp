// What a host knows about the lengths of tracks without looking at device data: a bound, often the number itself.
#pragma once

#include <kvmeld/cache/shortfall.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Executors whose launches have happened when they return; the host may then look at lengths at any time.
template <class Executor, class = void> struct is_immediate : std::false_type {};
template <class Executor>
struct is_immediate<Executor, std::enable_if_t<Executor::immediate>> : std::true_type {};

/// True for policies that keep what their selector pins, centres included, and no more: lengths follow from numbers
/// alone.
template <class Policy>
inline constexpr bool keeps_pins_only =
    empties_field<typename Policy::identify_type>::value&& pins_exactly<typename Policy::select_type>::value;

/// Whether the length after `compress` follows from the length before it and the budget. Policies that merge meet their
/// budget only if enough rows are finite numbers, which is data; the fallback sees to the rest.
template <class Policy> constexpr bool is_exact(shortfall fallback) {
  return keeps_pins_only<Policy> ||
         (Policy::identify_type::meets_budget && pins_exactly<typename Policy::select_type>::value &&
          !makes_centers<typename Policy::select_type>::value && fallback == shortfall::evict_lowest);
}

/// Entries that a track of at most `bound` keeps under a budget of `limit`: at most, and exactly if is_exact and
/// `known` (the bound is the length). `frozen` entries at the beginning stay; `only` says that nothing else does so.
template <class Policy>
std::uint32_t bound_after(Policy const& p, std::uint32_t bound, bool known, std::uint32_t limit,
                          std::uint32_t frozen, bool only, shortfall fallback) {
  if (bound <= limit) return bound;
  if (!is_exact<Policy>(fallback) && fallback == shortfall::report) return bound;
  if constexpr (keeps_pins_only<Policy>) {
    pins const stay = p.select.pinned(bound, limit, frozen);
    if (known && only) return min_of(limit, stay.total() + stay.centers);
  }
  return limit;
}

/// The bounds, per track, in host memory. What a call does to lengths it does to bounds.
class length_bounds {
public:
  explicit length_bounds(shape const& s)
      : extent_(s), bound_(s.tracks(), 0), pending_(s.sequences, 0), known_(s.sequences, 1) {}
  length_bounds() = default;

  std::uint32_t at(track t) const { return bound_[t.index]; }
  bool known(std::uint32_t sequence) const { return known_[sequence] != 0; }
  void lower(track t, std::uint32_t n) { bound_[t.index] = n; }
  /// Lengths of a sequence follow from data from now on.
  void lose(std::uint32_t sequence) { known_[sequence] = 0; }

  void open(std::uint32_t sequence, std::uint32_t n) {
    each(sequence, [&](std::uint32_t& bound, track) { bound = n; });
    pending_[sequence] = 0;
    known_[sequence] = 1;
  }
  void append(std::uint32_t sequence, std::uint32_t n) {
    each(sequence, [&](std::uint32_t& bound, track) { bound += n; });
    pending_[sequence] += n;
  }
  void commit(std::uint32_t sequence, std::uint32_t accepted) {
    shorten(sequence, pending_[sequence] - accepted);
    pending_[sequence] = 0;
  }
  void shorten(std::uint32_t sequence, std::uint32_t n) {
    each(sequence, [&](std::uint32_t& bound, track) { bound -= n; });
  }
  void fork(std::uint32_t from, std::uint32_t into) {
    each(into, [&](std::uint32_t& bound, track t) {
      bound = bound_[make_track(extent_, t.layer, from, t.kv_head).index];
    });
    pending_[into] = pending_[from];
    known_[into] = known_[from];
  }
  /// Looks.
  void read(ledger_ref const& l, std::uint32_t sequence) {
    each(sequence, [&](std::uint32_t& bound, track t) { bound = l.length[t.index]; });
    pending_[sequence] = l.pending[sequence];
    known_[sequence] = 1;
  }

private:
  template <class F> void each(std::uint32_t sequence, F f) {
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) {
        track const t = make_track(extent_, layer, sequence, head);
        f(bound_[t.index], t);
      }
    }
  }

  shape extent_{};
  std::vector<std::uint32_t> bound_, pending_;
  std::vector<std::uint8_t> known_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
