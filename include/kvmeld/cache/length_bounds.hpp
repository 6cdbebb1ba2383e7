// What lengths a compression leaves, as far as numbers alone tell: a bound, often the number itself.
#pragma once

#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/cache/shortfall.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// True for policies that keep what their selector pins, centres included, and no more: lengths follow from numbers
/// alone.
template <class Policy> bool keeps_pins_only(Policy const& p) {
  return traits_of_identifier(p.identify).empties_field && traits_of_selector(p.select).pins_exactly;
}

/// Whether the length after `compress` follows from the length before it and the budget. Policies that merge what is
/// alike meet their budget only if enough rows are finite numbers, which is data; the fallback sees to the rest.
template <class Policy> bool is_exact(Policy const& p, shortfall fallback) {
  select_traits const s = traits_of_selector(p.select);
  return keeps_pins_only(p) || (traits_of_identifier(p.identify).meets_budget && s.pins_exactly &&
                                !s.makes_centers && fallback == shortfall::evict_lowest);
}

/// Entries that a track of at most `bound` keeps under a budget of `limit`: at most, and exactly if is_exact and
/// `known` (the bound is the length). `frozen` entries at the beginning stay; `only` says that nothing else does so.
template <class Policy>
std::uint32_t bound_after(Policy const& p, std::uint32_t bound, bool known, std::uint32_t limit,
                          std::uint32_t frozen, bool only, shortfall fallback) {
  if (bound <= limit) return bound;
  if (!is_exact(p, fallback) && fallback == shortfall::report) return bound;
  if (!known || !only || !keeps_pins_only(p)) return limit;
  pins const stay = p.select.pinned(bound, limit, frozen);
  return min_of(limit, stay.total() + stay.centers);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
