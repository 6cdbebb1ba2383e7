// A serving loop. The engine captures its decode step as one graph of its own: its kernels, and kvmeld's
// attention between them. Each step verifies drafts. The engine's kernels append and commit entries, and the
// host does not learn how many were accepted. The kernels read from device memory which sequences run.
// Sequences end and others begin, full ones are compressed, and the host never waits for the device.
//   example_cuda_serving [steps] [sequences]
#include "support.cuh"

#include <thrust/device_vector.h>

#include <cstdint>
#include <vector>

using element = __nv_bfloat16;

constexpr std::uint32_t drafted = 3;  // tokens of a step: the sampled one and two drafts

// The engine's first kernel of a step also appends the step's entries, a block per sequence. kvmeld launches
// nothing for that.
__global__ void begin_step(std::uint32_t const* listed, kvmeld::ledger_ref const ledger) {
  kvmeld::append_in_kernel(ledger, listed[blockIdx.x], drafted, threadIdx.x, blockDim.x,
                           [] { __syncthreads(); });
}

// Writes K and V of the new tokens to the last entries of every track. Places of the batch may be empty.
__global__ void write_rows(std::uint32_t const* listed, element* keys, element* values,
                           kvmeld::ledger_ref const ledger) {
  kvmeld::shape const& s = ledger.extent;
  if (listed[blockIdx.y] == kvmeld::idle_sequence) return;
  kvmeld::track const t = kvmeld::make_track(s, blockIdx.x, listed[blockIdx.y], blockIdx.z);
  std::uint32_t const length = ledger.length[t.index];
  for (std::uint32_t i = 1; i <= drafted; ++i) {
    std::size_t const token = (std::size_t{t.layer} * s.sequences + t.sequence) * s.capacity + length - i;
    std::size_t const row = (token * s.kv_heads + t.kv_head) * s.key_dim;
    float const position = static_cast<float>((ledger.tokens(t.sequence) - i) % 1024);
    for (std::uint32_t c = threadIdx.x; c < s.key_dim; c += blockDim.x) {
      keys[row + c] = __float2bfloat16(sinf(0.02f * position + static_cast<float>(c + t.kv_head)));
      values[row + c] = __float2bfloat16(cosf(0.03f * position + static_cast<float>(c)));
    }
  }
}

// Stands for the engine's sampler, a block per sequence: finds how many tokens it accepts, and commits them.
__global__ void accept(std::uint32_t const* listed, std::uint32_t* total, kvmeld::ledger_ref const ledger) {
  std::uint32_t const q = listed[blockIdx.x];
  if (q == kvmeld::idle_sequence) return;
  std::uint32_t const accepted = 1 + (ledger.seen[q] * 7 + q) % drafted;
  if (threadIdx.x == 0) atomicAdd(total, accepted);
  kvmeld::commit_in_kernel(ledger, q, accepted, threadIdx.x, blockDim.x, [] { __syncthreads(); });
}

