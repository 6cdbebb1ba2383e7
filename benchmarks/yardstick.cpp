#include "yardstick.hpp"

#include "repeat.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(KVMELD_BENCH_BLAS)
#include <cblas.h>
#if defined(__linux__) && defined(__x86_64__)
#include <cstdlib>
#include <string>
#include <unistd.h>
#define KVMELD_BENCH_RESTART 1
#endif
#endif

namespace kvmeld_bench {
namespace {

std::byte* bytes_of(kvmeld::host_memory const& m) { return static_cast<std::byte*>(m.data()); }

/// At least `size` bytes, all touched.
void grow(kvmeld::host_memory& m, std::size_t size) {
  if (m.size() >= size) return;
  m = kvmeld::host_memory(size);
  std::memset(m.data(), 1, size);
}

}  // namespace

yardstick::yardstick(std::uint32_t threads) : threads_(threads) {
#if defined(KVMELD_BENCH_BLAS)
  openblas_set_num_threads(1);  // its own threads would spin beside the ones that are timed
#endif
}

double yardstick::move_seconds(double bytes) {
  constexpr std::size_t most = std::size_t{256} << 20;
  constexpr std::size_t worth_a_thread = std::size_t{256} << 10;
  double const wanted = std::max(1.0, bytes / 2);
  std::size_t const size = wanted < static_cast<double>(most) ? static_cast<std::size_t>(wanted) : most;
  grow(from_, size);
  grow(to_, size);
  std::size_t const parts = std::clamp<std::size_t>(size / worth_a_thread, 1, threads_);
  double const seconds = median_seconds(
      0.02, [] {},
      [&] {
        parallel_for(static_cast<std::uint32_t>(parts), static_cast<std::int64_t>(parts),
                     [&](std::int64_t p) {
                       std::size_t const begin = size * static_cast<std::size_t>(p) / parts;
                       std::size_t const end = size * (static_cast<std::size_t>(p) + 1) / parts;
                       std::memcpy(bytes_of(to_) + begin, bytes_of(from_) + begin, end - begin);
                     });
      });
  return seconds * wanted / static_cast<double>(size);
}

double yardstick::read_seconds(double bytes) {
  constexpr std::size_t most = std::size_t{512} << 20;
  constexpr std::size_t worth_a_thread = std::size_t{128} << 10;
  double const wanted = std::max(64.0, bytes);
  std::size_t const size =
      wanted < static_cast<double>(most) ? static_cast<std::size_t>(wanted) / 64 * 64 : most;
  grow(from_, size);
  std::size_t const parts = std::clamp<std::size_t>(size / worth_a_thread, 1, threads_);
  double const seconds = pass_seconds(static_cast<std::uint32_t>(parts), [&](std::uint32_t part) {
    std::size_t const begin = size / 64 * part / parts;
    std::size_t const end = size / 64 * (part + 1) / parts;
    std::uint64_t sum[8] = {};
    for (std::size_t i = begin; i < end; ++i) {
      std::uint64_t x[8];
      std::memcpy(x, bytes_of(from_) + 64 * i, sizeof x);
      for (int j = 0; j < 8; ++j) sum[j] += x[j];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  });
  return seconds * wanted / static_cast<double>(size);
}

#if defined(KVMELD_BENCH_BLAS)

std::optional<double> yardstick::similarity_seconds(std::uint32_t tracks, std::uint32_t rows_per_track,
                                                    std::uint32_t chunk, std::uint32_t dim) const {
  constexpr std::uint32_t pool_chunks = 64;
  std::size_t const chunk_floats = std::size_t{chunk} * dim;
  std::vector<float> pool(pool_chunks * chunk_floats);
  std::uint32_t state = 1;
  for (float& x : pool) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) * (1.0f / 8388608.0f) - 1.0f;
  }
  std::uint32_t const sources = (chunk + 1) / 2;
  std::uint32_t const per_track = (rows_per_track + chunk - 1) / chunk;
  std::vector<float> products(std::size_t{threads_} * sources * sources);
  return median_seconds(
      0.2, [] {},
      [&] {
        parallel_for(threads_, threads_, [&](std::int64_t thread) {
          float* const c = products.data() + static_cast<std::size_t>(thread) * sources * sources;
          std::uint32_t const total = tracks * per_track;
          auto const share = [&](std::int64_t t) {
            return static_cast<std::uint32_t>(static_cast<std::int64_t>(total) * t / threads_);
          };
          for (std::uint32_t i = share(thread); i < share(thread + 1); ++i) {
            std::uint32_t const rows = std::min(chunk, rows_per_track - i % per_track * chunk);
            int const m = static_cast<int>((rows + 1) / 2);
            int const n = static_cast<int>(rows / 2);
            float const* const a = pool.data() + i % pool_chunks * chunk_floats;
            int const d = static_cast<int>(dim);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, d, 1.0f, a, 2 * d, a + dim, 2 * d,
                        0.0f, c, static_cast<int>(sources));
          }
        });
      });
}

std::optional<double> yardstick::product_seconds(std::uint32_t count, std::uint32_t m, std::uint32_t n,
                                                 std::uint32_t dim) const {
  std::vector<float> const a(std::size_t{m} * dim, 0.5f);
  std::vector<float> const b(std::size_t{n} * dim, 0.25f);
  std::vector<float> products(std::size_t{count} * m * n);
  return median_seconds(
      0.2, [] {},
      [&] {
        parallel_for(threads_, count, [&](std::int64_t i) {
          cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n),
                      static_cast<int>(dim), 1.0f, a.data(), static_cast<int>(dim), b.data(),
                      static_cast<int>(dim), 0.0f, products.data() + static_cast<std::size_t>(i) * m * n,
                      static_cast<int>(n));
        });
      });
}

std::string yardstick::blas_name() { return openblas_get_config(); }

#else

std::optional<double> yardstick::similarity_seconds(std::uint32_t, std::uint32_t, std::uint32_t,
                                                    std::uint32_t) const {
  return {};
}

std::optional<double> yardstick::product_seconds(std::uint32_t, std::uint32_t, std::uint32_t,
                                                 std::uint32_t) const {
  return {};
}

std::string yardstick::blas_name() { return {}; }

#endif

void restart_for_blas(char** arguments) {
#if defined(KVMELD_BENCH_RESTART)
  std::string const core = openblas_get_corename();
  char const* const better = __builtin_cpu_supports("avx512f") ? "SkylakeX"
                             : __builtin_cpu_supports("avx2")  ? "Haswell"
                                                               : nullptr;
  bool const fell_back = core == "Prescott" || core == "Core2" || core == "Nehalem";
  if (better == nullptr || !fell_back || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  if (setenv("OPENBLAS_CORETYPE", better, 1) == 0) execv("/proc/self/exe", arguments);
#else
  (void)arguments;
#endif
}

}  // namespace kvmeld_bench
