// The functions of kvmeld.h that make caches, bind them to tensors, and end them.
#include "arguments.hpp"
#include "built.hpp"
#include "current_device.hpp"
#include "engine_cache.hpp"
#include "failure.hpp"
#include "memory_source.hpp"
#include "registry.hpp"

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/compose/part_parameters.hpp>
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/kvmeld.h>
#include <kvmeld/queries/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld_library {

namespace {

kvmeld::cache_options sizes_of(char const* call, kvmeld_options const& o) {
  kvmeld::cache_options out;
  out.extent = {o.layers, o.sequences, o.kv_heads, o.queries_per_kv_head, o.key_dim, o.value_dim, o.capacity};
  out.scope =
      read_enum(call, "options.scope", o.scope, kvmeld::plan_scope::all_layers, names_of_values.scope);
  out.budgets_over = read_enum(call, "options.budgets_over", o.budgets_over, kvmeld::budget_scope::all_layers,
                               names_of_values.scope);
  out.bias = read_enum(call, "options.bias", o.bias, kvmeld::bias_support::none, names_of_values.bias);
  out.ignore_degree = o.ignore_degree != 0;
  out.padded = o.padded != 0;
  out.zero_emptied = o.zero_emptied != 0;
  out.first_layer = o.first_layer;
  out.first_kv_head = o.first_kv_head;
  if (std::string const problem = kvmeld::detail::extent_problem(out.extent); !problem.empty())
    throw failure(KVMELD_INVALID_ARGUMENT, kvmeld::refusal_within(call, problem));
  return out;
}

page_list pages_of(char const* call, kvmeld_options const& o) {
  if (o.page_size == 0) return {0, nullptr, 0};
  require(o.page_table, call, "options.page_table", "the table of the sequences' pages");
  std::int64_t const pages = kvmeld::ceil_div(o.capacity, o.page_size);
  if (o.sequences > 1 && o.page_table_stride < pages && o.page_table_stride > -pages) {
    refuse(call, "options.page_table_stride", o.page_table_stride, "at least ", pages,
           ", the pages of a sequence of options.capacity entries");
  }
  return {o.page_size, o.page_table, o.page_table_stride};
}

/// Where the ledger's numbers per entry lie, if the pools have a number of pages.
kvmeld::ledger_pages ledger_pages_of(char const* call, kvmeld_options const& o, kvmeld::shape const& s) {
  if (o.pool_pages == 0) return {};
  if (o.page_size == 0) refuse(call, "options.pool_pages", o.pool_pages, "0, because options.page_size is 0");
  kvmeld::page_table<> const table{o.page_table, o.page_table_stride};
  return {o.pool_pages, kvmeld::dense_places(table, o.page_size, s)};
}

void check_place(char const* call, kvmeld_options const& o) {
  if (o.device < -1) refuse(call, "options.device", o.device, "-1, or the number of a device");
  if (o.device >= 0) {
    if constexpr (with_cuda) {
      int const count = count_devices();
      if (count == 0) refuse(call, "options.device", o.device, "-1, because there is no CUDA device here");
      if (o.device >= count)
        refuse(call, "options.device", o.device, "below ", count, ", the number of CUDA devices, or -1");
    } else {
      throw failure(KVMELD_UNSUPPORTED, kvmeld::refusal(call, "options.device", o.device,
                                                        "-1, because this library was built without CUDA"));
    }
  }
  if (o.device < 0 && o.stream != nullptr) refuse(call, "options.stream", "given", "null for host memory");
  if ((o.allocator.allocate == nullptr) != (o.allocator.release == nullptr)) {
    refuse(call, o.allocator.allocate == nullptr ? "options.allocator.allocate" : "options.allocator.release",
           "null", "a function, because the other one is given");
  }
}

/// The system's memory where the cache's tensors are.
kvmeld_allocator system_memory([[maybe_unused]] kvmeld_options const& o) {
  if constexpr (with_cuda) {
    if (o.device >= 0) return stream_ordered_memory(o.stream);
  }
  return {};
}

/// A copy of the frequencies of a rotation that was read, for keys of so many channels; refuses what is none.
std::vector<float> copy_frequencies(char const* call, kvmeld::rope_params const& rope,
                                    std::uint32_t key_dim) {
  if (std::string const problem = kvmeld::detail::rope_problem(call, rope, key_dim, true); !problem.empty())
    throw failure(KVMELD_INVALID_ARGUMENT, problem);
  if (rope.frequencies == nullptr) return {};
  return {rope.frequencies, rope.frequencies + rope.pairs(key_dim)};
}

/// A copy of the weights that were learned of the cache's part of a model; empty if none are given. `facts`
/// gets their extents.
std::vector<float> copy_learned(char const* call, kvmeld_options const& o, kvmeld::learned_weights& facts) {
  if (o.learned == nullptr) return {};
  kvmeld_learned const& all = *o.learned;
  require(all.weights, call, "options.learned.weights", "the weights that were learned");
  auto const holds = [&](char const* name, std::uint32_t has, std::uint64_t needs, char const* what) {
    if (has < needs) refuse(call, name, has, "at least ", needs, what);
  };
  holds("options.learned.layers", all.layers, std::uint64_t{o.first_layer} + o.layers,
        ", the cache's last layer");
  holds("options.learned.kv_heads", all.kv_heads, std::uint64_t{o.first_kv_head} + o.kv_heads,
        ", the cache's last KV head");
  if (all.key_dim != o.key_dim)
    refuse(call, "options.learned.key_dim", all.key_dim, o.key_dim, ", as options.key_dim says");
  std::size_t const floats = kvmeld::learned_weights::floats(o.key_dim);
  std::vector<float> out;
  for (std::uint32_t layer = 0; layer < o.layers; ++layer) {
    float const* const from =
        all.weights + ((std::size_t{o.first_layer} + layer) * all.kv_heads + o.first_kv_head) * floats;
    out.insert(out.end(), from, from + o.kv_heads * floats);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!kvmeld::is_finite(out[i]))
      refuse(call, kvmeld::message("options.learned.weights of the cache's part, number ", i), out[i],
             "a finite number");
  }
  facts = {out.data(), o.layers, o.kv_heads, o.key_dim};
  return out;
}

