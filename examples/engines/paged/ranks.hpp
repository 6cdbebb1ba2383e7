// What the ranks of a tensor parallel group have to agree on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paged_engine {

/// A group of one. Others give every rank the attention outputs of all, and the largest of a number; requests
/// arrive in the same order everywhere, so that all else follows.
struct one_rank {
  void gather(float*, std::size_t /*rows*/, std::size_t /*width*/) const {}
  std::uint32_t most(std::uint32_t x) const { return x; }
};

}  // namespace paged_engine
