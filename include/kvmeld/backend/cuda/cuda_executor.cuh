// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: phases run as kernels on a stream, and one block works on one tile at a time.
#pragma once

#include <kvmeld/backend/cuda/block_team.cuh>
#include <kvmeld/backend/cuda/cuda_transfer.cuh>
#include <kvmeld/backend/cuda/device_memory.cuh>
#include <kvmeld/backend/cuda/phase_kernel.cuh>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/call_record.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/staging_ring.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Numbers that are passed as a kernel's argument. No host memory has to outlive the launch, not even in a
/// captured graph.
template <std::uint32_t Most> struct number_packet {
  std::uint32_t count;
  std::uint32_t numbers[Most];
};
constexpr std::uint32_t many_numbers = 1000;  ///< arguments of a launch fit into 4 KB
constexpr std::uint32_t few_numbers = 30;     ///< enough for most lists; a launch copies all its arguments
template <std::uint32_t Most>
__global__ void write_numbers(__grid_constant__ number_packet<Most> const packet, std::uint32_t* to) {
  for (std::uint32_t i = threadIdx.x; i < packet.count; i += blockDim.x) to[i] = packet.numbers[i];
}

}  // namespace detail

/// Enqueues phases on a stream. Calls wait for the stream only in `download`, and in `upload` of pieces that
/// are too large to be launch arguments. The executor allocates staging for lists at construction. It
/// allocates scratch when a phase first needs more than shared memory has, unless `reserve` was called
/// before. It keeps errors of the runtime: `error()` is the first one. Copies are independent and use the
/// same stream. The stream must outlive all copies and the memory that they allocated, because that memory is
/// freed in stream order. The stream's device must be current when an executor is made. Later calls may come
/// from threads that have another device current.
template <class Resource = async_resource> class cuda_executor : public recordable_executor {
public:
  using memory = device_memory<Resource>;
  using transfer = cuda_transfer;
  static constexpr bool immediate = false;
  static constexpr std::uint32_t staged_numbers = 1u << 16;  ///< numbers that the staging ring holds

  /// With tuning off every phase runs in its generic form. Its plans are those of the host's generic forms.
  explicit cuda_executor(cudaStream_t stream = nullptr, Resource resource = {}, tuning t = tuning::on)
      : cuda_executor(stream, std::move(resource), t, current_device()) {}
  /// Copies stream, resource and tuning. The copy has staging and scratch of its own, because another thread
  /// may use it at the same time.
  cuda_executor(cuda_executor const& other)
      : cuda_executor(other.stream_, other.resource_, other.tuning_, other.device_) {}
  /// Takes over everything from the other executor.
  cuda_executor(cuda_executor&&) = default;
  /// Swaps with `other`, which then frees what this object held.
  cuda_executor& operator=(cuda_executor other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(resource_, other.resource_);
    std::swap(tuning_, other.tuning_);
    std::swap(staging_, other.staging_);
    std::swap(scratch_, other.scratch_);
    std::swap(retired_, other.retired_);
    std::swap(device_, other.device_);
    std::swap(processors_, other.processors_);
    std::swap(max_shared_, other.max_shared_);
    std::swap(has_clusters_, other.has_clusters_);
    std::swap(launches_, other.launches_);
    std::swap(error_, other.error_);
    return *this;
  }

  /// The stream that launches and copies are enqueued on.
  cudaStream_t stream() const { return stream_; }
  /// The first error of the runtime, or cudaSuccess. Once set, it stays.
  cudaError_t error() const { return error_; }
  /// Notes a result of the runtime; the first error stays.
  void note(cudaError_t e) const {
    if (e == cudaSuccess) return;
    cudaGetLastError();  // or a later launch would report it
    if (error_ == cudaSuccess) error_ = e;
  }
  /// Launches enqueued so far; the replay of a record counts none.
  std::size_t launches() const { return launches_; }
  /// Half the multiprocessors, rounded up. A default wave has two tracks per worker or more, so at
  /// least one per multiprocessor.
  std::uint32_t workers() const { return processors_ / 2 + processors_ % 2; }
  /// Lanes of the phases that read or write rows.
  int lanes() const { return detail::usual_block; }

  memory allocate(std::size_t bytes) const {
    auto const current = on_device();
    return memory(resource_, bytes, stream_);
  }
  void clear(void* to, std::size_t bytes) const {
    auto const current = on_device();
    note(cudaMemsetAsync(to, 0, bytes, stream_));
  }
  /// Passes pieces of up to some 64 KB as launch arguments, so that nothing waits and a graph can capture
  /// them. Larger pieces, and sizes that are no multiple of 4 bytes, are copied, and the call waits.
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes % sizeof(std::uint32_t) == 0 &&
        bytes <= 16 * sizeof(detail::number_packet<detail::many_numbers>)) {
      write(static_cast<std::uint32_t*>(to),
            {static_cast<std::uint32_t const*>(host), bytes / sizeof(std::uint32_t)});
    } else {
      auto const current = on_device();
      note(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_));
      note(cudaStreamSynchronize(stream_));
    }
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    auto const current = on_device();
    note(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_));
    note(cudaStreamSynchronize(stream_));
  }
  /// Enqueues a copy of the list to device memory. It stays valid until a third of staged_numbers more have
  /// been staged. A list longer than that third allocates a larger ring, once.
  index_list stage(index_list list) {
    if (record() != nullptr) return record()->stage(list);
    std::uint32_t* const to = staging_.place(
        list.size(), [&](std::size_t bytes) { return captures() ? memory() : allocate(bytes); });
    if (to == nullptr && list.size() != 0) {
      lacks_lists(list.size());
      return {nullptr, 0};
    }
    write(to, list);
    return {to, list.size()};
  }

  /// Allocates scratch for phases that need `bytes` per block, if shared memory has less. Refuses where the
  /// device has no memory; the scratch allocated before stays.
  status reserve(std::size_t bytes) {
    if (make_room(bytes)) return {};
    return raise(refusal("cuda_executor", "scratch per block in bytes", bytes, detail::memory_to_be_had));
  }

  tuning tuning_mode() const { return tuning_; }
  /// Scratch of up to this many bytes per block is shared memory.
  std::size_t max_scratch() const { return max_shared_; }

  /// Runs the phase on all tiles of all items, or its tuned form.
  template <class Phase, class Source>
  void run(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) {
    if constexpr (tuned<warps, Phase>::value) {
      if (tuning_ == tuning::on && tuned<warps, Phase>::accepts(phase, *this)) {
        return tuned<warps, Phase>::enqueue(*this, phase, extent, items, source);
      }
    }
    launch(phase, extent, items, source);
  }

  /// One launch of exactly this phase, never of its tuned form.
  template <class Phase, class Source>
  void launch(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) {
    std::uint32_t const per_item = phase.tiles(extent);
    std::uint64_t const total = std::uint64_t{per_item} * items;
    constexpr int block = detail::block_of<Phase>;
    std::size_t const bytes = phase.scratch_bytes(block);
    auto const current = on_device();
    if (rehearses()) {
      if (!make_room(bytes)) lacks(bytes);
      return;
    }
    if (record() != nullptr && !record()->launch(kind_of<Phase>(), total)) return;
    if (total == 0) return;
    auto* const kernel = detail::run_tiles<Phase, Source>;
    if (bytes <= max_shared_) {
      if (bytes > 40 * 1024) {
        // The attribute belongs to the function, not to the launch. All launches set the same value.
        note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(max_shared_)));
      }
      auto const grid = static_cast<std::uint32_t>(min_of<std::uint64_t>(total, 1u << 30));
      std::uint32_t blocks = 1;
      if constexpr (spans_blocks<Phase>::value) {
        blocks = blocks_per_tile(total, extent.capacity / (entries_per_lane<Phase>::value * block));
        if (blocks > 1) blocks = min_of(blocks, detail::largest_cluster<Phase, Source>(max_shared_, device_));
      }
      start(kernel, {grid, blocks, block}, bytes, phase, source, per_item, items, nullptr, 0);
    } else if constexpr (has_near_scratch<Phase>::value) {
      note(cudaErrorInvalidConfiguration);
    } else {
      if (record() != nullptr && bytes * blocks() > scratch_.size()) {  // a capture cannot allocate
        return record()->refuse("scratch in bytes of a block", scratch_.size() / blocks(), "at least ", bytes,
                                " (call reserve before)");
      }
      if (status const s = reserve(bytes); !s.ok()) return;
      auto const grid = static_cast<std::uint32_t>(min_of<std::uint64_t>(total, blocks()));
      start(kernel, {grid, 1, block}, 0, phase, source, per_item, items,
            static_cast<std::byte*>(scratch_.data()), bytes);
    }
  }

  /// Writes numbers to device memory, as arguments of launches. Nothing waits, and `list` may change as soon
  /// as the call returns.
  void write(std::uint32_t* to, index_list list) const {
    auto const current = on_device();
    for (std::size_t i = 0; i < list.size(); i += detail::many_numbers) {
      auto const count =
          static_cast<std::uint32_t>(min_of<std::size_t>(detail::many_numbers, list.size() - i));
      if (count <= detail::few_numbers)
        write_packet<detail::few_numbers>(to + i, list.begin() + i, count);
      else
        write_packet<detail::many_numbers>(to + i, list.begin() + i, count);
    }
  }

  /// Makes the executor's device current while the result lives.
  detail::device_guard on_device() const { return detail::device_guard(device_); }