/// Reads options.attention. `sinks` gets a copy of its sinks.
kvmeld::attention_params read_attention(char const* call, kvmeld_options const& o, kvmeld::shape const& s,
                                        std::vector<float>& sinks) {
  kvmeld::attention_params out;
  if (o.attention == nullptr) return out;
  kvmeld_attention const& from = *o.attention;
  out.softcap = from.softcap;
  out.window = from.window;
  out.window_sinks = from.window_sinks;
  if (std::string const problem = kvmeld::detail::params_problem(call, out, s.key_dim, true);
      !problem.empty())
    throw failure(KVMELD_INVALID_ARGUMENT, problem);
  if (from.sinks == nullptr) return out;
  sinks.assign(from.sinks, from.sinks + std::size_t{s.layers} * s.query_heads());
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    if (!kvmeld::is_finite(sinks[i]))
      refuse(call, kvmeld::message("options.attention.sinks[", i, "]"), sinks[i], "a finite number");
  }
  return out;
}

/// Reads options.policy, with what options.rope and options.learned say. `frequencies` and `learned` get the
/// numbers that it needs.
kvmeld::compose::composed read_policy(char const* call, kvmeld_options const& o,
                                      std::vector<float>& frequencies, std::vector<float>& learned) {
  require(o.policy, call, "options.policy", "the name of a preset, or parts");
  kvmeld::compose::composed policy;
  kvmeld::rope_params told;
  if (o.rope != nullptr) {
    told = read_rope(call, o.rope);
    (void)copy_frequencies(call, told, o.key_dim);
  }
  kvmeld::learned_weights weights;
  learned = copy_learned(call, o, weights);
  kvmeld::compose::read_policy(o.policy, policy, o.rope == nullptr ? nullptr : &told, &frequencies);
  if (!kvmeld::compose::set_learned(policy, weights)) learned.clear();
  kvmeld::rope_params const rope = kvmeld::compose::rope_of(policy);
  frequencies = copy_frequencies(call, rope, o.key_dim);
  return policy;
}

