// SPDX-License-Identifier: Apache-2.0
// Refusals on the host: a refusal names the argument, its value and what must hold. It is thrown, or returned
// if exceptions are off.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Thrown by every call that refuses its arguments, construction included. The text names the argument, its
/// value and what must hold.
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

/// One part of a message: a text, which must outlive the part, or a number. Whole numbers are written without
/// exponent and point, floats too. A byte is written as a number.
class message_part {
public:
  message_part(char const* text) : kind_(kind::text) {
    value_.text = {text, text == nullptr ? 0 : std::strlen(text)};
  }
  message_part(std::string const& text) : kind_(kind::text) { value_.text = {text.data(), text.size()}; }
  message_part(std::nullptr_t) = delete;
  template <class Number,
            std::enable_if_t<std::is_arithmetic_v<Number> ||
                                 (std::is_enum_v<Number> && std::is_convertible_v<Number, std::int64_t>),
                             int> = 0>
  message_part(Number x) {
    if constexpr (std::is_same_v<Number, bool>) {
      *this = message_part(x ? "true" : "false");
    } else if constexpr (std::is_same_v<Number, char>) {
      kind_ = kind::character;
      value_.character = x;
    } else if constexpr (std::is_floating_point_v<Number>) {
      kind_ = kind::real;
      value_.real = static_cast<double>(x);
    } else if constexpr (std::is_enum_v<Number> || std::is_signed_v<Number>) {
      kind_ = kind::whole;
      value_.whole = x;
    } else {
      kind_ = kind::natural;
      value_.natural = x;
    }
  }

  void append_to(std::string& out) const {
    switch (kind_) {
    case kind::text: out.append(value_.text.first, value_.text.length); return;
    case kind::character: out += value_.character; return;
    case kind::whole: out += std::to_string(value_.whole); return;
    case kind::natural: out += std::to_string(value_.natural); return;
    case kind::real: break;
    }
    if (is_whole(value_.real)) {
      out += std::to_string(static_cast<std::int64_t>(value_.real));
    } else if (is_nan(value_.real)) {
      out += "nan";  // without its sign
    } else {
      append_fraction(out, value_.real);
    }
  }

private:
  /// As %g, with a point whatever the program's locale puts in its place.
  static void append_fraction(std::string& out, double x) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%g", x);
    bool point = false;
    for (char const* c = digits; *c != '\0'; ++c) {
      bool const other = std::strchr("0123456789+-einf", *c) == nullptr;
      if (!other) out += *c;
      if (other && !point) out += '.';
      point = other;
    }
  }

  enum class kind : std::uint8_t { text, character, whole, natural, real };
  struct characters {
    char const* first;
    std::size_t length;
  };
  union {
    characters text;
    char character;
    std::int64_t whole;
    std::uint64_t natural;
    double real;
  } value_;
  kind kind_;
};

/// This function is no template, so a unit compiles it once.
inline std::string joined(std::initializer_list<message_part> parts) {
  std::string out;
  for (message_part const& part : parts) part.append_to(out);
  return out;
}

}  // namespace detail

/// Joins texts and numbers into one text. Parts are copied, so that literals of all lengths are of one type,
/// and a unit has few forms of this function.
template <class... Parts> std::string message(Parts... parts) {
  return detail::joined({detail::message_part(parts)...});
}

/// Text from elsewhere, made safe for a message: in quotes, with a question mark for each character that does
/// not print, and cut after 80 characters.
inline std::string in_quotes(std::string const& text) {
  std::string out = "\"";
  for (char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 80 ? "...\"" : "\"");
}

/// The form of every refusal: "<call>: <argument> is <value>; it must be <condition>". The condition is
/// joined from its parts.
template <class... Condition>
std::string refusal(detail::message_part call, detail::message_part argument, detail::message_part value,
                    Condition... condition) {
  return detail::joined({call, ": ", argument, " is ", value, "; it must be ", condition...});
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
  /// padded to. What the host knew was wrong. The track lacks tokens that other tracks of the sequence have,
  /// and later calls take entries of earlier tokens for them: close the sequence.
  overfull = 8,
  unrotated =
      16,  ///< keys in rows that may not be written had to turn with a shift of the context, but did not
  undropped = 32,  ///< entries in rows that may not be written were to go (drop_positions), but stayed
};
}  // namespace warning

}  // namespace KVMELD_ABI
}  // namespace kvmeld
