// Kernels with one mistake each, and the emulated device has to find it; and kernels whose results are known.
//   emulator_findings [case]      ends with 0 where what was expected came, and nothing was found
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

template <class T> T* device_copy(std::vector<T> const& v) {
  T* p = nullptr;
  cudaMalloc(&p, v.size() * sizeof(T));
  cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
  return p;
}
template <class T> std::vector<T> host_copy(T const* p, std::size_t n) {
  std::vector<T> v(n);
  cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
  return v;
}

// ---- mistakes -----------------------------------------------------------------------------------

__global__ void past_the_end(int* x, int n) { x[threadIdx.x + n] = 1; }
__global__ void misaligned(int* x) { *reinterpret_cast<int*>(reinterpret_cast<char*>(x) + 2) = 1; }
__global__ void reads_nothing(int const* x, int* out) { out[threadIdx.x] = x[threadIdx.x]; }
__global__ void shared_race(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = s[63 - threadIdx.x];  // no barrier
}
__global__ void warp_race(int* out) {
  __shared__ int s[32];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  int const other = __shfl_xor_sync(0xffffffffu, static_cast<int>(threadIdx.x), 1);
  out[threadIdx.x] = s[other];  // a shuffle orders no memory
}
__global__ void overwritten(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  int const x = s[63 - threadIdx.x];
  s[threadIdx.x] = x;  // others may not have read yet
  out[threadIdx.x] = x;
}
__global__ void asserts(int* out, int most) {
  assert(static_cast<int>(threadIdx.x) < most && "more threads than meant");
  assert(most < 1000 && "a second string");  // the first one's name is then like a label's
  out[threadIdx.x] = 1;
}
__global__ void blocks_race(int* out) { out[0] = static_cast<int>(blockIdx.x); }
__global__ void divided_barrier(int* out) {
  if (threadIdx.x < 16) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}
__global__ void lonely_barrier(int* out) {
  if (threadIdx.x == 0) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void unmet_shuffle(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
  else
    __syncthreads();
}
__global__ void no_wait_for_copy(float const* from, float* out) {
  __shared__ __align__(16) float s[128];
  auto const to = static_cast<unsigned>(__cvta_generic_to_shared(s + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 4 * threadIdx.x) : "memory");
  __syncthreads();  // the copies may be under way still
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void reads_before_wait(float const* from, float* out) {
  __shared__ __align__(16) float s[128];
  auto const to = static_cast<unsigned>(__cvta_generic_to_shared(s + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 4 * threadIdx.x) : "memory");
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
  __syncthreads();
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__global__ void half_filled(int const* x, int* out) {
  int own[8];
  for (int k = 0; k < x[0]; ++k) own[k] = x[k];
  out[threadIdx.x] = own[x[1] & 7];  // only some of them were written
}
struct wide_parameters {
  int of[2000];
};
__global__ void last_parameter(wide_parameters p, int* out) { out[threadIdx.x] = p.of[1999]; }
struct padded {
  char first;
  int second;
  char third;
};
__global__ void padding(int const* x, int* out) {
  padded list[4], copies[2];
  for (int k = 0; k < 4; ++k) list[k] = {static_cast<char>(x[k]), k, 'a'};
  for (int k = 0; k < 2; ++k) copies[k] = list[x[k] & 3];  // with bytes that nobody wrote
  padded const& last = copies[x[2] & 1];
  out[threadIdx.x] = last.first + 100 * last.second;
}
/// Two stages: while one is read, the other is filled. Without the barrier behind the reading, a lane that is
/// ahead fills the stage that others still read.
template <bool Barrier> __global__ void pipeline(float const* from, int steps, float* out) {
  __shared__ __align__(16) float s[2][128];
  auto const fetch = [&](int step) {
    auto const to = static_cast<unsigned>(__cvta_generic_to_shared(s[step % 2] + 4 * threadIdx.x));
    float const* const row = from + 128 * step + 4 * threadIdx.x;
    if (step < steps)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(row) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch(0);
  float sum = 0;
  for (int step = 0; step < steps; ++step) {
    fetch(step + 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
    for (unsigned i = 0; i < 128; i += 32) sum += s[step % 2][i + (threadIdx.x ^ 5)];
    if (Barrier) __syncwarp();
  }
  out[threadIdx.x] = sum;
}
__global__ void fill(int* x, int value) { x[threadIdx.x] = value; }

// ---- clusters -----------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ unsigned cluster_rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ unsigned cluster_blocks() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
__device__ unsigned cluster_number() {
  unsigned n;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(n));
  return n;
}
/// A place of this block's shared memory, in another block of the cluster.
__device__ int* in_block(int* p, unsigned rank) {
  int* q;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(q) : "l"(p), "r"(rank));
  return q;
}
/// What it holds, by the cluster's window.
__device__ int load_from(int const* p, unsigned rank) {
  unsigned window;
  int x;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(window)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(p))), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(window) : "memory");
  return x;
}
#else  // nothing of this runs where there are no clusters
__device__ void arrive() {}
__device__ void arrive_relaxed() {}
__device__ void wait() {}
__device__ unsigned cluster_rank() { return 0; }
__device__ unsigned cluster_blocks() { return 1; }
__device__ unsigned cluster_number() { return blockIdx.x; }
__device__ int* in_block(int* p, unsigned) { return p; }
__device__ int load_from(int const* p, unsigned) { return *p; }
#endif
__device__ void meet_cluster() {
  arrive();
  wait();
}

