// The C functions of shim.h over any_cache. Nothing may throw across them.
#include "shim.h"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace {

/// The engine's tensors, one per layer. Phases look them up in memory that outlives the cache, so that
/// binding a layer anew needs no new cache.
template <class T> struct tensors_of {
  using element_type = T;
  std::vector<kvmeld::strided<T>> keys, values;

  explicit tensors_of(kvmeld::shape const& s)
      : keys(s.layers, kvmeld::strided<T>(nullptr, kvmeld::cache_strides{}, s, s.key_dim)), values(keys) {}
  auto layouts(kvmeld::shape const& s) const {
    return kvmeld::kv{kvmeld::per_layer(keys.data(), s.key_dim),
                      kvmeld::per_layer(values.data(), s.value_dim)};
  }
  void bind(std::uint32_t layer, kvmeld::shape const& s, void* k, void* v, std::int64_t const* ks,
            std::int64_t const* vs) {
    keys[layer] = {static_cast<T*>(k), kvmeld::cache_strides{0, ks[0], ks[1], ks[2], 1}, s, s.key_dim};
    values[layer] = {static_cast<T*>(v), kvmeld::cache_strides{0, vs[0], vs[1], vs[2], 1}, s, s.value_dim};
  }
};

kvmeld::compose::composed policy_named(std::string const& method) {
  using kvmeld::quantity;
  using kvmeld::compose::composed_of;
  namespace preset = kvmeld::preset;
  if (method == "chelsea")  // fewer pins where 16 and 64 would fill a small budget
    return composed_of(
        preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25), quantity::at_most(64, 1.0 / 3)));
  if (method == "kvmerger") return composed_of(preset::kvmerger::for_budget());
  if (method == "d2o") return composed_of(preset::d2o::defaults());
  if (method == "keepkv") return composed_of(preset::keepkv::for_budget());
  if (method == "h2o") return composed_of(preset::h2o::defaults());
  if (method == "snapkv") return composed_of(preset::snapkv::with_window());
  if (method == "streaming_llm") return composed_of(preset::streaming_llm::with_sinks());
  throw kvmeld::invalid_argument(
      "kvmeld_create: method is \"" + method +
      "\"; it must be chelsea, kvmerger, d2o, keepkv, h2o, snapkv or streaming_llm");
}

thread_local std::string problem;

/// Runs `f`; what it throws becomes the problem.
template <class F> int guarded(F f) {
  try {
    f();
    return 0;
  } catch (std::exception const& refused) {
    problem = refused.what();
  } catch (...) {
    problem = "an exception of unknown type";
  }
  return -1;
}

}  // namespace

struct kvmeld_c_cache {
  kvmeld::cache_options sizes;
  std::variant<tensors_of<float>, tensors_of<kvmeld::float16>, tensors_of<kvmeld::bfloat16>> tensors;
  std::unique_ptr<kvmeld::any_cache> cache;

  kvmeld_c_cache(kvmeld::compose::composed const& policy, kvmeld::cache_options const& l, decltype(tensors) t)
      : sizes(l), tensors(std::move(t)) {
    std::visit(
        [&](auto const& held) {
          cache = kvmeld::make_any_cache(
              kvmeld::merged_cache{kvmeld::host_executor{}, policy, held.layouts(sizes.extent), sizes});
        },
        tensors);
  }
};

