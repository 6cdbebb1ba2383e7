// The rule of every refusal: "<call>: <argument> is <value>; it must be <condition>", in numbers that make
// sense.
#pragma once

#include <cstdint>
#include <regex>
#include <string>

namespace support {

// What is wrong with the text of a refusal; empty if nothing is.
inline std::string broken_rule(std::string const& text) {
  static std::regex const form(R"((\S[^;\n]*: )+\S.* is \S.*; it must be \S.*)");
  static std::regex const exponent(R"([0-9]e[+]?(?:0[0-9]|1[0-8])\b)");  // of numbers that 64 bits hold
  static std::regex const range(
      R"((-?[0-9]+(?:\.[0-9]+)?),? (?:to|[a-z, ]{1,20} to) (-?[0-9]+(?:\.[0-9]+)?))");
  if (!std::regex_match(text, form))
    return "it has not the form <call>: <argument> is <value>; it must be <condition>";
  if (text.find("allowed") != std::string::npos) return "it speaks of what is allowed";
  if (std::regex_search(text, exponent)) return "a number has an exponent";
  if (text.find("  ") != std::string::npos) return "it has two spaces in a row";
  if (text.back() == '.' || text.back() == ' ') return "it ends in a point or a space";
  std::string const condition = text.substr(text.find("; it must be ") + 13);
  for (std::sregex_iterator r(condition.begin(), condition.end(), range), end; r != end; ++r) {
    if (std::stod((*r)[1]) > std::stod((*r)[2])) return "a range ends before it begins";
    if ((*r)[2] == "4294967295" || (*r)[2] == "18446744073709551615")
      return "a range ends at a number that wrapped";
  }
  for (char const* impossible : {"at most -", "less than 0", "at most 18446744073709551615"}) {
    if (condition.find(impossible) != std::string::npos) return "nothing can be " + std::string(impossible);
  }
  return {};
}

// Refusals that the tests have met so far; each was held against the rule when it was thrown
// (tests/watch_refusals.cpp).
std::uint64_t refusals_met();

}  // namespace support
