// SPDX-License-Identifier: Apache-2.0
// A phase as a kernel: threads of a block, blocks of a cluster, and the loop of a team over its tiles.
#pragma once

#include <kvmeld/backend/cuda/block_team.cuh>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Threads of a block, and how many blocks the registers of a multiprocessor must have room for. Phases that
/// go through a track's entries and read no rows wait for memory most of the time and get the largest block.
/// Other phases say with `min_blocks` how many blocks they need to hide that wait; the default is one.
constexpr int usual_block = 256, wide_block = 1024;
template <class Phase>
constexpr int block_of = is_light<Phase>::value || is_wide<Phase>::value ? wide_block : usual_block;
template <class Phase, class = void> struct min_blocks : std::integral_constant<int, 1> {};
template <class Phase>
struct min_blocks<Phase, std::enable_if_t<Phase::min_blocks != 0>>
    : std::integral_constant<int, Phase::min_blocks> {};

/// A team runs the tiles t, t + teams, ... of a phase; tiles are counted item by item. A team is a block, or
/// a cluster of blocks if the phase spans blocks. Where `scratch` is null, the team's scratch is shared
/// memory; phases with near_scratch always have it there.
template <class Phase, class Source>
__global__ void __launch_bounds__(block_of<Phase>, min_blocks<Phase>::value)
    run_tiles(__grid_constant__ Phase const phase, __grid_constant__ Source const source,
              std::uint32_t per_item, std::uint32_t items, std::byte* scratch, std::size_t scratch_bytes) {
  extern __shared__ __align__(64) std::byte shared[];
  constexpr bool spans = spans_blocks<Phase>::value;
  using team_type = block_team<block_of<Phase>, spans>;
  __shared__ typename team_type::storage collective;
  std::byte* own = shared;
  if constexpr (!has_near_scratch<Phase>::value) {
    if (scratch != nullptr) own = scratch + blockIdx.x * scratch_bytes;
  }
  std::uint32_t first = blockIdx.x, teams = gridDim.x;
  if constexpr (spans) {
    first /= cluster::blocks();
    teams /= cluster::blocks();
  }
  std::uint32_t item = first / per_item, index = first % per_item;
  while (item < items) {
    if (!source.idle(item)) {
      team_type const team(own, collective);
      phase(team, tile{source.where(item), item, index});
      team.sync();
    }
    item += teams / per_item;
    index += teams % per_item;
    if (index >= per_item) {
      index -= per_item;
      ++item;
    }
  }
}

/// The largest power of two that is not above n; n is not 0.
inline std::uint32_t floor_power(std::uint32_t n) {
  std::uint32_t power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

/// Devices of which a process remembers the size of clusters; it asks the others at every launch.
constexpr int remembered_devices = 32;

/// The most blocks that a cluster of this kernel can have if each has `shared` bytes of shared memory; 1
/// where the kernel was compiled for devices without clusters. `device` is the current device, and what it
/// answers is remembered: a kernel's attributes are those of one device.
template <class Phase, class Source> std::uint32_t largest_cluster(std::size_t shared, int device) {
  static std::atomic<std::uint32_t> remembered[remembered_devices] = {};  // 0: not asked yet
  std::uint32_t most = device < remembered_devices ? remembered[device].load() : 0;
  if (most != 0) return most;
  most = [&] {
    auto const* const kernel = reinterpret_cast<void const*>(run_tiles<Phase, Source>);
    cudaFuncAttributes is{};
    int blocks = 1;
    if (cudaFuncGetAttributes(&is, kernel) != cudaSuccess || is.ptxVersion < 90) {
      cudaGetLastError();  // the launch would report it
      return 1u;
    }
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(most_blocks_of_team);
    launch.blockDim = dim3(block_of<Phase>);
    launch.dynamicSmemBytes = shared;
    if (cudaOccupancyMaxPotentialClusterSize(&blocks, kernel, &launch) != cudaSuccess) blocks = 1;
    cudaGetLastError();  // a refusal only means that teams stay small
    return floor_power(static_cast<std::uint32_t>(max_of(1, blocks)));
  }();
  if (device < remembered_devices) remembered[device].store(most);
  return most;
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
