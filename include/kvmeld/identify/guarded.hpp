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

/// `Identify` proposes and admits as ever; then the guard takes out of the sets what would break its bound.
/// What is left over in one round may merge in another way in the next, up to guard.rounds of them, so that
/// every identifier repeats. A track that cannot reach its budget so stays above it
/// (warning::budget_unreached). Identifiers that list edges (chunked_bipartite) have candidates struck out
/// beforehand that cannot pass, so that others get their places.
template <class Identify, class Guard> struct guarded : Identify {
  /// Without its guard.
  using unguarded_type = Identify;
  /// What its merges have to pass.
  using guard_type = Guard;
  Guard guard;  ///< its numbers and its probes

  static constexpr bool repeats = true;
  static constexpr bool meets_budget = false;  // that is for the guard to say, and so for the data

  std::string name() const {
    return message("guarded(", full_name_of(static_cast<Identify const&>(*this)), ", ", name_of(guard), ")");
  }
  /// Guarded rounds may merge little: as many as the guard allows.
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return length > limit ? min_of(guard.rounds, length - limit) : 0;
  }
  /// No fewer: what a guard lets through is data.
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
}  // namespace detail

/// The identifier as it is without its guard: phases of policies with and without one are the same.
template <class Identify> using unguarded_t = typename detail::unguarded<Identify>::type;

/// Identifiers that list one candidate per possible source, `edges(places)` of them.
template <class Identify, class = void> struct lists_edges : std::false_type {};
template <class Identify>
struct lists_edges<Identify, std::void_t<decltype(std::declval<Identify const&>().edges(0u))>>
    : std::true_type {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