/// Neighbours write to each other, all count in rank 0, and rank 0 adds up what the blocks hold. 3 ints a
/// thread.
__global__ void cluster_results(int* out) {
  __shared__ int from_left[64], count, own;
  unsigned const rank = cluster_rank(), n = cluster_blocks(), i = threadIdx.x;
  unsigned const id = cluster_number();
  if (i == 0) count = 0;
  if (i == 1) own = static_cast<int>(rank * rank + id);
  meet_cluster();
  in_block(from_left, (rank + 1) % n)[i] = static_cast<int>(100 * rank + i);
  atomicAdd(in_block(&count, 0), 1);
  int const other = load_from(&own, (rank + i) % n);
  meet_cluster();
  int sum = 0;
  for (unsigned r = 0; rank == 0 && r < n; ++r) sum += *in_block(&own, r);
  int* const to = out + 3 * (blockIdx.x * blockDim.x + i);
  to[0] = from_left[i];
  to[1] = rank == 0 ? 1000 * count + sum : 0;
  to[2] = other;
  meet_cluster();  // rank 0 has read
}
/// The same barriers and addresses by cooperative groups; a thread's neighbour's number.
__global__ void group_results(int* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ int s[32];
  auto const cluster = cooperative_groups::this_cluster();
  unsigned const rank = cluster.block_rank(), n = cluster.num_blocks();
  s[threadIdx.x] = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  cluster.sync();
  out[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(s, (rank + 1) % n)[threadIdx.x ^ 1];
  cluster.sync();
#else
  out[threadIdx.x] = 0;
#endif
}
/// What lies between an arrival and the wait is in no order with the other block.
enum class cluster_mistake {
  none,
  no_barrier,
  block_barrier,
  between,
  relaxed,
  ends,
  too_early,
  no_wait,
  no_arrival,
  unmet
};
template <cluster_mistake Mistake> __global__ void cluster_exchange(int* out) {
  __shared__ int s[32];
  using m = cluster_mistake;
  unsigned const i = threadIdx.x, other = cluster_rank() ^ 1;
  if (Mistake != m::too_early) meet_cluster();
  if (Mistake == m::unmet && other == 0 && i < 16) __syncwarp();
  int* const mine = Mistake == m::block_barrier ? out + 32 * (blockIdx.x + 1) : s;
  int* const there = Mistake == m::block_barrier ? out + 32 * ((blockIdx.x ^ 1) + 1) : in_block(s, other);
  if (Mistake != m::between) there[i] = static_cast<int>(i);
  if (Mistake == m::block_barrier) {
    __syncthreads();
  } else if (Mistake == m::relaxed) {
    arrive_relaxed();
    wait();
  } else if (Mistake != m::no_barrier) {
    if (Mistake != m::no_arrival) arrive();
    if (Mistake == m::between) there[i] = static_cast<int>(i);
    wait();
  }
  int const x = mine[31 - i];
  out[256 + 32 * blockIdx.x + i] = Mistake == m::ends ? there[i] : x;
  if (Mistake == m::no_wait) arrive();
  if (Mistake == m::between || Mistake == m::no_barrier || Mistake == m::relaxed) meet_cluster();
}

/// All blocks read what rank 0 has, and rank 0 is the last to do so before it goes on to write.
__global__ void cluster_overwritten(int* out) {
  __shared__ int s[32];
  s[threadIdx.x] = 1;
  meet_cluster();
  out[32 * blockIdx.x + threadIdx.x] = in_block(s, 0)[31 - threadIdx.x];
  __syncthreads();
  if (cluster_rank() == 0) s[threadIdx.x] = 2;
  meet_cluster();
}

template <class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Arguments...), unsigned cluster, unsigned blocks, unsigned threads,
                            Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(blocks);
  c.blockDim = dim3(threads);
  c.attrs = attributes;
  c.numAttrs = 2;
  void* all[] = {&arguments...};
  return cudaLaunchKernelExC(&c, reinterpret_cast<void const*>(kernel), all);
}