private:
  cuda_executor(cudaStream_t stream, Resource resource, tuning t, int device)
      : stream_(stream), resource_(std::move(resource)), tuning_(t), device_(device) {
    auto const current = on_device();
    int processors = 0, shared = 0, clusters = 0;
    note(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_));
    note(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
    note(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device_));
    processors_ = static_cast<std::uint32_t>(processors);
    has_clusters_ = clusters != 0;
    // Leaves room for the shared memory of collective calls, and for what the runtime reserves per block.
    max_shared_ = shared > 8192 ? static_cast<std::size_t>(shared) - 8192 : 0;
    if (error_ != cudaSuccess) return;
    memory lists = allocate(staged_numbers * sizeof(std::uint32_t));
    if (lists.data() == nullptr) lacks_lists(staged_numbers);
    staging_ = detail::staging_ring<memory>(std::move(lists));
  }
  static int current_device() {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();  // the next call of the runtime reports it
    return device;
  }
  /// Refuses a list for missing memory. Where exceptions are off, `error()` reports it.
  void lacks_lists(std::size_t numbers) const {
    note(cudaErrorMemoryAllocation);
    raise(refusal("cuda_executor", "list in numbers", numbers, detail::memory_to_be_had));
  }
  std::uint32_t blocks() const { return 2 * processors_; }
  bool make_room(std::size_t bytes) {
    std::size_t const wanted = bytes * blocks();
    if (bytes <= max_shared_ || wanted <= scratch_.size()) return true;
    if (captures()) return false;  // what a capture allocates would belong to the graph
    retired_.reserve(retired_.size() + 1);
    memory larger = allocate(wanted);
    if (larger.data() == nullptr) return false;
    retire(scratch_);
    scratch_ = std::move(larger);
    return true;
  }

  template <std::uint32_t Most>
  void write_packet(std::uint32_t* to, std::uint32_t const* numbers, std::uint32_t count) const {
    detail::number_packet<Most> packet;
    packet.count = count;
    for (std::uint32_t j = 0; j < count; ++j) packet.numbers[j] = numbers[j];
    start(detail::write_numbers<Most>, {1, 1, 128}, 0, packet, to);
  }

  /// How many blocks work on a tile: as many as leave no multiprocessor idle, if the track is long enough for
  /// so many, the `useful` ones. 1 on devices without clusters.
  std::uint32_t blocks_per_tile(std::uint64_t tiles, std::uint32_t useful) const {
    if (!has_clusters_) return 1;
    return detail::floor_power(static_cast<std::uint32_t>(max_of<std::uint64_t>(
        1, min_of<std::uint64_t>(min_of(most_blocks_of_team, useful), processors_ / tiles))));
  }

  /// The form of a launch.
  struct grid_form {
    std::uint32_t teams, blocks_per_team;
    int block;
  };

  /// Launches the kernel and notes the launch's own error. cudaGetLastError might report one of an earlier
  /// call that somebody else made.
  template <class... Parameters>
  void start(void (*kernel)(Parameters...), grid_form form, std::size_t shared,
             std::enable_if_t<true, Parameters> const&... arguments) const {
    void* all[] = {const_cast<void*>(static_cast<void const*>(&arguments))...};
    ++launches_;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = form.blocks_per_team;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(form.teams * form.blocks_per_team);
    launch.blockDim = dim3(static_cast<std::uint32_t>(form.block));
    launch.dynamicSmemBytes = shared;
    launch.stream = stream_;
    launch.attrs = &cluster;
    launch.numAttrs = form.blocks_per_team > 1 ? 1 : 0;
    note(cudaLaunchKernelExC(&launch, reinterpret_cast<void const*>(kernel), all));
  }

  /// Whether the stream is being captured, by the engine or by a call_graph. The default stream also says so
  /// while a capture of another stream forbids its use.
  bool captures() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t const e = cudaStreamIsCapturing(stream_, &status);
    if (e != cudaSuccess) cudaGetLastError();
    return e != cudaSuccess || status != cudaStreamCaptureStatusNone;
  }

  /// Keeps outgrown memory, because graphs may have captured its address.
  void retire(memory& m) {
    if (m.size() != 0) retired_.push_back(std::move(m));
    m = {};
  }

  cudaStream_t stream_;
  Resource resource_;
  tuning tuning_;
  int device_;
  std::vector<memory> retired_;
  detail::staging_ring<memory> staging_;
  memory scratch_;
  std::uint32_t processors_ = 1;
  std::size_t max_shared_ = 0;
  bool has_clusters_ = false;
  mutable std::size_t launches_ = 0;
  mutable cudaError_t error_ = cudaSuccess;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
