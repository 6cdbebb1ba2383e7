#include "arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld_library {

namespace {

/// The fewest bytes of a program's options: all extents. Structures end at multiples of their alignment.
constexpr std::size_t alignment = alignof(kvmeld_options);
constexpr std::size_t least_bytes =
    (offsetof(kvmeld_options, capacity) + sizeof(std::uint32_t) + alignment - 1) / alignment * alignment;

}  // namespace

kvmeld_options read_options(char const* call, kvmeld_options const* given) {
  require(given, call, "options", "the options of a cache");
  if (given->bytes < least_bytes || given->bytes > sizeof(kvmeld_options) || given->bytes % alignment != 0) {
    refuse(call, "options.bytes", given->bytes, "a multiple of ", alignment, " from ", least_bytes, " to ",
           sizeof(kvmeld_options), ", as kvmeld_options_init sets it");
  }
  kvmeld_options out;
  (void)kvmeld_options_init(&out, sizeof out);
  std::memcpy(&out, given, given->bytes);
  // Without their context the functions cannot be called.
  if (given->bytes < offsetof(kvmeld_options, allocator) + sizeof out.allocator) out.allocator = {};
  return out;
}

kvmeld::budget read_budget(char const* call, kvmeld_budget const& b) {
  bool const by_ratio = !(b.ratio == 0.0);
  if (by_ratio == (b.entries != 0)) {
    refuse(call, "budget.ratio", b.ratio,
           by_ratio ? "0, because budget.entries is given" : "above 0, because budget.entries is 0");
  }
  kvmeld::budget const own = by_ratio ? kvmeld::budget::ratio(b.ratio) : kvmeld::budget::entries(b.entries);
  auto const among =
      read_enum(call, "budget.over", b.over, kvmeld::budget_scope::all_layers, names_of_values.scope);
  return among == kvmeld::budget_scope::head ? own : own.over(among, b.floor);
}

}  // namespace kvmeld_library