// ---- known results ------------------------------------------------------------------------------

__global__ void copies(float const* from, float* out) {
  __shared__ __align__(16) float s[128];
  auto const to = static_cast<unsigned>(__cvta_generic_to_shared(s + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 4 * threadIdx.x) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 128; i += 32) out[i] = 2 * s[i];
}
__global__ void lanes(unsigned* out) {
  unsigned const i = threadIdx.x;
  out[i] = __shfl_up_sync(0xffffffffu, i, 3);
  out[32 + i] = __shfl_down_sync(0xffffffffu, i, 5, 16);
  out[64 + i] = __shfl_xor_sync(0xffffffffu, i, 9);
  out[96 + i] = __ballot_sync(0xffffffffu, i % 3 == 0);
  out[128 + i] = static_cast<unsigned>(__any_sync(0xffffffffu, i == 7)) * 2 +
                 static_cast<unsigned>(__all_sync(0xffffffffu, i < 31));
  __shared__ unsigned s[32];
  s[i] = i * i;
  __syncwarp();
  out[160 + i] = s[31 - i];
}
__global__ void sums(unsigned* total, float* moving) {
  atomicAdd(total, threadIdx.x + blockIdx.x);
  atomicMax(total + 1, threadIdx.x * blockIdx.x);
  atomicAdd(moving, 0.5f);
}
__global__ void products(unsigned const* a, unsigned const* b, float const* c, float* d) {
  unsigned const lane = threadIdx.x, group = lane / 4, pair = lane % 4;
  // rows of a hold 8 words, columns of b (as rows) 8 words
  unsigned const x[4] = {a[group * 8 + pair], a[(group + 8) * 8 + pair], a[group * 8 + pair + 4],
                         a[(group + 8) * 8 + pair + 4]};
  unsigned const y[2] = {b[group * 8 + pair], b[group * 8 + pair + 4]};
  float z[4];
  for (unsigned i = 0; i < 4; ++i) z[i] = c[(group + i / 2 * 8) * 8 + 2 * pair + i % 2];
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (unsigned i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * pair + i % 2] = z[i];
}
__global__ void arithmetic(float const* x, float* out, double* wide, long long* whole) {
  int const i = static_cast<int>(threadIdx.x);
  float const v = x[i];
  out[0 + i] = expf(v);
  out[32 + i] = logf(fabsf(v) + 0.5f);
  out[64 + i] = 1.0f / (v + 40.0f);
  out[96 + i] = sqrtf(fabsf(v));
  out[128 + i] = rsqrtf(fabsf(v) + 1.0f);
  out[160 + i] = __half2float(__float2half(v)) + __bfloat162float(__float2bfloat16(v));
  out[192 + i] = floorf(v) + truncf(v) + rintf(v) + ceilf(v);
  out[224 + i] = fminf(v, 0.25f) + fmaxf(v, -0.25f) + copysignf(2.0f, v);
  wide[i] = pow(1.5, static_cast<double>(v)) + exp(static_cast<double>(v)) + static_cast<double>(v) / 3.0;
  long long const n = static_cast<long long>(v * 1000.0f);
  whole[0 + i] = n / 7 + n % 7 + (n << 3) - (n >> 2) + (n * n >> 5);
  whole[32 + i] = static_cast<long long>(static_cast<int>(n) / 3) * __mulhi(static_cast<int>(n), 123456789) +
                  __popc(static_cast<unsigned>(n)) + __clz(static_cast<int>(n)) +
                  __brev(static_cast<unsigned>(n));
  whole[64 + i] = static_cast<long long>(static_cast<unsigned char>(n)) + static_cast<signed char>(n) +
                  static_cast<short>(n);
}

