// SPDX-License-Identifier: Apache-2.0
// A block of threads, or the blocks of a cluster, as a team: the device's form of exec/team.hpp.
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

namespace detail {

/// What a thread does in a cluster: a group of blocks that run at the same time and reach each other's shared
/// memory (from compute capability 9.0 on). A launch without clusters has clusters of one block.
struct cluster {
  /// Number of this block in its cluster.
  __device__ static std::uint32_t rank() {
    std::uint32_t x = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
#endif
    return x;
  }
  /// Number of blocks in the cluster.
  __device__ static std::uint32_t blocks() {
    std::uint32_t x = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
#endif
    return x;
  }
  /// Waits for all threads of the cluster. Orders their accesses to global and shared memory.
  __device__ static void sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
#endif
  }
  /// Where the object that `p` points to in this block's shared memory lies in block `rank`.
  template <class T> __device__ static T* in_block(T* p, [[maybe_unused]] std::uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %0, %1;" : "+l"(p) : "r"(rank));
#endif
    return p;
  }
};

/// Shared memory of the collective calls of a team.
template <int Size> struct team_storage {
  /// CUB's reduction over the block.
  using reduction = cub::BlockReduce<std::uint32_t, Size>;
  /// CUB's exclusive prefix sum over the block.
  using prefix_sum = cub::BlockScan<std::uint32_t, Size>;

  union {
    typename reduction::TempStorage reduce;
    typename prefix_sum::TempStorage scan;
  };
  std::uint32_t of_block;  ///< result of this block, where its lanes read it
  /// Result of this block, where the lanes of all blocks read it. Calls use both in turn.
  std::uint32_t of_cluster[2];
};

}  // namespace detail

/// A block of `Size` threads as a team; `Size` is a multiple of 32. Every thread of the block is a lane and
/// makes its own block_team for the same tile. All lanes make the same collective calls. If `Spans` is true,
/// all blocks of a cluster are one team, whose scratch lies in the first of them. Their number is a power of
/// two, at most 16.
template <int Size, bool Spans = false> class block_team {
public:
  static constexpr int block_size = Size;  ///< threads of a block
  /// Shared memory of the collective calls.
  using storage = detail::team_storage<block_size>;

  /// `scratch` belongs to the block alone, is 64-byte aligned, and lies in shared memory. If the team is one
  /// block, it may also lie in global memory.
  __device__ block_team(std::byte* scratch, storage& shared) : scratch_(scratch), storage_(shared) {
    if (blocks() != 1) sync();  // no block reaches into another one before that one runs
  }

  __device__ std::uint32_t lane() const { return rank() * block_size + threadIdx.x; }
  __device__ std::uint32_t lanes() const { return blocks() * block_size; }
  __device__ void sync() const {
    if (blocks() == 1)
      __syncthreads();
    else
      detail::cluster::sync();
  }
  template <class Op> __device__ std::uint32_t reduce(std::uint32_t x, Op op) const {
    std::uint32_t const all = typename storage::reduction(storage_.reduce).Reduce(x, op);
    if (blocks() != 1) return over_blocks(from_blocks(all), op);
    if (threadIdx.x == 0) storage_.of_block = all;
    __syncthreads();
    std::uint32_t const result = storage_.of_block;
    __syncthreads();  // the next call may reuse the storage
    return result;
  }
  __device__ scan_result scan(std::uint32_t x) const {
    scan_result s{};
    typename storage::prefix_sum(storage_.scan).ExclusiveSum(x, s.before, s.total);
    if (blocks() == 1) {
      __syncthreads();
      return s;
    }
    std::uint32_t const total = from_blocks(s.total);
    bool const precedes = threadIdx.x % warp_size % blocks() < rank();
    s.before += over_blocks(precedes ? total : 0, op_sum{});
    s.total = over_blocks(total, op_sum{});
    return s;
  }
  template <class F> __device__ void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = lane(); i < n; i += lanes()) f(i);
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
  __device__ void commit_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int Groups = 0> __device__ void finish_copies() const {
    if constexpr (Groups == 0) {
      asm volatile("cp.async.wait_all;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
    }
  }
  __device__ void sync_warp() const { __syncwarp(); }

  __device__ block_place place_of_block() const { return {rank(), blocks()}; }
  __device__ block_team<Size> block() const { return {scratch_ + used_, storage_}; }
  template <class T> __device__ T* in_block(T* mine, std::uint32_t index) const {
    return blocks() != 1 ? detail::cluster::in_block(mine, index) : mine;
  }
  /// A lane reads and writes its elements in all blocks, and no other lane does.
  __device__ void add_up_blocks(std::uint32_t* x, std::uint32_t n) const {
    if (blocks() == 1) return;
    for_each(n, [&](std::uint32_t i) {
      std::uint32_t sum = 0;
      for (std::uint32_t b = 0; b < blocks(); ++b) sum += *detail::cluster::in_block(x + i, b);
      for (std::uint32_t b = 0; b < blocks(); ++b) *detail::cluster::in_block(x + i, b) = sum;
    });
    sync();
  }

  template <class T> __device__ T* scratch(std::size_t n) const { return in_block(block_scratch<T>(n), 0); }
  template <class T> __device__ T* block_scratch(std::size_t n) const {
    T* const own = reinterpret_cast<T*>(scratch_ + used_);
    used_ += scratch_size(n * sizeof(T));
    return own;
  }

  /// From now on `scratch` gives out the same memory again. A barrier comes first.
  __device__ void reuse_scratch() const { used_ = 0; }

private:
  /// Number of this block in the team, and how many blocks the team has.
  __device__ std::uint32_t rank() const {
    if constexpr (Spans)
      return detail::cluster::rank();
    else
      return 0;
  }
  __device__ std::uint32_t blocks() const {
    if constexpr (Spans)
      return detail::cluster::blocks();
    else
      return 1;
  }

  /// Thread 0 of each block gives a number. Every thread gets that of one block, and each warp those of all.
  /// The storage of the call before the last is free again, because all blocks have met since.
  __device__ std::uint32_t from_blocks(std::uint32_t x) const {
    std::uint32_t& mine = storage_.of_cluster[calls_++ % 2];
    if (threadIdx.x == 0) mine = x;
    detail::cluster::sync();
    return *detail::cluster::in_block(&mine, threadIdx.x % warp_size % blocks());
  }
  /// Combines the numbers of all blocks. Collective in a warp.
  template <class Op> __device__ std::uint32_t over_blocks(std::uint32_t x, Op op) const {
    for (std::uint32_t step = 1; step < blocks(); step *= 2)
      x = op(x, shuffle(x, threadIdx.x % warp_size ^ step));
    return x;
  }

  std::byte* scratch_;  ///< of this block
  mutable std::size_t used_ = 0;
  mutable std::uint32_t calls_ = 0;
  storage& storage_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
