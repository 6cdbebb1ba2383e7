// A block of threads as a team: the device's form of exec/team.hpp.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/team.hpp>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A block of `Size` threads as a team; `Size` is a multiple of 32. Every thread of the block is a lane and
/// makes its own block_team for the same tile. All lanes make the same collective calls.
template <int Size> class block_team {
public:
  static constexpr int block_size = Size;  ///< threads of the block
  /// CUB's reduction over the block.
  using reduction = cub::BlockReduce<std::uint32_t, block_size>;
  /// CUB's exclusive prefix sum over the block.
  using prefix_sum = cub::BlockScan<std::uint32_t, block_size>;

  /// Shared memory of the collective calls.
  struct storage {
    union {
      typename reduction::TempStorage reduce;
      typename prefix_sum::TempStorage scan;
    };
    std::uint32_t result;  ///< of a reduction, where all lanes read it
  };

  /// `scratch` belongs to the block alone, lies in shared or global memory, and is 64-byte aligned.
  __device__ block_team(std::byte* scratch, storage& shared)
      : first_(scratch), next_(scratch), storage_(shared) {}

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

  // exec/warps.hpp
  static constexpr bool has_warps = true;  ///< lanes move in warps of 32
  __device__ std::uint32_t ballot(bool yes) const { return __ballot_sync(0xffffffffu, yes); }
  __device__ std::uint32_t shuffle(std::uint32_t x, std::uint32_t from) const {
    return __shfl_sync(0xffffffffu, x, static_cast<int>(from));
  }
  template <matrix_format Format>
  __device__ void multiply(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2]) const {
    static_assert(Format != matrix_format::none);
    if constexpr (Format == matrix_format::f16) {
      // volatile keeps the instruction in place: in a branch that not all lanes take it would be undefined
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                   "{%0,%1,%2,%3};"
                   : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  __device__ void copy_ahead(void* to, void const* from) const {
    auto const shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  }
  __device__ void finish_copies() const { asm volatile("cp.async.wait_all;" ::: "memory"); }

  template <class T> __device__ T* scratch(std::size_t n) const {
    std::byte* const p = next_;
    next_ += scratch_size(n * sizeof(T));
    return reinterpret_cast<T*>(p);
  }

  /// From now on `scratch` gives out the same memory again. A barrier comes first.
  __device__ void reuse_scratch() const { next_ = first_; }

private:
  std::byte* first_;
  mutable std::byte* next_;
  storage& storage_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
