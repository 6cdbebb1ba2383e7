// Mutants that are switched at run time. mutate.py puts calls of these functions into a copy of the headers,
// and includes this file first in all that it compiles. The number of the active mutant is in the
// environment: KVMELD_MUTANT.
#pragma once

#include <cstdlib>
#include <utility>

namespace kvmeld_mutants {

inline int active_from_environment() {
  char const* const number = std::getenv("KVMELD_MUTANT");
  return number == nullptr ? -1 : std::atoi(number);
}
inline int const active = active_from_environment();
inline unsigned char reached[1 << 16] = {};  // by mutant: whether its place was evaluated

inline bool on(int id) {
  reached[id] = 1;
  return id == active;
}
inline bool off(int id) { return !on(id); }
inline bool negated(int id, bool x) { return on(id) != x; }

// A literal, or one more.
template <class T> T one_more(int id, T x) { return on(id) ? static_cast<T>(x + T{1}) : x; }
// min_of and max_of, or each other.
template <class T> T lesser(int id, T a, T b) { return on(id) == (b < a) ? a : b; }
template <class T> T greater(int id, T a, T b) { return on(id) == (a < b) ? a : b; }

// KVMELD_MUTANT_PAIR(name, original, other): name(id, a, b) is a original b; where the mutant is active, a
// other b. Operands that do not have the other operation, as texts have no minus, keep the original one.
#define KVMELD_MUTANT_PAIR(name, original, other)                                                            \
  template <class A, class B>                                                                                \
  auto name##_other(int, A const& a, B const& b)->decltype(static_cast<decltype(a original b)>(a other b)) { \
    return static_cast<decltype(a original b)>(a other b);                                                   \
  }                                                                                                          \
  template <class A, class B> auto name##_other(long, A const& a, B const& b) { return a original b; }       \
  template <class A, class B> auto name(int id, A const& a, B const& b) {                                    \
    return on(id) ? name##_other(0, a, b) : a original b;                                                    \
  }
KVMELD_MUTANT_PAIR(lt, <, <=)
KVMELD_MUTANT_PAIR(le, <=, <)
KVMELD_MUTANT_PAIR(gt, >, >=)
KVMELD_MUTANT_PAIR(ge, >=, >)
KVMELD_MUTANT_PAIR(eq, ==, !=)
KVMELD_MUTANT_PAIR(ne, !=, ==)
KVMELD_MUTANT_PAIR(add, +, -)
KVMELD_MUTANT_PAIR(sub, -, +)
KVMELD_MUTANT_PAIR(mul, *, +)
KVMELD_MUTANT_PAIR(div, /, *)
KVMELD_MUTANT_PAIR(rem, %, *)
KVMELD_MUTANT_PAIR(band, &, |)
KVMELD_MUTANT_PAIR(bor, |, &)
KVMELD_MUTANT_PAIR(bxor, ^, &)
#undef KVMELD_MUTANT_PAIR

#define KVMELD_MUTANT_ASSIGNMENT(name, original, other)                                                      \
  template <class A, class B> decltype(auto) name(int id, A&& a, B const& b) {                               \
    return on(id) ? (a other b) : (a original b);                                                            \
  }
KVMELD_MUTANT_ASSIGNMENT(add_to, +=, -=)
KVMELD_MUTANT_ASSIGNMENT(sub_from, -=, +=)
KVMELD_MUTANT_ASSIGNMENT(mul_by, *=, +=)
KVMELD_MUTANT_ASSIGNMENT(div_by, /=, *=)
KVMELD_MUTANT_ASSIGNMENT(or_to, |=, &=)
KVMELD_MUTANT_ASSIGNMENT(and_to, &=, |=)
#undef KVMELD_MUTANT_ASSIGNMENT

}  // namespace kvmeld_mutants
