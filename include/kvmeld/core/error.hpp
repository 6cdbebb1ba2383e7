// Refusals on the host: a refusal names the argument, its value and what must hold. It is thrown, or returned
// if exceptions are off.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Thrown by construction, configuration and `plan`. The text names the argument, its value and what must
/// hold.
class invalid_argument : public std::invalid_argument {
public:
  using std::invalid_argument::invalid_argument;
};

/// Outcome of a validating call. With exceptions on it is always ok(), because a refusal throws. With
/// exceptions off it carries the same text.
class
#if !KVMELD_EXCEPTIONS
    [[nodiscard]]
#endif
    status {
public:
  status() = default;
  /// An outcome. An empty text means that nothing is wrong.
  explicit status(std::string text) : text_(std::move(text)) {}
  /// Whether nothing is wrong.
  bool ok() const { return text_.empty(); }
  /// The same as ok().
  explicit operator bool() const { return ok(); }
  /// What is wrong: the argument, its value and what must hold.
  std::string const& text() const { return text_; }

private:
  std::string text_;
};

namespace detail {

inline std::uint64_t double_bits(double x) {
  std::uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
inline bool is_nan(double x) { return (double_bits(x) << 1) > (std::uint64_t{0x7ffu} << 53); }

/// Whether x is a whole number that 64 bits hold. Reads exponent bits, so that the answer for NaN is false
/// under -ffast-math too.
inline bool is_whole(double x) {
  std::uint64_t const u = double_bits(x);
  bool const small = ((u >> 52) & 0x7ffu) < 1023u + 63u;
  return small && static_cast<double>(static_cast<std::int64_t>(x)) == x;
}

/// Writes one part of a text. Whole numbers are written without exponent and point, floats too. A byte is
/// written as a number.
template <class Part> void write_part(std::ostream& out, Part const& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    auto const x = static_cast<double>(part);
    if (is_whole(x)) {
      out << static_cast<std::int64_t>(x);
    } else if (is_nan(x)) {
      out << "nan";  // without its sign
    } else {
      out << x;
    }
  } else if constexpr (std::is_same_v<Part, bool>) {
    out << (part ? "true" : "false");
  } else if constexpr (std::is_same_v<Part, std::uint8_t>) {
    out << static_cast<int>(part);
  } else {
    out << part;
  }
}

}  // namespace detail

/// Joins parts into one text.
template <class... Parts> std::string message(Parts const&... parts) {
  std::ostringstream out;
  (detail::write_part(out, parts), ...);
  return out.str();
}

/// Text from elsewhere, made safe for a message: in quotes, with a question mark for each character that does
/// not print, and cut after 80 characters.
inline std::string quoted(std::string const& text) {
  std::string out = "\"";
  for (char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 80 ? "...\"" : "\"");
}

/// The form of every refusal: "<call>: <argument> is <value>; it must be <condition>". The condition is
/// joined from its parts.
template <class Value, class... Condition>
std::string refusal(std::string const& call, std::string const& argument, Value const& value,
                    Condition const&... condition) {
  return message(call, ": ", argument, " is ", value, "; it must be ", condition...);
}

/// The first text that is not empty; empty if all are.
inline std::string first_problem(std::initializer_list<std::string> problems) {
  for (std::string const& p : problems) {
    if (!p.empty()) return p;
  }
  return {};
}

/// The problem, with the name of the call in front; empty if there is none.
inline std::string refusal_within(char const* call, std::string const& problem) {
  return problem.empty() ? problem : message(call, ": ", problem);
}

/// Turns a problem into the configured kind of refusal. An empty text is success.
inline status raise(std::string problem) {
#if KVMELD_EXCEPTIONS
  if (!problem.empty()) throw invalid_argument(problem);
#endif
  return status(std::move(problem));
}

/// Warnings: what the run path found out about a track. They are bits, since several can hold.
namespace warning {
enum : std::uint32_t {
  none = 0,
  /// Rows with NaN or infinity were found. Their entries never merge and are never a target. A compression
  /// looks at the rows that might have merged, and at those that an identifier reads (`needs_keys`); `plan`
  /// looks at all rows. Policies that read no row look at none.
  nonfinite_rows = 1,
  /// The budget was not reached: nothing was left that could merge. Rows with NaN or infinity may be the
  /// reason: they keep consecutive sets apart and leave entries without a partner.
  budget_unreached = 2,
  evicted_fallback = 4,  ///< the fallback evicted entries to reach the budget
  /// Entries appended beyond the capacity were dropped, or a track is longer than the length it was to be
  /// padded to. What the host knew was wrong.
  overfull = 8,
  unrotated =
      16,  ///< keys in rows that may not be written had to turn with a shift of the context, but did not
};
}  // namespace warning

}  // namespace KVMELD_ABI
}  // namespace kvmeld