int main(int count, char** arguments) {
  if (!examples::has_device()) return examples::no_device;
  std::uint32_t const steps = count_argument(count, arguments, 1, 500, 1, 1u << 20);
  std::uint32_t const sequences = count_argument(count, arguments, 2, 64, 2, 4096);
  kvmeld::shape const extent{2, sequences, 2, 2, 64, 64, 192};
  examples::engine_tensors<element> engine(extent);
  cudaStream_t stream = nullptr;
  if (!engine.there() || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  std::size_t const floats = std::size_t{sequences} * drafted * extent.query_heads() * extent.key_dim;
  thrust::device_vector<float> query(floats), out(floats);
  thrust::device_vector<std::uint32_t> places_there(sequences), accepted(1);
  std::uint32_t* const listed = thrust::raw_pointer_cast(places_there.data());
  int status = 0;
  {
    kvmeld::merged_cache cache{kvmeld::cuda_executor<>(stream), kvmeld::preset::chelsea::llama3(),
                               kvmeld::kv{engine.keys(), engine.values()}, kvmeld::cache_options{extent}};
    auto const q = kvmeld::rows_by_token<float const>(thrust::raw_pointer_cast(query.data()), drafted,
                                                      extent.query_heads(), extent.key_dim);
    auto const o = kvmeld::rows_by_token(thrust::raw_pointer_cast(out.data()), drafted, extent.query_heads(),
                                         extent.value_dim);
    std::vector<std::uint32_t> running, due, all(sequences, drafted);
    for (std::uint32_t s = 0; s < sequences; ++s) {
      running.push_back(s);
      cache.open(s, 64 + 10 * (s % 6));  // as if a prompt had been read; lengths differ
    }
    std::vector<std::uint32_t> places = running;  // of the batch, as the kernels read them
    thrust::copy(places.begin(), places.end(), places_there.begin());
    // The engine's graph. Lists of sequences lie on the device, so nothing in it changes on the host.
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    kvmeld::device_list const slots{listed};
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    begin_step<<<sequences, 32, 0, stream>>>(listed, cache.ledger());
    write_rows<<<dim3(extent.layers, sequences, extent.kv_heads), 64, 0, stream>>>(
        listed, engine.key_rows(), engine.value_rows(), cache.ledger());
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
      kvmeld::attention::attend(cache.executor(), {layer, slots, sequences, drafted}, q, cache.ref(), o);
    accept<<<sequences, 32, 0, stream>>>(listed, thrust::raw_pointer_cast(accepted.data()), cache.ledger());
    cudaStreamEndCapture(stream, &graph);
    if (cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess) return 1;

    kvmeld::call_graph<kvmeld::cuda_executor<>> shrink(cache.executor());
    kvmeld::trigger const full{128, 32};
    auto const compress = [&] { cache.compress(due, kvmeld::budget::entries(full.limit)); };
    due = running;  // recorded with the most sequences that will come; none of them is over its budget
    shrink.record(compress);
    std::size_t compressed = 0, replaced = 0;
    for (std::uint32_t number = 1; number <= steps; ++number) {
      cache.append(running, all, kvmeld::in_kernel);
      cudaGraphLaunch(ready, stream);
      cache.commit(running, kvmeld::in_kernel);
      due.clear();
      for (std::uint32_t s : running) {
        if (cache.due(s, full)) due.push_back(s);
      }
      if (!due.empty()) shrink.replay(compress);
      compressed += due.size();
      if (number % 16 == 0) {
        auto const s = static_cast<std::uint32_t>((number + 16) / 32) % sequences;
        if (number % 32 != 0) {  // a sequence ends, and its place stays empty for a while
          cache.close(s);
          places[s] = kvmeld::idle_sequence;
        } else {  // another one begins; its prompt would be read here
          cache.open(s, 64);
          places[s] = s;
          ++replaced;
        }
        running.clear();
        for (std::uint32_t place : places) {
          if (place != kvmeld::idle_sequence) running.push_back(place);
        }
        all.resize(running.size(), drafted);
        cache.executor().upload(listed, places.data(), places.size() * sizeof(std::uint32_t));
      }
      cache.poll_lengths();  // lowers bounds by what has arrived
      cache.request_lengths();
    }

    cache.sync_lengths(running[0]);  // the first wait
    bool small = true;
    for (std::uint32_t s : running) small = small && cache.length_bound(s) < full.limit + full.interval;
    std::uint32_t const total = accepted[0];
    std::cout << total << " tokens of " << sequences << " sequences accepted of "
              << std::size_t{drafted} * sequences * steps << " by " << steps << " launches of one graph; "
              << compressed << " times a sequence was compressed, " << replaced << " were replaced\n";
    if (cache.executor().error() != cudaSuccess || !small || (steps >= 33 && compressed == 0)) status = 1;
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
  return status == 0 && all_printed() ? 0 : 1;
}