bool close(double a, double b, double relative) { return std::abs(a - b) <= relative * std::abs(b) + 1e-300; }
int expect(bool good, char const* what) {
  if (!good) std::printf("WRONG: %s\n", what);
  return good ? 0 : 1;
}

float noise(unsigned i) { return static_cast<float>((i * 2654435761u >> 8) & 0xffff) / 4096.0f - 8.0f; }

int clusters() {
  int can = 0, wrong = 0;
  cudaDeviceGetAttribute(&can, cudaDevAttrClusterLaunch, 0);
  if (can == 0) return 0;
  int* const out = device_copy(std::vector<int>(3 * 64 * 32));
  wrong += expect(launch_clusters(cluster_results, 16, 32, 64, out) != cudaSuccess,
                  "a cluster that not every device has");
  wrong += expect(launch_clusters(cluster_results, 8, 12, 64, out) != cudaSuccess, "part of a cluster");
  cudaGetLastError();
  cudaFuncSetAttribute(cluster_results, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (unsigned n : {2u, 8u, 16u}) {
    cudaError_t const e = launch_clusters(cluster_results, n, 32, 64, out);
    if (n == 16 && e == cudaErrorInvalidClusterSize) break;  // a device may not have it
    wrong += expect(e == cudaSuccess, "a launch of clusters");
    auto const got = host_copy(out, 3 * 64 * 32);
    for (unsigned block = 0; block < 32; ++block) {
      unsigned const rank = block % n, id = block / n;
      unsigned squares = 0;
      for (unsigned r = 0; r < n; ++r) squares += r * r + id;
      for (unsigned i = 0; i < 64; ++i) {
        int const* const x = got.data() + 3 * (64 * block + i);
        unsigned const far = (rank + i) % n;
        wrong += expect(x[0] == static_cast<int>(100 * ((rank + n - 1) % n) + i), "a neighbour's memory");
        wrong += expect(x[1] == (rank == 0 ? static_cast<int>(1000 * 64 * n + squares) : 0),
                        "a sum over a cluster");
        wrong += expect(x[2] == static_cast<int>(far * far + id), "the window of a cluster");
      }
    }
  }
  launch_clusters(group_results, 4, 8, 32, out);
  auto const got = host_copy(out, 256);
  for (unsigned i = 0; i < 256; ++i) {
    unsigned const block = i / 32, next = block / 4 * 4 + (block + 1) % 4;
    wrong += expect(got[i] == static_cast<int>(next * 32 + (i % 32 ^ 1)), "a group of a cluster's threads");
  }
  launch_clusters(cluster_exchange<cluster_mistake::none>, 2, 4, 32, out);
  cudaFuncAttributes f = {};
  wrong += expect(cudaFuncGetAttributes(&f, cluster_results) == cudaSuccess && f.ptxVersion >= 90 &&
                      f.sharedSizeBytes >= 66 * sizeof(int) && f.maxThreadsPerBlock == 1024,
                  "attributes of a kernel");
  return wrong;
}

int known_results() {
  int wrong = 0;
  std::vector<float> from(128);
  for (unsigned i = 0; i < 128; ++i) from[i] = noise(i);
  float* const far = device_copy(from);
  float* out = device_copy(std::vector<float>(256));
  copies<<<1, 32>>>(far, out);
  auto got = host_copy(out, 128);
  for (unsigned i = 0; i < 128; ++i) wrong += expect(got[i] == 2 * from[i], "an asynchronous copy");

  int* const whole_numbers = device_copy(std::vector<int>(32));
  padding<<<1, 32>>>(device_copy(std::vector<int>{2, 3, 5, 7}), whole_numbers);
  wrong += expect(host_copy(whole_numbers, 1)[0] == 307, "structs in a local array");

  wide_parameters wide_ones = {};
  wide_ones.of[1999] = 8;
  last_parameter<<<1, 32>>>(wide_ones, whole_numbers);
  wrong += expect(host_copy(whole_numbers, 1)[0] == 8, "parameters of 8,000 bytes");

  int const steps = 5;
  std::vector<float> rows(128 * steps);
  for (unsigned i = 0; i < rows.size(); ++i) rows[i] = noise(i);
  pipeline<true><<<1, 32>>>(device_copy(rows), steps, out);
  got = host_copy(out, 32);
  for (unsigned i = 0; i < 32; ++i) {
    float sum = 0;
    for (unsigned k = i ^ 5; k < rows.size(); k += 32) sum += rows[k];
    wrong += expect(got[i] == sum, "a pipeline of copies");
  }

  unsigned* const words = device_copy(std::vector<unsigned>(192));
  lanes<<<1, 32>>>(words);
  auto const w = host_copy(words, 192);
  for (unsigned i = 0; i < 32; ++i) {
    wrong += expect(w[i] == (i >= 3 ? i - 3 : i), "shfl up");
    wrong += expect(w[32 + i] == (i % 16 + 5 < 16 ? i + 5 : i), "shfl down");
    wrong += expect(w[64 + i] == (i ^ 9), "shfl xor");
    wrong += expect(w[96 + i] == 0x49249249u, "ballot");
    wrong += expect(w[128 + i] == 2, "any and all");
    wrong += expect(w[160 + i] == (31 - i) * (31 - i), "a warp's barrier");
  }

  unsigned* const total = device_copy(std::vector<unsigned>{0, 0});
  float* const moving = device_copy(std::vector<float>{1.0f});
  sums<<<5, 64>>>(total, moving);
  auto const t = host_copy(total, 2);
  wrong += expect(t[0] == 5 * (63 * 64 / 2) + 64 * 10 && t[1] == 63 * 4 && host_copy(moving, 1)[0] == 161.0f,
                  "atomics");

  std::vector<unsigned> a(128), b(64);
  std::vector<float> c(128);
  auto const halves = [](unsigned i) {
    __half const h[2] = {__float2half(noise(2 * i)), __float2half(noise(2 * i + 1))};
    unsigned x;
    std::memcpy(&x, h, sizeof x);
    return x;
  };
  auto const value = [](std::vector<unsigned> const& v, unsigned row, unsigned k) {
    std::uint16_t const bits = static_cast<std::uint16_t>(v[row * 8 + k / 2] >> 16 * (k % 2));
    __half h;
    std::memcpy(static_cast<void*>(&h), &bits, sizeof h);
    return static_cast<double>(__half2float(h));
  };
  for (unsigned i = 0; i < 128; ++i) a[i] = halves(i), c[i] = noise(7 * i);
  for (unsigned i = 0; i < 64; ++i) b[i] = halves(3 * i + 5);
  products<<<1, 32>>>(device_copy(a), device_copy(b), device_copy(c), out);
  got = host_copy(out, 128);
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 8; ++column) {
      double sum = c[row * 8 + column], most = std::abs(sum);
      for (unsigned k = 0; k < 16; ++k) {
        sum += value(a, row, k) * value(b, column, k);
        most += std::abs(value(a, row, k) * value(b, column, k));
      }
      wrong += expect(std::abs(got[row * 8 + column] - sum) <= most * 0x1p-22, "a product of matrices");
    }
  }

  wrong += clusters();

  double* const wide = device_copy(std::vector<double>(32));
  long long* const whole = device_copy(std::vector<long long>(96));
  arithmetic<<<1, 32>>>(far, out, wide, whole);
  got = host_copy(out, 256);
  auto const d = host_copy(wide, 32);
  auto const n = host_copy(whole, 96);
  for (unsigned i = 0; i < 32; ++i) {
    double const v = from[i];
    float const f = from[i];
    wrong += expect(close(got[i], std::exp(v), 3e-7) && close(got[32 + i], std::log(std::abs(v) + 0.5), 1e-6),
                    "exp, log");
    wrong += expect(got[64 + i] == 1.0f / (f + 40.0f) && got[96 + i] == std::sqrt(std::abs(f)),
                    "division and root");
    wrong += expect(close(got[128 + i], 1 / std::sqrt(std::abs(v) + 1), 3e-7), "rsqrt");
    wrong += expect(got[160 + i] == __half2float(__float2half(f)) + __bfloat162float(__float2bfloat16(f)),
                    "16 bits");
    wrong += expect(got[192 + i] == std::floor(f) + std::trunc(f) + std::rint(f) + std::ceil(f), "roundings");
    wrong += expect(got[224 + i] == std::fmin(f, 0.25f) + std::fmax(f, -0.25f) + std::copysign(2.0f, f),
                    "choices");
    wrong += expect(close(d[i], std::pow(1.5, v) + std::exp(v) + v / 3.0, 1e-13), "double precision");
    long long const m = static_cast<long long>(f * 1000.0f);
    int const s = static_cast<int>(m);
    auto const u = static_cast<unsigned>(m);
    unsigned reversed = 0;
    for (unsigned k = 0; k < 32; ++k) reversed |= (u >> k & 1) << (31 - k);
    wrong += expect(n[i] == m / 7 + m % 7 + m * 8 - (m >> 2) + (m * m >> 5), "64-bit integers");
    wrong += expect(n[32 + i] == static_cast<long long>(s / 3) *
                                         static_cast<int>(static_cast<long long>(s) * 123456789 >> 32) +
                                     __builtin_popcount(u) + (u == 0 ? 32 : __builtin_clz(u)) + reversed,
                    "32-bit integers");
    wrong += expect(n[64 + i] == static_cast<long long>(static_cast<unsigned char>(m)) +
                                     static_cast<signed char>(m) + static_cast<short>(m),
                    "short integers");
  }
  return wrong;
}

