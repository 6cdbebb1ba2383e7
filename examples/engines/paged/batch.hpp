// Sizes of the cache, and which rows of a step belong to whom.
#pragma once

#include <cstdint>

namespace paged_engine {

struct kv_sizes {
  std::uint32_t pages = 256, page_size = 16;
  std::uint32_t slots = 8;        ///< sequences at a time
  std::uint32_t capacity = 2048;  ///< entries of a sequence, at most
  std::uint32_t first_head = 0;   ///< KV heads of this rank, of the model's
  std::uint32_t heads = 0;        ///< 0: all of them
};

/// The rows of one sequence in a batch: rows `first` .. first + count - 1 are its last tokens.
struct batch_part {
  std::uint32_t slot, first, count;
};

}  // namespace paged_engine