ingredients read_ingredients(char const* call, kvmeld_options const& o, memory_source& memory) {
  kvmeld::cache_options sizes = sizes_of(call, o);
  std::vector<float> frequencies, learned;
  kvmeld::compose::composed const policy = read_policy(call, o, frequencies, learned);
  page_list const pages = pages_of(call, o);
  sizes.ledger_pages = ledger_pages_of(call, o, sizes.extent);
  std::vector<float> sinks;
  kvmeld::attention_params const attention = read_attention(call, o, sizes.extent, sinks);
  return {policy,
          sizes,
          pages,
          &memory,
          o.threads,
          o.stream,
          std::move(frequencies),
          std::move(learned),
          attention,
          std::move(sinks)};
}

/// Whether there are caches over elements of T.
template <class T> constexpr bool with_elements() {
  if constexpr (std::is_same_v<T, kvmeld::float16>) return with_float16;
  if constexpr (std::is_same_v<T, kvmeld::bfloat16>) return with_bfloat16;
  return with_float;
}

template <class Place, class T>
std::unique_ptr<engine_cache> make_at(char const* call, ingredients const& of, tensor_list const* tensors) {
  if (of.pages.size == 0) return make_on_tensors<Place, T>(call, of, tensors);
  if constexpr (with_pages) return make_on_pages<Place, T>(call, of, tensors);
  throw failure(KVMELD_UNSUPPORTED, kvmeld::refusal(call, "options.page_size", of.pages.size,
                                                    "0, because this library was built without pages"));
}

std::unique_ptr<engine_cache> make(char const* call, kvmeld_options const& o, ingredients const& of,
                                   tensor_list const* tensors) {
  return with_element(call, "options.element", o.element, [&](auto tag) -> std::unique_ptr<engine_cache> {
    using type = typename decltype(tag)::type;
    if constexpr (with_elements<type>()) {
      if constexpr (with_cuda) {
        if (o.device >= 0) return make_at<device, type>(call, of, tensors);
      }
      return make_at<host, type>(call, of, tensors);
    } else {
      throw failure(KVMELD_UNSUPPORTED,
                    kvmeld::refusal(call, "options.element", name_of(o.element), names_of_elements,
                                    ", because this library was built without the other types"));
    }
  });
}

/// Refuses options that kvmeld_create would refuse. `asked` gets the bytes of ledger and workspace: a cache
/// asks for them at once, behind all checks, and is refused here.
ingredients rehearse(char const* call, kvmeld_options const* options, std::size_t& asked) {
  kvmeld_options const o = read_options(call, options);
  check_place(call, o);
  current_device const current(o.device);
  refuse_capture(call, o.device, o.stream);
  memory_source memory(system_memory(o));
  // On a device the lists of the executor and the layouts of K and V come before.
  memory.only_count(o.device < 0 ? 0 : 3);
  ingredients of = read_ingredients(call, o, memory);
  try {
    make(call, o, of, nullptr);
  } catch (kvmeld::invalid_argument const& refused) {
    if (!memory.counted()) {
      throw_lack_of_memory(memory, call, refused.what());
      throw;
    }
  }
  asked = memory.asked();
  of.memory = nullptr;
  return of;
}

tensor_list read_tensors(char const* call, kvmeld_tensor const* keys, kvmeld_tensor const* values,
                         std::uint32_t tensors, std::uint32_t layers) {
  require(keys, call, "keys", "an array of as many tensors as `tensors` says");
  require(values, call, "values", "an array of as many tensors as `tensors` says");
  if (tensors != 1 && tensors != layers)
    refuse(call, "tensors", tensors, "1, or ", layers, ", the number of layers");
  return {keys, values, tensors};
}

}  // namespace

}  // namespace kvmeld_library

using namespace kvmeld_library;