// Work that the host must wait for is not there before.
int laziness() {
  int wrong = 0;
  cudaStream_t s = nullptr;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  int *far = nullptr, *pinned = nullptr;
  cudaMallocAsync(&far, 32 * sizeof(int), s);
  cudaMallocHost(&pinned, 32 * sizeof(int));
  fill<<<1, 32, 0, s>>>(far, 7);
  cudaEvent_t there = nullptr;
  cudaEventCreateWithFlags(&there, cudaEventDisableTiming);
  cudaMemcpyAsync(pinned, far, 32 * sizeof(int), cudaMemcpyDeviceToHost, s);
  cudaEventRecord(there, s);
  wrong += expect(pinned[3] != 7, "a copy that nobody waited for");
  wrong += expect(cudaEventQuery(there) == cudaErrorNotReady, "an event too early");
  cudaEventSynchronize(there);
  wrong += expect(pinned[3] == 7 && cudaEventQuery(there) == cudaSuccess, "an event");

  // A graph's kernels read their arguments when it was captured, and memory when it is launched.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  fill<<<1, 32, 0, s>>>(far, 9);
  wrong += expect(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported, "waiting in a capture");
  wrong += expect(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr,
                  "a broken capture");
  cudaGetLastError();
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  fill<<<1, 32, 0, s>>>(far, 9);
  cudaStreamEndCapture(s, &graph);
  cudaGraphInstantiate(&ready, graph, 0);
  wrong += expect(host_copy(far, 1)[0] == 7, "a captured kernel that ran");
  cudaGraphLaunch(ready, s);
  cudaStreamSynchronize(s);
  wrong += expect(host_copy(far, 1)[0] == 9, "a graph");

  fill<<<1, 2048>>>(far, 1);
  wrong += expect(cudaGetLastError() == cudaErrorInvalidConfiguration, "a block that is too large");
  fill<<<1, 32, 60000>>>(far, 1);
  wrong += expect(cudaGetLastError() == cudaErrorInvalidValue, "shared memory without asking");
  cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
  fill<<<1, 32, 60000>>>(far, 1);
  wrong += expect(cudaGetLastError() == cudaSuccess, "shared memory that was asked for");
  int blocks = 0;
  cudaLaunchConfig_t const any = {};
  wrong +=
      expect(launch_clusters(cluster_overwritten, 16, 16, 32, far) == cudaErrorInvalidClusterSize &&
                 launch_clusters(cluster_overwritten, 8, 12, 32, far) == cudaErrorInvalidClusterSize &&
                 cudaOccupancyMaxPotentialClusterSize(&blocks, cluster_overwritten, &any) == 0 && blocks == 8,
             "sizes of clusters");
  cudaFuncSetAttribute(cluster_overwritten, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  wrong +=
      expect(cudaOccupancyMaxPotentialClusterSize(&blocks, cluster_overwritten, &any) == 0 && blocks == 16 &&
                 launch_clusters(cluster_overwritten, 17, 17, 32, far) == cudaErrorInvalidClusterSize,
             "sizes of clusters that not every device has");
  return wrong;
}

struct two_streams {
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t done = nullptr;
  two_streams() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  }
};

