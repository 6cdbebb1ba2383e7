// What the figures are compared with on the same machine in the same run: a copy, and a BLAS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvmeld_bench {

/// Times copies and matrix products with as many threads as the library uses.
class yardstick {
public:
  explicit yardstick(std::uint32_t threads);

  /// Seconds to move `bytes`, where bytes read and bytes written count alike: a memcpy of bytes / 2. Copies of more
  /// than 256 MiB are scaled from one of 256 MiB.
  double move_seconds(double bytes);

  /// Seconds of the matrix products behind a chunk similarity: per chunk of `chunk` rows, the odd rows times the even
  /// rows transposed, all in float. Every thread calls cblas_sgemm, itself of one thread, on its share of the chunks.
  /// The rows come from 64 chunks that stay in the cache, and nothing is done with the products: no norms, no maximum,
  /// no conversion of 16-bit types. Empty without a BLAS.
  std::optional<double> similarity_seconds(std::uint32_t tracks, std::uint32_t rows_per_track,
                                           std::uint32_t chunk, std::uint32_t dim) const;

  /// Name of the BLAS, empty without one.
  static std::string blas_name();

private:
  std::uint32_t threads_;
  std::vector<unsigned char> from_, to_;
};

/// Starts the program anew with OPENBLAS_CORETYPE set where OpenBLAS does not know the processor and would fall back
/// to kernels of 2004: it knows processors by number, and reads the variable only when it is loaded. Does nothing
/// where the variable is set, OpenBLAS has found wide kernels by itself, or the system is not Linux on x86-64.
void restart_for_blas(char** arguments);

}  // namespace kvmeld_bench
