// A block of threads as a team: the device's form of core/team.hpp.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/team.hpp>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Every lane of the block makes one for the same tile. Collective calls are made by all lanes alike.
class block_team {
public:
  static constexpr int block_size = 256;
  using reduction = cub::BlockReduce<std::uint32_t, block_size>;
  using prefix_sum = cub::BlockScan<std::uint32_t, block_size>;

  /// Shared memory of the collective calls.
  struct storage {
    union {
      typename reduction::TempStorage reduce;
      typename prefix_sum::TempStorage scan;
    };
    std::uint32_t result;
  };

  /// `scratch` is the block's own, in shared or global memory, 64-byte aligned.
  __device__ block_team(std::byte* scratch, storage& shared) : next_(scratch), storage_(shared) {}

  __device__ std::uint32_t lane() const { return threadIdx.x; }
  __device__ std::uint32_t lanes() const { return block_size; }
  __device__ void sync() const { __syncthreads(); }
  template <class Op> __device__ std::uint32_t reduce(std::uint32_t x, Op op) const {
    std::uint32_t const all = reduction(storage_.reduce).Reduce(x, op);
    if (threadIdx.x == 0) storage_.result = all;
    __syncthreads();
    std::uint32_t const result = storage_.result;
    __syncthreads();  // the next call may reuse the storage
    return result;
  }
  __device__ scan_result scan(std::uint32_t x) const {
    scan_result s{};
    prefix_sum(storage_.scan).ExclusiveSum(x, s.before, s.total);
    __syncthreads();
    return s;
  }
  template <class F> __device__ void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = threadIdx.x; i < n; i += block_size) f(i);
  }
  __device__ std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    return atomicAdd(where, x);
  }
  template <class T> __device__ T* scratch(std::size_t n) const {
    std::byte* const p = next_;
    next_ += scratch_size(n * sizeof(T));
    return reinterpret_cast<T*>(p);
  }

private:
  mutable std::byte* next_;
  storage& storage_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
