// An engine's decode step and its compressions as graphs: what eager calls on the device leave, bit for bit;
// and what is refused.
#include "device.cuh"
#include "device/twins.hpp"

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using cuda_test::cuda_device;
using element = __nv_bfloat16;
using plain = kvmeld::strided<element>;
template <class T> using array = cuda_device::array<T>;

constexpr kvmeld::shape extent{2, 3, 2, 2, 32, 16, 128};

struct own_stream {
  own_stream() { REQUIRE(cudaStreamCreateWithFlags(&is, cudaStreamNonBlocking) == cudaSuccess); }
  own_stream(own_stream const&) = delete;
  own_stream& operator=(own_stream const&) = delete;
  ~own_stream() { cudaStreamDestroy(is); }
  cudaStream_t is = nullptr;
};

/// What engines of a test begin with: a stream, and random rows.
struct inputs {
  explicit inputs(std::uint32_t seed)
      : n(seed),
        keys(device_test::random_rows<element>(n, extent.key_dim, 0.9f)),
        values(device_test::random_rows<element>(n, extent.value_dim, 0.0f)) {}
  own_stream stream;
  device_test::made_for const now{extent};
  device_test::noise n;
  std::vector<element> keys, values;
};

/// A graph has as many rounds as full tracks need.
auto in_few_rounds() {
  using kvmeld::quantity;
  kvmeld::policy const evicting{
      kvmeld::score::blended<kvmeld::score::leverage, kvmeld::score::local>{},
      kvmeld::select::top{quantity::at_most(4, 0.25), quantity::of_budget(0.15), quantity::rest_of_budget()},
      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  auto policy = kvmeld::preset::merging(evicting, quantity::of_budget(0.6));
  policy.identify.admission.schedule = {0.5, 0.05, 3, 0.4};
  return policy;
}

/// A cache over tensors that may move, with what attention reads and writes.
class engine {
public:
  explicit engine(inputs const& from) : engine(from.stream.is, from.keys, from.values) {}
  engine(cudaStream_t stream, std::vector<element> const& k, std::vector<element> const& v)
      : keys_{array<element>(k), array<element>(k)},
        values_{array<element>(v), array<element>(v)},
        layouts_(std::vector<plain>{layout(keys_[0], extent.key_dim), layout(values_[0], extent.value_dim)}),
        cache(kvmeld::cuda_executor<>(stream), in_few_rounds(),
              kvmeld::kv{kvmeld::relocatable<plain>(layouts_.data(), extent.key_dim),
                         kvmeld::relocatable<plain>(layouts_.data() + 1, extent.value_dim)},
              kvmeld::cache_options{extent}) {}

  void step(kvmeld::index_list slots, kvmeld::index_list counts, kvmeld::index_list accepted) {
    cache.append(slots, counts);
    cache.commit(slots, accepted);
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
      attend_and_observe({layer, slots, accepted});
  }
  void attend_and_observe(kvmeld::query_batch const& batch) {
    std::uint32_t const heads = extent.query_heads();
    std::size_t const rows = std::size_t{3} * max_queries * heads;
    auto const q = kvmeld::rows_by_token<element const>(queries.data(), max_queries, heads, extent.key_dim);
    auto const o = kvmeld::rows_by_token(out.data() + batch.layer() * rows * extent.value_dim, max_queries,
                                         heads, extent.value_dim);
    auto const sums = kvmeld::rows_by_head(lse.data() + batch.layer() * rows, max_queries, heads, 1);
    if (batch.layer() == 0) {
      kvmeld::attention::attend(cache.executor(), batch, q, cache.ref(), o, sums);
      cache.observe(batch, q, kvmeld::rows_by_head<float const>(lse.data(), max_queries, heads, 1), {},
                    {0, 1, weights.data(), max_queries});
    } else {
      kvmeld::attention::attend_and_observe(cache, batch, q, o, {kept.data(), kept_floats}, sums);
    }
  }
  /// Both tensors to other memory, and the layouts with them.
  void move() {
    at_ = 1 - at_;
    keys_[at_].put(keys_[1 - at_].get());
    values_[at_].put(values_[1 - at_].get());
    keys_[1 - at_].put(std::vector<element>(extent.slots() * extent.key_dim));
    layouts_.put({layout(keys_[at_], extent.key_dim), layout(values_[at_], extent.value_dim)});
  }
  std::vector<element> rows() const {
    std::vector<element> both = keys_[at_].get(), more = values_[at_].get();
    both.insert(both.end(), more.begin(), more.end());
    return both;
  }

  static constexpr std::uint32_t max_queries = 3;
  static constexpr std::size_t heads_of_all = std::size_t{3} * max_queries * extent.query_heads();

private:
  static plain layout(array<element> const& at, std::uint32_t channels) {
    return {at.data(), "LSTHC", extent, channels};
  }
  array<element> keys_[2], values_[2];
  array<plain> layouts_;
  std::size_t at_ = 0;

public:
  std::size_t kept_floats = kvmeld::attention::observed_floats(extent, 3, max_queries);
  array<float> out{std::vector<float>(extent.layers * heads_of_all * extent.value_dim)},
      lse{std::vector<float>(extent.layers * heads_of_all)}, kept{kept_floats};
  array<float> weights{std::vector<float>{0.5f, 1, 2, 1, 0, 3, 1, 1, 0.25f}};
  array<element> queries{heads_of_all * extent.key_dim};
  kvmeld::merged_cache<kvmeld::cuda_executor<>, decltype(in_few_rounds()), kvmeld::relocatable<plain>,
                       kvmeld::relocatable<plain>>
      cache;
};

template <class T> bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Sums what its lanes left in more scratch than shared memory has.
struct roomy_phase {
  std::uint32_t* out;
  std::uint32_t numbers;
  std::uint32_t tiles(kvmeld::shape const&) const { return 2; }
  std::size_t scratch_bytes(int) const { return kvmeld::scratch_size(numbers * sizeof(std::uint32_t)); }
  template <class Team> KVMELD_HD void operator()(Team const& team, kvmeld::tile const& t) const {
    auto* const room = team.template scratch<std::uint32_t>(numbers);
    team.for_each(numbers, [&](std::uint32_t i) { room[i] = i % (t.index + 3); });
    team.sync();
    std::uint32_t sum = 0;
    team.for_each(numbers, [&](std::uint32_t i) { sum += room[numbers - 1 - i]; });
    sum = team.reduce(sum, kvmeld::op_sum{});
    if (team.lane() == 0) out[t.item * 2 + t.index] = sum;
  }
};

__global__ void add_one(std::uint32_t* number) { ++*number; }

/// A block per sequence appends or commits.
__global__ void call_in_kernel(kvmeld::ledger_ref const ledger, std::uint32_t const* counts, bool commits) {
  auto const barrier = [] { __syncthreads(); };
  if (commits)
    kvmeld::commit_in_kernel(ledger, blockIdx.x, counts[blockIdx.x], threadIdx.x, blockDim.x, barrier);
  else
    kvmeld::append_in_kernel(ledger, blockIdx.x, counts[blockIdx.x], threadIdx.x, blockDim.x, barrier);
}

template <class Call> std::string refusal_of(Call call) {
  try {
    call();
  } catch (kvmeld::invalid_argument const& problem) {
    return problem.what();
  }
  return {};
}

std::vector<element> random_queries(device_test::noise& n) {
  std::vector<element> q;
  for (std::size_t i = 0; i < engine::heads_of_all * extent.key_dim; ++i)
    q.push_back(__float2bfloat16(n.uniform()));
  return q;
}

template <class Calls>
void record_or_replay(kvmeld::call_graph<kvmeld::cuda_executor<>>& g, bool first, Calls const& calls) {
  if (first) {
    g.record(calls);
  } else {
    g.replay(calls);
  }
}

}  // namespace

