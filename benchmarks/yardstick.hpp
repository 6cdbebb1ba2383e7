// What the figures are compared with on the same machine in the same run: a copy, and a BLAS.
#pragma once

#include "repeat.hpp"

#include <kvmeld/backend/host/host_executor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvmeld_bench {

/// Times copies and matrix products with as many threads as the library uses.
class yardstick {
public:
  explicit yardstick(std::uint32_t threads);

  /// Seconds to move `bytes`, where bytes read and bytes written count alike: a memcpy of bytes / 2. Copies
  /// of more than 256 MiB are scaled from one of 256 MiB.
  double move_seconds(double bytes);

  /// Seconds to read `bytes` once and add them up, in as many words at a time as the baseline's registers
  /// hold. Reads of more than 512 MiB are scaled from one of 512 MiB.
  double read_seconds(double bytes);

  /// Seconds until `sum(part)` has run for all parts, shared out over the threads: for sums over what lies
  /// scattered.
  template <class Sum> double pass_seconds(std::uint32_t parts, Sum sum) const {
    std::vector<std::uint64_t> sums(parts);
    double const seconds = median_seconds(
        0.02, [] {},
        [&] {
          parallel_for(threads_, parts, [&](std::int64_t part) {
            sums[static_cast<std::size_t>(part)] = sum(static_cast<std::uint32_t>(part));
          });
        });
    for (std::uint64_t s : sums) sink_ = sink_ + s;
    return seconds;
  }

  /// Seconds of the matrix products behind a chunk similarity: per chunk of `chunk` rows, the odd rows times
  /// the even rows transposed, all in float. Every thread calls cblas_sgemm, itself of one thread, on its
  /// share of the chunks. The rows come from 64 chunks that stay in the cache, and nothing is done with the
  /// products: no norms, no maximum, no conversion of 16-bit types. Empty without a BLAS.
  std::optional<double> similarity_seconds(std::uint32_t tracks, std::uint32_t rows_per_track,
                                           std::uint32_t chunk, std::uint32_t dim) const;

  /// Seconds of `count` products of m x dim with n x dim transposed, in float, over rows that stay in the
  /// cache; shared out over the threads. Empty without a BLAS.
  std::optional<double> product_seconds(std::uint32_t count, std::uint32_t m, std::uint32_t n,
                                        std::uint32_t dim) const;

  /// Name of the BLAS, empty without one.
  static std::string blas_name();

private:
  std::uint32_t threads_;
  kvmeld::host_memory from_, to_;            // aligned as the tensors are
  mutable std::uint64_t volatile sink_ = 0;  ///< so that no sum is left out
};

/// Starts the program anew with OPENBLAS_CORETYPE set where OpenBLAS does not know the processor and would
/// fall back to kernels of 2004: it knows processors by number, and reads the variable only when it is
/// loaded. Does nothing where the variable is set, OpenBLAS has found wide kernels by itself, or the system
/// is not Linux on x86-64.
void restart_for_blas(char** arguments);

}  // namespace kvmeld_bench
