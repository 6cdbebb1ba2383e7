// How arguments of kvmeld.h become those of kvmeld, and which are refused.
#pragma once

#include "failure.hpp"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/kvmeld.h>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld_library {

/// The options as this library knows them. Fields that the program's options do not have get their defaults.
kvmeld_options read_options(char const* call, kvmeld_options const* given);

/// The names of an enumeration's values, in their order, with commas between them: refusals tell them.
struct enum_names {
  char const* scope = "head, layer, all_layers";
  char const* bias = "per_head, shared, none";
  char const* pairing = "none, half_split, interleaved";
  char const* element = "float32, float16, bfloat16";
};
constexpr enum_names names_of_values;

/// A number of 0 to `most` that stands for a value of Enum; `names` are those of all values.
template <class Enum>
Enum read_enum(char const* call, char const* argument, std::int32_t value, Enum most, char const* names) {
  auto const last = static_cast<std::int32_t>(most);
  if (value < 0 || value > last) refuse(call, argument, value, "0 to ", last, " (", names, ")");
  return static_cast<Enum>(value);
}

/// `n` numbers; null is refused unless n is 0.
inline kvmeld::index_list read_list(char const* call, char const* argument, std::uint32_t const* list,
                                    std::uint32_t n) {
  if (n != 0) require(list, call, argument, "an array of n numbers");
  return {list, n};
}

/// A type as a value.
template <class T> struct type_tag { using type = T; };

/// The name of an element type, with its number.
inline char const* name_of(kvmeld_element element) {
  return element == KVMELD_FLOAT16    ? "1 (float16)"
         : element == KVMELD_BFLOAT16 ? "2 (bfloat16)"
                                      : "0 (float32)";
}

/// Calls f(type_tag<T>()) for the type of an element.
template <class F> auto with_element(char const* call, char const* argument, kvmeld_element element, F f) {
  if (element == KVMELD_FLOAT16) return f(type_tag<kvmeld::float16>());
  if (element == KVMELD_BFLOAT16) return f(type_tag<kvmeld::bfloat16>());
  if (element != KVMELD_FLOAT32) {
    refuse(call, argument, element, "0 to ", KVMELD_BFLOAT16, " (", names_of_values.element, ")");
  }
  return f(type_tag<float>());
}

/// Rows of queries.
inline kvmeld::any_rows read_rows(char const* call, kvmeld_element element, void const* rows,
                                  std::int64_t head_stride, std::int64_t row_stride) {
  return with_element(call, "element", element, [&](auto tag) -> kvmeld::any_rows {
    using type = typename decltype(tag)::type;
    return kvmeld::head_rows<type const>{static_cast<type const*>(rows), 0, head_stride, row_stride};
  });
}

/// How keys lie rotated; null: they do not.
inline kvmeld::rope_params read_rope(char const* call, kvmeld_rope const* given) {
  kvmeld::rope_params out;
  if (given == nullptr) return out;
  out.pairing = read_enum(call, "rope.pairing", given->pairing, kvmeld::rope_pairing::interleaved,
                          names_of_values.pairing);
  out.rotary_dim = given->rotary_dim;
  if (given->base != 0.0) out.base = given->base;
  if (given->factor != 0.0) out.factor = given->factor;
  out.frequencies = given->frequencies;
  return out;
}

/// The budget of a call.
kvmeld::budget read_budget(char const* call, kvmeld_budget const& b);

}  // namespace kvmeld_library