TEST_CASE("a decode step with attention, its compressions and tensors that move are in graphs as they are "
          "outside") {
  inputs from(3);
  own_stream const& stream = from.stream;
  device_test::noise& n = from.n;
  engine eager(from), replayed(from);
  auto const both = [&](auto f) {
    f(eager);
    f(replayed);
  };
  both([](engine& e) {
    for (std::uint32_t slot : {0u, 1u, 2u}) e.cache.open(slot, 60 + 10 * slot, slot);
  });
  using graph = kvmeld::call_graph<kvmeld::cuda_executor<>>;
  graph step(replayed.cache.executor()), shrink(replayed.cache.executor());
  for (std::uint32_t i = 0; i < 24; ++i) {
    std::vector<std::uint32_t> slots, counts, accepted;
    for (std::uint32_t slot : {0u, 1u, 2u}) {
      if (i != 0 && n.next() >> 30 == 0) continue;
      slots.push_back(slot);
      counts.push_back(i == 0 ? 3 : 1 + (n.next() >> 8) % 3);
      accepted.push_back(i == 0 ? 3 : 1 + (n.next() >> 8) % counts.back());
    }
    auto const q = random_queries(n);
    both([&](engine& e) {
      REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
      e.queries.put(q);
    });
    eager.step(slots, counts, accepted);
    record_or_replay(step, i == 0, [&] { replayed.step(slots, counts, accepted); });
    CHECK(step.graph() != nullptr);
    if (i % 6 == 5) {
      std::vector<std::uint32_t> table(extent.tracks());
      // The smallest first: those behind it take fewer rounds.
      for (std::uint32_t& budget : table) budget = 40 + (i == 5 ? 0 : n.next() % 20);
      std::vector<std::uint32_t> const due = i == 5    ? std::vector<std::uint32_t>{0, 1, 2}
                                             : i == 11 ? std::vector<std::uint32_t>{2}
                                                       : std::vector<std::uint32_t>{1, 0};
      auto const compress = [&](engine& e) {
        e.cache.compress(due, kvmeld::budget::per_track(table.data()));
      };
      compress(eager);
      record_or_replay(shrink, i == 5, [&] { compress(replayed); });
      REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
      replayed.move();
    }
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    CHECK(same_bits(eager.out.get(), replayed.out.get()));
    CHECK(same_bits(eager.lse.get(), replayed.lse.get()));
  }
  CHECK(same_bits(eager.rows(), replayed.rows()));
  for (std::uint32_t slot : {0u, 1u, 2u}) {
    CHECK(eager.cache.save(slot) == replayed.cache.save(slot));
    CHECK(eager.cache.length_bound(slot) == replayed.cache.length_bound(slot));
  }
  CHECK(replayed.cache.executor().error() == cudaSuccess);
}