// Streams that wait for each other in every way that there is.
int streams() {
  int wrong = 0;
  two_streams s;
  int *x = nullptr, *y = device_copy(std::vector<int>(64));
  for (int round = 0; round < 3; ++round) {
    cudaMallocAsync(&x, 64 * sizeof(int), s.a);
    fill<<<1, 32, 0, s.a>>>(x, 1 + round);
    fill<<<1, 32, 0, s.b>>>(y + 1, 5);  // another place of the same sector
    fill<<<1, 1, 0, s.a>>>(y, 6);
    cudaEventRecord(s.done, s.a);
    cudaStreamWaitEvent(s.b, s.done, 0);
    reads_nothing<<<1, 32, 0, s.b>>>(x, y);
    cudaMemcpyAsync(x + 32, y, 32 * sizeof(int), cudaMemcpyDeviceToDevice, s.b);
    cudaFreeAsync(x, s.b);
    cudaStreamSynchronize(s.b);
    fill<<<1, 1, 0, s.a>>>(y + 1, 7);  // the host knows that b is done
    cudaEventRecord(s.done, s.a);
    cudaEventSynchronize(s.done);
    auto const got = host_copy(y, 32);
    wrong += expect(got[0] == 1 + round && got[1] == 7, "streams that wait for each other");
  }
  // Memory that one stream gave back may come to another: the allocator has waited for it.
  int* z = nullptr;
  cudaMallocAsync(&x, 1024 * sizeof(int), s.a);
  fill<<<1, 32, 0, s.a>>>(x, 1);
  cudaFreeAsync(x, s.a);
  cudaEventRecord(s.done, s.a);
  for (int asked = 0; asked < 3; ++asked) cudaStreamQuery(s.a);
  cudaMallocAsync(&z, 1024 * sizeof(int), s.b);
  fill<<<1, 32, 0, s.b>>>(z, 2);
  cudaFreeAsync(z, s.b);
  // Blocking streams and the default stream.
  cudaStream_t blocking = nullptr;
  cudaStreamCreate(&blocking);
  fill<<<1, 32, 0, blocking>>>(y, 1);
  fill<<<1, 32>>>(y, 2);
  fill<<<1, 1, 0, blocking>>>(y, 3);
  cudaMemset(y + 1, 0, sizeof(int));
  auto const got = host_copy(y, 32);
  wrong += expect(got[0] == 3 && got[1] == 0 && got[2] == 2, "the default stream");
  return wrong;
}

