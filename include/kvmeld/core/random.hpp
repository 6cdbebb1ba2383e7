// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers. An entry gets the same draw on any backend, in any order, in any batch.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Four words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
struct random_block {
  /// Four numbers of 32 bits.
  std::uint32_t word[4];
};

/// The published function: ten rounds on the counter under a key.
KVMELD_HD inline random_block philox4x32(random_block counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xD2511F53u} * counter.word[0];
    std::uint64_t const b = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// What a draw belongs to. All numbers are global, so tensor-parallel ranks and batches agree.
struct random_key {
  std::uint64_t seed;  ///< seed of the whole run
  /// Global layer, the engine's number for the sequence (sequence_id), global KV head.
  std::uint32_t layer, sequence_id, kv_head;
  std::uint32_t position;  ///< token position
};

/// A uniform number in [0, 1), a multiple of 2^-24.
KVMELD_HD inline float uniform01(random_key k) {
  random_block const r =
      philox4x32({{k.layer, k.sequence_id, k.kv_head, k.position}}, static_cast<std::uint32_t>(k.seed),
                 static_cast<std::uint32_t>(k.seed >> 32));
  return static_cast<float>(r.word[0] >> 8) * (1.0f / 16777216.0f);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