TEST_CASE("drafts that a kernel accepts: counts that lie on the device, in a graph, and calls in kernels") {
  inputs from(6);
  own_stream const& stream = from.stream;
  device_test::noise& n = from.n;
  engine told(from), counted(from), in_kernels(from);
  std::vector<std::uint32_t> const slots{0, 1, 2};
  for (engine* e : {&told, &counted, &in_kernels}) {
    for (std::uint32_t slot : slots) e->cache.open(slot, 60 + 10 * slot);
  }
  array<std::uint32_t> counts_there(slots.size()), accepted_there(slots.size());
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(counted.cache.executor());
  std::uint32_t rejected = 0;
  for (std::uint32_t i = 0; i < 9; ++i) {
    std::vector<std::uint32_t> counts, accepted, found;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      counts.push_back(i == 0 ? 3 : 1 + (n.next() >> 8) % 3);
      accepted.push_back((n.next() >> 8) % (counts[slot] + 1));
      found.push_back(accepted[slot] == counts[slot] ? counts[slot] + i % 2 : accepted[slot]);
      rejected += counts[slot] - accepted[slot];
    }
    counts_there.put(counts);
    accepted_there.put(found);
    told.cache.append(slots, counts);
    told.cache.commit(slots, accepted);
    record_or_replay(graph, i == 0, [&] {
      counted.cache.append(slots, counts);
      counted.cache.commit(slots, kvmeld::device_list{accepted_there.data()});
    });
    auto const ledger = in_kernels.cache.ledger();
    in_kernels.cache.append(slots, counts, kvmeld::in_kernel);
    call_in_kernel<<<3, 32, 0, stream.is>>>(ledger, counts_there.data(), false);
    in_kernels.cache.commit(slots, kvmeld::in_kernel);
    call_in_kernel<<<3, 32, 0, stream.is>>>(ledger, accepted_there.data(), true);
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    for (std::uint32_t slot : slots) {
      for (engine* e : {&counted, &in_kernels}) {
        CHECK(e->cache.save(slot) == told.cache.save(slot));
        CHECK(e->cache.tokens(slot) >= told.cache.tokens(slot));
      }
    }
  }
  CHECK(rejected > 5);
  for (engine* e : {&counted, &in_kernels}) {
    CHECK(e->cache.tokens(0) > told.cache.tokens(0));
    e->cache.sync_lengths(0);
    CHECK(e->cache.tokens(0) == told.cache.tokens(0));
    CHECK(e->cache.length_bound(0) == told.cache.length_bound(0));
    CHECK(e->cache.executor().error() == cudaSuccess);
  }
}

