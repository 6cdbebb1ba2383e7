// A serving loop. The engine captures its decode step as one graph of its own: its kernels, and kvmeld's
// calls between them. Sequences end and others begin, full ones are compressed, and the host never waits for
// the device.
//   example_cuda_serving [tokens] [sequences]
#include "support.cuh"

#include <cstdlib>
#include <vector>

using element = __nv_bfloat16;

// The engine's kernel that writes K and V of the new token to the last entry of every track. A sequence that
// is not running has no entries.
__global__ void write_rows(element* keys, element* values, kvmeld::ledger_ref const ledger) {
  kvmeld::shape const& s = ledger.extent;
  kvmeld::track const t = kvmeld::make_track(s, blockIdx.x, blockIdx.y, blockIdx.z);
  std::uint32_t const length = ledger.length[t.index];
  if (length == 0) return;
  std::size_t const token = (std::size_t{t.layer} * s.sequences + t.sequence) * s.capacity + length - 1;
  std::size_t const row = (token * s.kv_heads + t.kv_head) * s.key_dim;
  float const position = static_cast<float>(ledger.seen[t.sequence] % 1024);
  for (std::uint32_t c = threadIdx.x; c < s.key_dim; c += blockDim.x) {
    keys[row + c] = __float2bfloat16(sinf(0.02f * position + static_cast<float>(c + t.kv_head)));
    values[row + c] = __float2bfloat16(cosf(0.03f * position + static_cast<float>(c)));
  }
}

int main(int count, char** arguments) {
  if (!examples::has_device()) return examples::no_device;
  int const tokens = count > 1 ? std::atoi(arguments[1]) : 500;
  std::uint32_t const sequences = count > 2 ? static_cast<std::uint32_t>(std::atoi(arguments[2])) : 64;
  kvmeld::shape const extent{2, sequences, 2, 2, 64, 64, 192};
  examples::engine_tensors<element> engine(extent);
  cudaStream_t stream = nullptr;
  if (!engine.there() || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  std::size_t const floats = std::size_t{sequences} * extent.query_heads() * extent.key_dim;
  float *query = nullptr, *out = nullptr;
  if (cudaMalloc(&query, floats * sizeof(float)) != cudaSuccess ||
      cudaMalloc(&out, floats * sizeof(float)) != cudaSuccess ||
      cudaMemsetAsync(query, 0, floats * sizeof(float), stream) != cudaSuccess)
    return 1;
  int status = 0;
  {
    kvmeld::merged_cache cache{kvmeld::cuda_executor<>(stream), kvmeld::preset::chelsea::llama3(),
                               kvmeld::kv{engine.keys(), engine.values()}, kvmeld::cache_options{extent}};
    auto const q = kvmeld::rows_by_token<float const>(query, 1, extent.query_heads(), extent.key_dim);
    auto const o = kvmeld::rows_by_token(out, 1, extent.query_heads(), extent.value_dim);
    std::vector<std::uint32_t> running, one(sequences, 1), due;
    for (std::uint32_t s = 0; s < sequences; ++s) {
      running.push_back(s);
      cache.open(s, 64 + 10 * (s % 6));  // as if a prompt had been read; lengths differ
    }
    auto const step = [&](auto engine_kernels) {
      cache.append(running, {one.data(), running.size()});
      engine_kernels();
      cache.commit(running, {one.data(), running.size()});
      for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
        kvmeld::attention::attend(cache.executor(), {layer, running, {one.data(), running.size()}}, q,
                                  cache.ref(), o);
    };
    auto const launch_kernels = [&] {
      write_rows<<<dim3(extent.layers, extent.sequences, extent.kv_heads), 64, 0, stream>>>(
          engine.key_rows(), engine.value_rows(), cache.ledger());
    };
    auto const nothing = [] {};

    kvmeld::call_graph<kvmeld::cuda_executor<>> decode(cache.executor()), shrink(cache.executor());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    decode.record_into([&] { step(launch_kernels); });
    cudaStreamEndCapture(stream, &graph);
    if (cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess) return 1;

    kvmeld::trigger const full{128, 32};
    auto const compress = [&] { cache.compress(due, kvmeld::budget::entries(full.limit)); };
    due = running;  // recorded with the most sequences that will come; none of them is over its budget
    shrink.record(compress);
    std::size_t decoded = 0, compressed = 0, replaced = 0;
    for (int token = 1; token <= tokens; ++token) {
      decode.update([&] { step(nothing); });
      cudaGraphLaunch(ready, stream);
      decoded += running.size();
      due.clear();
      for (std::uint32_t s : running) {
        if (cache.due(s, full)) due.push_back(s);
      }
      if (!due.empty()) shrink.replay(compress);
      compressed += due.size();
      if (token % 32 ==
          0) {  // one sequence ends, and another one takes its place; its prompt would be read here
        std::uint32_t const s = running[static_cast<std::size_t>(token) / 32 % running.size()];
        cache.close(s);
        cache.open(s, 64);
        ++replaced;
      }
      cache.poll_lengths();  // lowers bounds by what has arrived
      cache.request_lengths();
    }

    cache.sync_lengths(0);  // the first wait
    bool small = true;
    for (std::uint32_t s : running) small = small && cache.length_bound(s) < full.limit + full.interval;
    std::cout << decoded << " tokens of " << sequences << " sequences by " << tokens
              << " launches of one graph; " << compressed << " times a sequence was compressed, " << replaced
              << " were replaced\n";
    if (cache.executor().error() != cudaSuccess || !small || (tokens >= 60 && compressed == 0)) status = 1;
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
  cudaFree(query);
  cudaFree(out);
  cudaStreamDestroy(stream);
  return status;
}