extern "C" {

char const* kvmeld_problem(void) { return problem.c_str(); }

kvmeld_c_cache* kvmeld_create(char const* method, kvmeld_c_sizes const* s) {
  kvmeld_c_cache* made = nullptr;
  guarded([&] {
    if (s->element > kvmeld_c_bfloat16 || s->scope > kvmeld_c_group)
      throw kvmeld::invalid_argument("kvmeld_create: element and scope are 0, 1 or 2");
    kvmeld::cache_options sizes{
        {s->layers, s->sequences, s->kv_heads, s->group, s->head_dim, s->head_dim, s->capacity}};
    sizes.scope = static_cast<kvmeld::plan_scope>(s->scope);
    sizes.ignore_degree = s->ignore_degree != 0;
    sizes.bias = sizes.ignore_degree                       ? kvmeld::bias_support::none
                 : sizes.scope == kvmeld::plan_scope::head ? kvmeld::bias_support::per_head
                                                           : kvmeld::bias_support::shared;
    sizes.first_layer = s->first_layer;
    sizes.first_kv_head = s->first_kv_head;
    kvmeld::shape const& extent = sizes.extent;
    auto const policy = policy_named(method);
    if (s->element == kvmeld_c_float)
      made = new kvmeld_c_cache(policy, sizes, tensors_of<float>(extent));
    else if (s->element == kvmeld_c_half)
      made = new kvmeld_c_cache(policy, sizes, tensors_of<kvmeld::float16>(extent));
    else
      made = new kvmeld_c_cache(policy, sizes, tensors_of<kvmeld::bfloat16>(extent));
  });
  return made;
}
void kvmeld_destroy(kvmeld_c_cache* c) { delete c; }

int kvmeld_bind(kvmeld_c_cache* c, uint32_t layer, void* keys, void* values, int64_t const key_strides[3],
                int64_t const value_strides[3]) {
  return guarded([&] {
    kvmeld::shape const& extent = c->sizes.extent;
    if (layer >= extent.layers) {
      throw kvmeld::invalid_argument(
          kvmeld::refusal("kvmeld_bind", "layer", layer, "0 to ", extent.layers - 1));
    }
    if (keys == nullptr || values == nullptr) {
      throw kvmeld::invalid_argument(kvmeld::refusal("kvmeld_bind", keys == nullptr ? "keys" : "values",
                                                     "null", "the tensor of the layer"));
    }
    std::visit([&](auto& held) { held.bind(layer, extent, keys, values, key_strides, value_strides); },
               c->tensors);
  });
}

int kvmeld_open(kvmeld_c_cache* c, uint32_t slot, uint32_t tokens) {
  return guarded([&] { c->cache->open(slot, tokens); });
}
int kvmeld_close(kvmeld_c_cache* c, uint32_t slot) {
  return guarded([&] { c->cache->close(slot); });
}
int kvmeld_append(kvmeld_c_cache* c, uint32_t slot, uint32_t tokens) {
  return guarded([&] { c->cache->append({slot}, {tokens}); });
}
int kvmeld_commit(kvmeld_c_cache* c, uint32_t slot, uint32_t accepted) {
  return guarded([&] { c->cache->commit({slot}, {accepted}); });
}
int kvmeld_observe_rows(kvmeld_c_cache* c, uint32_t layer, uint32_t slot, uint32_t queries, float const* rows,
                        int64_t head_stride, int64_t row_stride) {
  return guarded([&] {
    c->cache->observe_rows({layer, slot, queries},
                           kvmeld::head_rows<float const>{rows, 0, head_stride, row_stride});
  });
}
int kvmeld_compress(kvmeld_c_cache* c, uint32_t slot, double share) {
  return guarded([&] { c->cache->compress({slot}, kvmeld::budget::ratio(share)); });
}

int kvmeld_needs_attention(kvmeld_c_cache const* c) { return c->cache->needs_observation() ? 1 : 0; }
uint32_t kvmeld_tokens(kvmeld_c_cache const* c, uint32_t slot) {
  uint32_t n = 0;
  guarded([&] { n = c->cache->tokens(slot); });
  return n;
}
uint32_t kvmeld_longest(kvmeld_c_cache const* c, uint32_t slot) {
  uint32_t n = 0;
  guarded([&] { n = c->cache->longest(slot); });
  return n;
}
uint32_t kvmeld_length(kvmeld_c_cache const* c, uint32_t layer, uint32_t slot, uint32_t kv_head) {
  uint32_t n = 0;
  guarded([&] { n = c->cache->length(layer, slot, kv_head); });
  return n;
}
int kvmeld_log_degree(kvmeld_c_cache* c, uint32_t layer, uint32_t slot, float* out) {
  return guarded([&] {
    kvmeld::shape const& s = c->sizes.extent;
    c->cache->write_log_degree(layer, {slot}, kvmeld::rows_by_head(out, 1, s.query_heads(), s.capacity),
                               s.queries_per_kv_head);
  });
}

}  // extern "C"