extern "C" {

kvmeld_status kvmeld_options_init(kvmeld_options* options, size_t bytes) {
  return guarded([&] {
    require(options, "kvmeld_options_init", "options", "the options to set");
    kvmeld_options all{};
    // A newer program has fields that this library does not know; it is refused when they are read.
    if (bytes < sizeof all.bytes) {
      refuse("kvmeld_options_init", "bytes", bytes, "sizeof(kvmeld_options)");
    }
    all.bytes = bytes;
    all.device = -1;
    if (bytes > sizeof all) std::memset(options, 0, bytes);
    std::memcpy(options, &all, std::min(bytes, sizeof all));
  });
}

kvmeld_status kvmeld_bytes(kvmeld_options const* options, size_t* bytes) {
  return guarded([&] {
    char const* const call = "kvmeld_bytes";
    require(bytes, call, "bytes", "where to write the number");
    std::size_t asked = 0;
    (void)rehearse(call, options, asked);
    *bytes = asked;
  });
}

kvmeld_status kvmeld_check(kvmeld_options const* options, kvmeld_budget const* budget, uint32_t tokens,
                           uint32_t* least) {
  return guarded([&] {
    char const* const call = "kvmeld_check";
    std::size_t asked = 0;
    ingredients const of = rehearse(call, options, asked);
    if (budget != nullptr) {
      std::string const problem =
          kvmeld::check_calls::new_sequence(call, read_budget(call, *budget), of.policy, of.sizes, tokens);
      if (!problem.empty()) throw failure(KVMELD_INVALID_ARGUMENT, problem);
    }
    if (least == nullptr) return;
    std::uint32_t fewest = tokens == 0 ? 0 : 1;
    for (std::uint32_t enough = tokens; fewest < enough;) {  // more entries never pin more than they add
      std::uint32_t const middle = fewest + (enough - fewest) / 2;
      bool const fits = kvmeld::check_calls::pins_within(call, "", of.policy, tokens, middle, 0).empty();
      (fits ? enough : fewest) = fits ? middle : middle + 1;
    }
    *least = fewest;
  });
}

kvmeld_status kvmeld_asks(char const* policy, int32_t* rope, int32_t* learned) {
  return guarded([&] {
    char const* const call = "kvmeld_asks";
    require(policy, call, "policy", "the name of a preset, or parts");
    kvmeld::compose::composed read;
    std::vector<float> frequencies;
    kvmeld::rope_params const any;
    kvmeld::compose::read_policy(policy, read, any, &frequencies);  // refuses what is no policy
    bool const turns = kvmeld::compose::needs_rope(read) && !kvmeld::compose::says_rope(policy);
    if (rope != nullptr) *rope = turns ? 1 : 0;
    if (learned != nullptr) *learned = kvmeld::compose::needs_learned(read) ? 1 : 0;
  });
}

kvmeld_status kvmeld_create(kvmeld_options const* options, kvmeld_tensor const* keys,
                            kvmeld_tensor const* values, uint32_t tensors, kvmeld_cache* made) {
  return guarded([&] {
    char const* const call = "kvmeld_create";
    kvmeld_options const o = read_options(call, options);
    require(made, call, "made", "where to write the handle");
    check_place(call, o);
    current_device const current(o.device);
    refuse_capture(call, o.device, o.stream);
    auto held = std::make_unique<held_cache>();
    held->device = o.device;
    held->stream = o.stream;
    held->memory =
        std::make_unique<memory_source>(o.allocator.allocate != nullptr ? o.allocator : system_memory(o));
    ingredients const of = read_ingredients(call, o, *held->memory);
    tensor_list const list = read_tensors(call, keys, values, tensors, o.layers);
    held->sizes = of.sizes;
    held->attention = of.attention;
    try {
      held->cache = make(call, o, of, &list);
    } catch (kvmeld::invalid_argument const& refused) {
      throw_lack_of_memory(*held->memory, call, refused.what());
      throw;
    }
    if (!of.sinks.empty()) {
      held->sinks = held->cache->floats(call, "options.attention.sinks", of.sinks.size(), of.sinks.data());
      held->attention.sink = held->sinks.get();
    }
    refuse_faults(call, *held);
    held->policy = held->cache->cache().name();
    *made = keep(std::move(held));
  });
}

kvmeld_status kvmeld_rebind(kvmeld_cache cache, kvmeld_tensor const* keys, kvmeld_tensor const* values,
                            uint32_t tensors) {
  char const* const call = "kvmeld_rebind";
  return on_cache(call, cache, [&](held_cache& held) {
    held.cache->rebind(call, read_tensors(call, keys, values, tensors, held.sizes.extent.layers));
  });
}

kvmeld_status kvmeld_destroy(kvmeld_cache cache) {
  return guarded([&] {
    std::unique_ptr<held_cache> held = take_out("kvmeld_destroy", cache);
    current_device const current(held->device);
    held.reset();
  });
}

kvmeld_status kvmeld_policy(kvmeld_cache cache, char const** name) {
  return on_cache("kvmeld_policy", cache, [&](held_cache& held) {
    require(name, "kvmeld_policy", "name", "where to write the address of the name");
    *name = held.policy.c_str();
  });
}

}  // extern "C"