int run(std::string const& name) {
  int* const x = device_copy(std::vector<int>(64));
  int* unwritten = nullptr;
  cudaMalloc(&unwritten, 64 * sizeof(int));
  if (name == "results") return known_results();
  if (name == "streams") return streams();
  if (name == "laziness") return laziness();
  if (name == "past_the_end")
    past_the_end<<<1, 32>>>(x, 40);
  else if (name == "misaligned")
    misaligned<<<1, 1>>>(x);
  else if (name == "unwritten")
    reads_nothing<<<1, 32>>>(unwritten, x);
  else if (name == "shared_race")
    shared_race<<<1, 64>>>(x);
  else if (name == "warp_race")
    warp_race<<<1, 32>>>(x);
  else if (name == "overwritten")
    overwritten<<<1, 64>>>(x);
  else if (name == "blocks_race")
    blocks_race<<<4, 1>>>(x);
  else if (name == "divided_barrier")
    divided_barrier<<<1, 32>>>(x);
  else if (name == "lonely_barrier")
    lonely_barrier<<<1, 32>>>(x);
  else if (name == "unmet_shuffle")
    unmet_shuffle<<<1, 32>>>(x);
  else if (name == "no_wait") {
    float* const out = device_copy(std::vector<float>(32));
    no_wait_for_copy<<<1, 32>>>(device_copy(std::vector<float>(128, 3.0f)), out);
    return expect(host_copy(out, 32)[5] == 3.0f, "copies nobody waited for");  // and so it is
  } else if (name.rfind("cluster_", 0) == 0) {
    using m = cluster_mistake;
    int* const out = device_copy(std::vector<int>(512));
    static std::pair<char const*, void (*)(int*)> const of[] = {
        {"cluster_no_barrier", cluster_exchange<m::no_barrier>},
        {"cluster_block_barrier", cluster_exchange<m::block_barrier>},
        {"cluster_between", cluster_exchange<m::between>},
        {"cluster_relaxed", cluster_exchange<m::relaxed>},
        {"cluster_ends", cluster_exchange<m::ends>},
        {"cluster_too_early", cluster_exchange<m::too_early>},
        {"cluster_no_wait", cluster_exchange<m::no_wait>},
        {"cluster_no_arrival", cluster_exchange<m::no_arrival>},
        {"cluster_unmet", cluster_exchange<m::unmet>},
        {"cluster_overwritten", cluster_overwritten}};
    for (auto const& [mistake, kernel] : of) {
      if (name == mistake) launch_clusters(kernel, 2, 4, 32, out);
    }
  } else if (name == "read_early") {
    reads_before_wait<<<1, 32>>>(device_copy(std::vector<float>(128)), device_copy(std::vector<float>(32)));
  } else if (name == "half_filled") {
    half_filled<<<1, 32>>>(device_copy(std::vector<int>{3, 5, 0, 0}), x);
    return expect(host_copy(x, 1)[0] == -1, "local memory that nobody wrote");
  } else if (name == "refilled") {
    pipeline<false>
        <<<1, 32>>>(device_copy(std::vector<float>(640, 1.0f)), 5, device_copy(std::vector<float>(32)));
  } else if (name.rfind("streams_", 0) == 0) {
    two_streams const s;
    int* const y = device_copy(std::vector<int>(64));
    if (name == "streams_memset")
      cudaMemset(x, 0, 256);
    else
      fill<<<1, 32, 0, s.a>>>(x, 1);
    if (name == "streams_kernels") reads_nothing<<<1, 32, 0, s.b>>>(x, y);
    if (name == "streams_copy") cudaMemcpyAsync(y, x, 128, cudaMemcpyDeviceToDevice, s.b);
    if (name == "streams_free") cudaFreeAsync(x, s.b);
    if (name == "streams_memset") reads_nothing<<<1, 32, 0, s.b>>>(x, y);
    if (name == "streams_late_event") {
      fill<<<1, 32, 0, s.b>>>(y, 1);
      cudaEventRecord(s.done, s.b);
      fill<<<1, 32, 0, s.b>>>(x, 2);  // behind the event
      cudaStreamWaitEvent(s.a, s.done, 0);
      reads_nothing<<<1, 32, 0, s.a>>>(x, y);
    }
  } else if (name == "assertion") {
    asserts<<<1, 32>>>(x, 8);
  } else if (name == "freed") {
    cudaFree(unwritten);
    fill<<<1, 32>>>(unwritten, 1);
  } else {
    return 2;
  }
  cudaDeviceSynchronize();
  return 0;  // the emulated device ends the program otherwise
}

}  // namespace

int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device\n");
    return 77;
  }
  return run(count > 1 ? arguments[1] : "results");  // which every device has
}
