// How the host side refuses: by name, value and what is allowed; thrown, or returned where exceptions are off.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Thrown by construction, configuration and `plan`. The text names the argument, its value and what is allowed.
class invalid_argument : public std::invalid_argument {
public:
  using std::invalid_argument::invalid_argument;
};

/// Outcome of a validating call. Always ok() where exceptions are on (a refusal throws); carries the same text where
/// they are off.
class
#if !KVMELD_EXCEPTIONS
    [[nodiscard]]
#endif
    status {
public:
  status() = default;
  /// An outcome; empty text: nothing is wrong.
  explicit status(std::string text) : text_(std::move(text)) {}
  /// Whether nothing is wrong.
  bool ok() const { return text_.empty(); }
  /// As ok().
  explicit operator bool() const { return ok(); }
  /// What is wrong: the argument, its value and what is allowed.
  std::string const& text() const { return text_; }

private:
  std::string text_;
};

/// Joins parts into one sentence.
template <class... Parts> std::string message(Parts const&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

/// Turns a problem into the configured kind of refusal; an empty text is success.
inline status report(std::string problem) {
#if KVMELD_EXCEPTIONS
  if (!problem.empty()) throw invalid_argument(problem);
#endif
  return status(std::move(problem));
}

/// What the run path found out about a sequence: bits, since several can hold.
namespace finding {
enum : std::uint32_t {
  none = 0,
  /// Rows with NaN or infinity: they never merge and are never a target. A compression looks at the rows that
  /// might have merged, and at those that an identifier reads (`needs_keys`); `plan` looks at all. Policies
  /// that read no row look at none.
  nonfinite_rows = 1,
  /// Nothing that could merge was left above the budget. Rows with NaN or infinity may be why: they keep
  /// consecutive sets apart and leave entries without a partner.
  budget_unreached = 2,
  evicted_fallback = 4,  ///< the fallback evicted entries to reach the budget
  /// Entries appended beyond the capacity were dropped, or a track is longer than it was to be padded to: what the host
  /// knew was wrong.
  overfull = 8,
  unrotated =
      16,  ///< keys in rows that may not be written were to turn with a shift of the context, and did not
};
}  // namespace finding

}  // namespace KVMELD_ABI
}  // namespace kvmeld