TEST_CASE("a graph of the engine reads on the device which sequences attend and are observed") {
  inputs from(7);
  own_stream const& stream = from.stream;
  device_test::noise& n = from.n;
  engine told(from), captured(from);
  for (engine* e : {&told, &captured}) {
    for (std::uint32_t slot : {0u, 1u, 2u}) e->cache.open(slot, 70 + 10 * slot);
  }
  array<std::uint32_t> sequences(3), queries(3);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.is, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    captured.attend_and_observe({layer, kvmeld::device_list{sequences.data()},
                                 kvmeld::device_list{queries.data()}, 3, engine::max_queries});
  }
  REQUIRE(cudaStreamEndCapture(stream.is, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  for (std::uint32_t i = 0; i < 8; ++i) {
    std::vector<std::uint32_t> slots, counts;
    for (std::uint32_t slot : {2u, 0u, 1u}) {
      if (i % 4 == slot) continue;
      slots.push_back(slot);
      counts.push_back(1 + (n.next() >> 8) % 3);
    }
    auto const q = random_queries(n);
    for (engine* e : {&told, &captured}) e->queries.put(q);
    told.step(slots, counts, counts);
    captured.cache.append(slots, counts);
    captured.cache.commit(slots, counts);
    slots.resize(3, i % 2 == 0 ? kvmeld::idle_sequence : extent.sequences);
    counts.resize(3, 1);
    sequences.put(slots);
    queries.put(counts);
    REQUIRE(cudaGraphLaunch(ready, stream.is) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    CHECK(same_bits(told.out.get(), captured.out.get()));
    for (std::uint32_t slot : {0u, 1u, 2u}) CHECK(told.cache.save(slot) == captured.cache.save(slot));
  }
  for (engine* e : {&told, &captured}) {
    e->cache.compress({0, 1, 2}, kvmeld::budget::entries(40));  // what was observed suffices
    CHECK(e->cache.executor().error() == cudaSuccess);
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}

TEST_CASE("a step that attends, observes and merges what has grown is one graph") {
  inputs from(9);
  own_stream const& stream = from.stream;
  device_test::noise& n = from.n;
  engine eager(from), replayed(from);
  for (engine* e : {&eager, &replayed}) {
    for (std::uint32_t slot : {0u, 1u, 2u}) e->cache.open(slot, 80 + 10 * slot);
  }
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(replayed.cache.executor());
  std::uint32_t merged = 0;
  for (std::uint32_t i = 0; i < 10; ++i) {
    std::vector<std::uint32_t> slots, counts, due;
    for (std::uint32_t slot : {0u, 1u, 2u}) {
      if (i == 0 || eager.cache.length_bound(slot) > 46 + slot) due.push_back(slot);
      if (i % 3 == slot && i != 0) continue;
      slots.push_back(slot);
      counts.push_back(i == 0 ? 3 : 1 + (n.next() >> 8) % 3);
    }
    merged += i != 0 && !due.empty() ? 1 : 0;
    auto const q = random_queries(n);
    auto const calls = [&](engine& e) {
      e.step(slots, counts, counts);
      e.cache.compress(due, kvmeld::budget::entries(44 + i % 5), kvmeld::shortfall::evict_lowest);
    };
    for (engine* e : {&eager, &replayed}) e->queries.put(q);
    calls(eager);
    record_or_replay(graph, i == 0, [&] { calls(replayed); });
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    CHECK(same_bits(eager.out.get(), replayed.out.get()));
    CHECK(same_bits(eager.rows(), replayed.rows()));
    for (std::uint32_t slot : {0u, 1u, 2u}) CHECK(eager.cache.save(slot) == replayed.cache.save(slot));
  }
  CHECK(merged > 2);
  CHECK(merged < 9);  // and some merge none
  CHECK(replayed.cache.executor().error() == cudaSuccess);
}

TEST_CASE(
    "calls join a graph that the engine captures: nothing happens before its launches, and then what eager "
    "calls do") {
  inputs from(5);
  own_stream const& stream = from.stream;
  device_test::noise& n = from.n;
  engine eager(from), joined(from);
  for (engine* e : {&eager, &joined}) {
    for (std::uint32_t slot : {0u, 1u, 2u}) e->cache.open(slot, 70 + 10 * slot);
  }
  array<std::uint32_t> steps(std::vector<std::uint32_t>(1, 0));
  kvmeld::call_graph<kvmeld::cuda_executor<>> calls_of(joined.cache.executor());
  std::vector<std::uint32_t> slots{0, 1, 2}, counts{3, 3, 3}, due{0, 1, 2};
  std::uint32_t budget = 40;
  auto const calls = [&](engine& e) {
    e.step(slots, counts, counts);
    e.cache.compress(due, kvmeld::budget::entries(budget), kvmeld::shortfall::evict_lowest);
  };
  auto const before = joined.cache.save(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.is, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  add_one<<<1, 1, 0, stream.is>>>(steps.data());  // the engine's own kernel
  calls_of.record_into([&] { calls(joined); });
  REQUIRE(cudaStreamEndCapture(stream.is, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  CHECK(joined.cache.save(1) == before);
  CHECK(joined.cache.length_bound(1) == 80);
  for (std::uint32_t i = 0; i < 6; ++i) {
    slots.clear();
    counts.clear();
    due.clear();
    for (std::uint32_t slot : {0u, 1u, 2u}) {
      if (i == 0 || eager.cache.length_bound(slot) > 46 + slot) due.push_back(slot);
      if (i != 0 && i % 3 == slot) continue;
      slots.push_back(slot);
      counts.push_back(1 + (n.next() >> 8) % 3);
    }
    budget = 44 + i % 3;
    auto const q = random_queries(n);
    for (engine* e : {&eager, &joined}) e->queries.put(q);
    calls(eager);
    calls_of.update([&] { calls(joined); });
    REQUIRE(cudaGraphLaunch(ready, stream.is) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    CHECK(same_bits(eager.out.get(), joined.out.get()));
    CHECK(same_bits(eager.rows(), joined.rows()));
    for (std::uint32_t slot : {0u, 1u, 2u}) CHECK(eager.cache.save(slot) == joined.cache.save(slot));
  }
  CHECK(steps.get()[0] == 6);
  CHECK(joined.cache.executor().error() == cudaSuccess);
  std::uint32_t const bound = joined.cache.length_bound(0);
  CHECK(refusal_of([&] { calls_of.update([] {}); }) ==
        "replay: sequence of calls is shorter; it must be the one that was recorded");
  CHECK(refusal_of([&] { calls_of.replay([&] { calls(joined); }); }) ==
        "replay: graph is empty; it must be recorded first (call record)");
  CHECK(refusal_of([&] { calls_of.record_into([&] { calls(joined); }); }) ==
        "record_into: graph is recorded; it must be empty: each graph of the engine has a call_graph of its "
        "own");
  CHECK(joined.cache.length_bound(0) == bound);
  kvmeld::call_graph<kvmeld::cuda_executor<>> other_calls(joined.cache.executor());
  cudaGraph_t other = nullptr;
  auto const append = [&] { joined.cache.append({0}, {1}); };
  CHECK(refusal_of([&] { other_calls.record_into(append); }) ==
        "record_into: stream is in no valid capture; it must be in one that the engine has begun");
  CHECK(refusal_of([&] { other_calls.update(append); }) ==
        "update: graph is empty; it must be part of a graph that the engine has captured (call record_into)");
  REQUIRE(cudaStreamBeginCapture(stream.is, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  other_calls.record_into(append);
  CHECK(refusal_of([&] { other_calls.update(append); }) ==
        "update: stream is in a capture; it must be in none, because the lists are no part of the graph");
  REQUIRE(cudaStreamEndCapture(stream.is, &other) == cudaSuccess);
  CHECK(joined.cache.length_bound(0) == bound);
  other_calls.update(append);
  CHECK(joined.cache.length_bound(0) == bound + 1);
  other_calls.take_back();  // as if the launch had failed
  CHECK(joined.cache.length_bound(0) == bound);
  cudaGraphDestroy(other);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}

TEST_CASE("what a graph refuses") {
  own_stream stream, other_stream;
  std::vector<element> const k(extent.slots() * extent.key_dim), v(extent.slots() * extent.value_dim);
  engine e(stream.is, k, v);
  auto& cache = e.cache;
  for (std::uint32_t slot : {0u, 1u, 2u}) cache.open(slot, 60);
  using executor = kvmeld::cuda_executor<>;
  using graph = kvmeld::call_graph<executor>;
  {
    executor elsewhere(other_stream.is), unnamed;
    graph g(cache.executor()), by_default(unnamed), small(cache.executor(), 3);
    CHECK(refusal_of([&] { g.include(elsewhere); }) ==
          "call_graph: stream of the executor is another; it must be that of the graph's executor");
    CHECK(refusal_of([&] {
            by_default.record([] {});
          }).find("record: result of cudaStreamBeginCapture is ") == 0);
    CHECK(refusal_of([&] {
            small.record([&] {
              cache.append({2}, {1});
              cache.commit({2}, {1});
            });
          }) == "record: number of numbers in lists is 4; it must be at most 3, the room of the record");
    CHECK(cache.tokens(2) == 60);
    g.record([&] { cache.append({0}, {2}); });
    CHECK(refusal_of([&] { g.replay([&] {
                             cache.append({0, 1}, {1, 1});
                           }); }) ==
          "replay: length of a list is 2; it must be at most 1, as was recorded (record with the longest)");
    CHECK(refusal_of([&] { g.replay([] {}); }) ==
          "replay: sequence of calls is shorter; it must be the one that was recorded");
    CHECK(refusal_of([&] { g.replay([&] { cache.commit({0}, {1}); }); }) ==
          "replay: sequence of calls is another; it must be the one that was recorded");
    CHECK(refusal_of([&] { g.replay([&] { cache.shift(0, 1); }); }) ==
          "shift: recording is on; it must be off, because this call cannot be recorded");
    g.replay([&] { cache.append({1}, {1}); });
    cache.sync_lengths(0);
    cache.sync_lengths(1);
    CHECK(cache.longest(0) == 62);
    CHECK(cache.longest(1) == 61);
  }
  {  // what sizes launches is recorded as the most
    graph attends(cache.executor()), shrinks(cache.executor());
    array<float> const sums(std::vector<float>(3 * extent.query_heads()));
    e.queries.put(std::vector<element>(engine::heads_of_all * extent.key_dim));
    auto const observe = [&](std::uint32_t layer, std::uint32_t rows) {
      cache.observe(
          {layer, 2, rows},
          kvmeld::rows_by_token<element const>(e.queries.data(), rows, extent.query_heads(), extent.key_dim),
          kvmeld::rows_by_head<float const>(sums.data(), rows, extent.query_heads(), 1));
    };
    observe(1, 1);
    attends.record([&] { observe(0, 1); });
    CHECK(refusal_of([&] { attends.replay([&] { observe(0, 3); }); }) ==
          "replay: number of queries of a sequence is 3; it must be at most 1, as was recorded (record with "
          "the most)");
    shrinks.record([&] { cache.compress({2}, kvmeld::budget::entries(100)); });
    std::uint32_t const bound = cache.length_bound(2);
    std::string const more =
        refusal_of([&] { shrinks.replay([&] { cache.compress({2}, kvmeld::budget::entries(10)); }); });
    CHECK(more.find("replay: ") == 0);
    CHECK(more.find("number of rounds is ") != std::string::npos);
    CHECK(more.find(", as was recorded (record with the most)") != std::string::npos);
    CHECK(cache.length_bound(2) == bound);
  }
  {  // a graph is launched into no other's capture
    graph g(cache.executor());
    g.record([&] { cache.append({0}, {1}); });
    std::uint32_t const bound = cache.length_bound(0);
    REQUIRE(cudaStreamBeginCapture(stream.is, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(refusal_of([&] {
            g.replay([&] { cache.append({0}, {1}); });
          }).find("replay: result of cudaGraphLaunch is ") == 0);
    cudaGraph_t left = nullptr;
    cudaStreamEndCapture(stream.is, &left);
    if (left != nullptr) cudaGraphDestroy(left);
    cudaGetLastError();
    CHECK(cache.length_bound(0) == bound);
    g.replay([&] { cache.append({0}, {1}); });
    CHECK(cache.length_bound(0) == bound + 1);
  }
  {  // what waits breaks the capture, and the executor remembers
    executor broken(stream.is);
    graph g(broken);
    std::uint32_t number = 0;
    array<std::uint32_t> const from(std::vector<std::uint32_t>(1, 7));
    CHECK(refusal_of([&] {
            g.record([&] { broken.download(&number, from.data(), sizeof number); });
          }).find("record: result of cudaStreamEndCapture is ") == 0);
    CHECK(broken.error() != cudaSuccess);
    CHECK(refusal_of([&] { g.record([] {}); }).find("record: result of a launch is ") == 0);
    CHECK(g.graph() == nullptr);
  }
}

// What a sound device never says; EMULATOR_REFUSES is the emulated one's.
TEST_CASE("a graph that the runtime has no memory for leaves everything as it was") {
  cudaDeviceProp device{};
  REQUIRE(cudaGetDeviceProperties(&device, 0) == cudaSuccess);
  if (std::string(device.name).find("emulated") == std::string::npos) return;
  own_stream stream;
  std::vector<element> const k(extent.slots() * extent.key_dim), v(extent.slots() * extent.value_dim);
  engine e(stream.is, k, v);
  e.cache.open(0, 60);
  kvmeld::call_graph<kvmeld::cuda_executor<>> g(e.cache.executor());
  auto const append = [&] { e.cache.append({0}, {1}); };
  for (char const* call : {"cudaGraphInstantiate", "cudaGraphLaunch"}) {
    setenv("EMULATOR_REFUSES", call, 1);
    CHECK(refusal_of([&] { g.record(append); }).find(std::string("record: result of ") + call + " is ") == 0);
    unsetenv("EMULATOR_REFUSES");
    CHECK(e.cache.length_bound(0) == 60);
    CHECK(e.cache.executor().error() == cudaSuccess);
    CHECK(g.graph() == nullptr);
  }
  g.record(append);
  e.cache.sync_lengths(0);
  CHECK(e.cache.longest(0) == 61);
}

TEST_CASE("errors that were told are nobody else's") {
  kvmeld::cuda_executor<> executor;
  CHECK(executor.allocate(std::size_t{1} << 60).data() == nullptr);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  executor.note(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal));
  CHECK(executor.error() != cudaSuccess);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("scratch beyond shared memory, eager and recorded") {
  own_stream stream;
  kvmeld::cuda_executor<> executor(stream.is), another(stream.is);
  kvmeld::call_graph<kvmeld::cuda_executor<>> g(executor);
  auto const numbers = static_cast<std::uint32_t>(executor.max_scratch() / 4 + 1000);
  array<std::uint32_t> sums(2 * extent.tracks());
  roomy_phase const phase{sums.data(), numbers};
  std::vector<std::uint32_t> const slots{0, 1, 2};
  auto const launch = [&] {
    auto const list = executor.stage(slots);
    kvmeld::track_source const source{extent, {list.data(), 3}};
    executor.run(phase, extent, extent.tracks(), source);
  };
  std::size_t const bytes = phase.scratch_bytes(1);
  CHECK(refusal_of([&] { g.record(launch); }) ==
        "record: scratch in bytes of a block is 0; it must be at least " + std::to_string(bytes) +
            " (call reserve before)");
  cudaGraph_t graph = nullptr;  // in a capture of the engine as well
  REQUIRE(cudaStreamBeginCapture(stream.is, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(refusal_of([&] { kvmeld::launch_all(executor, "a test", launch); }) ==
        "a test: scratch per tile in bytes is " + std::to_string(bytes) +
            "; it must be no more than the executor can allocate");
  std::vector<std::uint32_t> const many(executor.staged_numbers);
  CHECK(refusal_of([&] { another.stage(many); }) ==
        "cuda_executor: list in numbers is " + std::to_string(many.size()) +
            "; it must be no more than the executor can allocate");
  REQUIRE(cudaStreamEndCapture(stream.is, &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(executor.error() == cudaSuccess);
  auto const check = [&] {
    REQUIRE(cudaStreamSynchronize(stream.is) == cudaSuccess);
    auto const got = sums.get();
    for (std::uint32_t i = 0; i < got.size(); ++i) {
      std::uint32_t expected = 0;
      for (std::uint32_t j = 0; j < numbers; ++j) expected += j % (i % 2 + 3);
      CHECK(got[i] == expected);
    }
    sums.put(std::vector<std::uint32_t>(got.size()));
  };
  executor.reserve(bytes);
  g.record(launch);
  check();
  launch();
  check();
  g.replay(launch);
  check();
}

TEST_CASE("scratch that a device has no memory for is refused before anything is launched") {
  using executor_type = kvmeld::cuda_executor<kvmeld::workspace_resource>;
  std::size_t const lists = 4 * executor_type::staged_numbers;
  array<unsigned char> const room(lists);  // and no byte of scratch
  std::size_t used = 0;
  executor_type executor(nullptr, {room.data(), lists, &used});
  auto const numbers = static_cast<std::uint32_t>(executor.max_scratch() / 4 + 1000);
  array<std::uint32_t> sums(2 * extent.tracks());
  roomy_phase const phase{sums.data(), numbers};
  std::vector<std::uint32_t> const slots{0, 1, 2};
  auto const list = executor.stage(slots);
  std::size_t const before = executor.launches();
  CHECK(refusal_of([&] {
          kvmeld::launch_all(executor, "a test", [&] {
            executor.run(phase, extent, extent.tracks(), kvmeld::track_source{extent, {list.data(), 3}});
          });
        }) == "a test: scratch per tile in bytes is " + std::to_string(phase.scratch_bytes(1)) +
                  "; it must be no more than the executor can allocate");
  CHECK(executor.launches() == before);
  CHECK(executor.error() == cudaSuccess);
  std::vector<std::uint32_t> const many(executor_type::staged_numbers);
  CHECK(refusal_of([&] { executor.stage(many); }) ==
        "cuda_executor: list in numbers is " + std::to_string(many.size()) +
            "; it must be no more than the executor can allocate");
}

TEST_CASE("memory that an engine has set aside: exactly what a cache takes, and no byte less") {
  using executor = kvmeld::cuda_executor<kvmeld::workspace_resource>;
  auto const policy = kvmeld::preset::h2o::defaults();
  array<plain> const nowhere(2);  // no row is looked at
  std::size_t const lists = 4 * executor::staged_numbers;
  std::uint32_t const workers = kvmeld::cuda_executor<>().workers();
  std::size_t const cache =
      kvmeld::detail::cache_bytes(kvmeld::cache_options{extent}, kvmeld::channels_of(policy.score), workers);
  CHECK(lists % 256 == 0);
  for (std::size_t missing : {std::size_t{0}, std::size_t{1}}) {
    // A moved executor keeps its lists.
    std::size_t const bytes = lists + cache - missing;
    array<unsigned char> const room(bytes);
    std::size_t used = 0;
    auto const make = [&] {
      kvmeld::merged_cache made{executor(nullptr, {room.data(), bytes, &used}), policy,
                                kvmeld::kv{kvmeld::relocatable<plain>(nowhere.data(), extent.key_dim),
                                           kvmeld::relocatable<plain>(nowhere.data() + 1, extent.value_dim)},
                                kvmeld::cache_options{extent}};
      made.open(0, 100);
      made.append({0}, {9});
      made.commit({0}, {4});
      made.sync_lengths(0);
      CHECK(made.longest(0) == 104);
      CHECK(used == bytes);
    };
    if (missing == 0) {
      make();
    } else {
      CHECK(refusal_of(make) == "merged_cache: memory in bytes is " + std::to_string(cache) +
                                    "; it must be no more than the executor can allocate");
    }
  }
}
