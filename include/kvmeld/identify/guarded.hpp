// An identifier whose merges have to pass a guard.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// `Identify` proposes and admits as without a guard. Then the guard takes out of the sets the entries that
/// would break its bound. These entries may merge in another way in the next round. There are up to
/// guard.rounds rounds, so every guarded identifier repeats. A track that cannot reach its budget in this way
/// stays above it (warning::budget_unreached). If `Identify` lists edges (chunked_bipartite), candidates that
/// cannot pass are struck out before admission, so that others get their places.
template <class Identify, class Guard> struct guarded : Identify {
  /// The identifier without its guard.
  using unguarded_type = Identify;
  /// The guard that merges have to pass.
  using guard_type = Guard;
  Guard guard;  ///< the guard's numbers and probes

  static constexpr bool repeats = true;
  static constexpr bool meets_budget = false;  // the guard decides by the data

  std::string name() const {
    return message("guarded(", full_name_of(static_cast<Identify const&>(*this)), ", ", name_of(guard), ")");
  }
  /// Most rounds: as many as the guard allows, because a guarded round may merge little.
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return length > limit ? min_of(guard.rounds, length - limit) : 0;
  }
  /// As many as max_rounds, because what a guard lets through depends on the data.
  std::uint32_t likely_rounds(std::uint32_t length, std::uint32_t limit, std::uint32_t) const {
    return max_rounds(length, limit);
  }
  std::string problem() const {
    std::string const own = problem_of(static_cast<Identify const&>(*this));
    return own.empty() ? problem_of(guard) : own;
  }
};

}  // namespace identify

/// Whether an identifier's merges have to pass a guard.
template <class Identify, class = void> struct is_guarded : std::false_type {};
template <class Identify>
struct is_guarded<Identify, std::void_t<typename Identify::guard_type>> : std::true_type {};

namespace detail {
template <class Identify, bool = is_guarded<Identify>::value> struct unguarded { using type = Identify; };
template <class Identify> struct unguarded<Identify, true> {
  using type = typename Identify::unguarded_type;
};

/// The identifier without its guard, so that policies with and without a guard have the same phases.
template <class Identify> using unguarded_t = typename detail::unguarded<Identify>::type;

/// Whether an identifier lists one candidate per possible source, `edges(places)` of them.
template <class Identify, class = void> struct lists_edges : std::false_type {};

template <class Identify>
struct lists_edges<Identify, std::void_t<decltype(std::declval<Identify const&>().edges(0u))>>
    : std::true_type {};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
