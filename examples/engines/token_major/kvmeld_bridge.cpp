// The one C++ file that an engine in C adds.
#include "kvmeld_bridge.h"

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace {

using kvmeld::compose::composed;
using kvmeld::compose::composed_of;
using layout = kvmeld::strided<kvmeld::float16>;
using cache_type = kvmeld::merged_cache<kvmeld::host_executor, composed, layout, layout>;

thread_local std::string problem;

/// Runs `call`; 0, or 1 with the reason kept.
template <class F> int guarded(F call) noexcept {
  problem.clear();
  try {
    call();
    return 0;
  } catch (std::exception const& e) {
    problem = e.what();
    return 1;
  }
}

composed policy_named(std::string const& name) {
  using kvmeld::quantity;
  namespace preset = kvmeld::preset;
  if (name == "chelsea") {
    return composed_of(
        preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25), quantity::at_most(64, 1.0 / 3)));
  }
  if (name == "recommended") return composed_of(preset::recommended::for_budget());
  if (name == "kvmerger") return composed_of(preset::kvmerger::for_budget());
  if (name == "h2o") return composed_of(preset::h2o::defaults());
  if (name == "snapkv") return composed_of(preset::snapkv::with_window());
  if (name == "streaming_llm") return composed_of(preset::streaming_llm::with_sinks());
  throw kvmeld::invalid_argument(kvmeld::refusal(
      "bridge", "policy", '"' + name + '"', "recommended, chelsea, kvmerger, h2o, snapkv or streaming_llm"));
}

kvmeld::budget budget_of(kvmeld_bridge_budget b) {
  return b.entries != 0 ? kvmeld::budget::entries(b.entries) : kvmeld::budget::ratio(b.ratio);
}

layout rows(std::uint16_t* bits, kvmeld::shape const& s) {
  // kvmeld::float16 is these 16 bits and nothing else.
  return {reinterpret_cast<kvmeld::float16*>(bits), "LSTHC", s, s.key_dim};
}

}  // namespace

struct kvmeld_bridge {
  kvmeld_bridge(kvmeld::shape const& s, std::uint16_t* keys, std::uint16_t* values, composed const& policy,
                kvmeld_bridge_budget when_full)
      : extent(s),
        full(when_full),
        cache(kvmeld::host_executor(1), policy, {rows(keys, s), rows(values, s)}, kvmeld::cache_options{s}),
        bias(s.slots(), 0.0f) {
    cache.open(0);
  }
  /// The next token is that at `position`.
  void go_to(std::uint32_t position) {
    if (position == cache.tokens(0)) return;
    if (position != 0) {
      cache.truncate(0, position);
      return;
    }
    cache.close(0);
    cache.open(0);
    merged = false;
  }
  void append() {
    if (full.entries == 0 && full.ratio == 0.0) {
      cache.append({0}, {1});
    } else {
      bool const shrinks = cache.longest(0) == extent.capacity;
      cache.append({0}, {1}, {budget_of(full)});
      if (shrinks) write_bias();
    }
    // At once: a token is read for good, and only what is committed can be observed.
    cache.commit({0}, {1});
  }
  void write_bias() {
    merged = true;
    std::size_t const layer = std::size_t{extent.kv_heads} * extent.capacity;
    for (std::uint32_t l = 0; l < extent.layers; ++l) {
      kvmeld::attention::write_log_degree(
          cache.executor(), cache.ref(), l, {0},
          kvmeld::rows_by_head(bias.data() + l * layer, 1, extent.kv_heads, extent.capacity), 1,
          kvmeld::attention::behind_end::unmerged);
    }
  }

  kvmeld::shape extent;
  kvmeld_bridge_budget full;
  cache_type cache;
  std::vector<float> bias;  // [layer][kv_head][capacity]
  bool merged = false;      // whether the bias is needed
};

kvmeld_bridge* kvmeld_bridge_create(kvmeld_bridge_shape s, std::uint16_t* keys, std::uint16_t* values,
                                    char const* policy, kvmeld_bridge_budget when_full) {
  kvmeld_bridge* made = nullptr;
  guarded([&] {
    kvmeld::shape const extent{s.layers, 1, s.kv_heads, s.group, s.head_dim, s.head_dim, s.capacity};
    made = new kvmeld_bridge(extent, keys, values, policy_named(policy), when_full);
  });
  return made;
}

void kvmeld_bridge_destroy(kvmeld_bridge* b) { delete b; }

int kvmeld_bridge_begin(kvmeld_bridge* b, std::uint32_t position) {
  return guarded([&] {
    b->go_to(position);
    b->append();
  });
}

int kvmeld_bridge_observe(kvmeld_bridge* b, std::uint32_t layer, float const* queries,
                          float const* log_sum_exps) {
  return guarded([&] {
    std::uint32_t const heads = b->extent.query_heads(), d = b->extent.key_dim;
    b->cache.observe({layer, 0, 1}, kvmeld::rows_by_token(queries, 1, heads, d),
                     kvmeld::rows_by_token(log_sum_exps, 1, heads, 1));
  });
}

int kvmeld_bridge_observes(kvmeld_bridge const* b) { return b->cache.needs_observation() ? 1 : 0; }

int kvmeld_bridge_compress(kvmeld_bridge* b, kvmeld_bridge_budget budget) {
  return guarded([&] {
    b->cache.compress({0}, budget_of(budget));
    b->write_bias();
  });
}

std::uint32_t kvmeld_bridge_length(kvmeld_bridge const* b, std::uint32_t layer, std::uint32_t kv_head) {
  return b->cache.length(layer, 0, kv_head);
}

float const* kvmeld_bridge_bias(kvmeld_bridge const* b, std::uint32_t layer, std::uint32_t kv_head) {
  if (!b->merged) return nullptr;
  return b->bias.data() + (std::size_t{layer} * b->extent.kv_heads + kv_head) * b->extent.capacity;
}

std::uint32_t kvmeld_bridge_tokens(kvmeld_bridge const* b) { return b->cache.tokens(0); }

char const* kvmeld_bridge_problem(void) { return problem.c_str(); }
