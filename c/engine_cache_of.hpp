// The engine_cache of one place, element type and form of tensors.
#pragma once

#include "engine_cache.hpp"
#include "failure.hpp"
#include "memory_source.hpp"

#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/compose/part_parameters.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/paged.hpp>
#include <kvmeld/layout/per_layer.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld_library {

/// Rectangular tensors.
template <class T> struct on_tensors {
  using element_type = T;
  using layout = kvmeld::strided<T>;
  explicit on_tensors(page_list const&) {}
  layout operator()(kvmeld_tensor const& t, kvmeld::shape const& s, std::uint32_t channels) const {
    return {static_cast<T*>(t.data),
            kvmeld::cache_strides{t.layer_stride, t.sequence_stride, t.head_stride, t.token_stride,
                                  t.channel_stride},
            s, channels};
  }
};

/// Pools of pages, which all layers and heads of a sequence find in one table.
template <class T> struct on_pages {
  using element_type = T;
  using layout = kvmeld::paged<kvmeld::pool_pages<T>>;
  page_list pages;
  explicit on_pages(page_list const& p) : pages(p) {}
  layout operator()(kvmeld_tensor const& t, kvmeld::shape const& s, std::uint32_t channels) const {
    kvmeld::page_table<std::int32_t> const table{pages.table, pages.stride};
    return {kvmeld::pool_pages<T>(static_cast<T*>(t.data), table), pages.size,
            kvmeld::page_strides{t.sequence_stride, t.layer_stride, t.head_stride, t.token_stride,
                                 t.channel_stride},
            s, channels};
  }
};

/// A layout per layer of K and of V, whatever the number of tensors: the cache looks them up, so that tensors
/// may move.
template <class Form> class layer_layouts {
public:
  using layout = typename Form::layout;

  /// Reads a list of tensors, and refuses it if it cannot be right. Null: layouts of no tensor.
  layer_layouts(char const* call, Form const& form, tensor_list const* list, kvmeld::shape const& extent) {
    kvmeld_tensor const none{};
    tensor_list const nothing{&none, &none, 1};
    tensor_list const& from = list == nullptr ? nothing : *list;
    kvmeld::shape of = extent;
    if (from.count != 1) of.layers = 1;
    for (std::uint32_t i = 0; list != nullptr && i < from.count; ++i) check(call, form, from, i, of);
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      keys.push_back(form(tensor_of(from.keys, from.count, layer), of, extent.key_dim));
      values.push_back(form(tensor_of(from.values, from.count, layer), of, extent.value_dim));
    }
  }

  std::vector<layout> keys, values;

private:
  static void check(char const* call, Form const& form, tensor_list const& from, std::uint32_t i,
                    kvmeld::shape const& of) {
    kvmeld::kv const pair{form(from.keys[i], of, of.key_dim), form(from.values[i], of, of.value_dim)};
    std::string problem = kvmeld::detail::tensors_problem(pair, of);
    if (from.count != 1)
      problem = kvmeld::refusal_within(kvmeld::message("tensors[", i, "]").c_str(), problem);
    if (!problem.empty()) throw failure(KVMELD_INVALID_ARGUMENT, kvmeld::refusal_within(call, problem));
  }
  static kvmeld_tensor tensor_of(kvmeld_tensor const* list, std::uint32_t count, std::uint32_t layer) {
    if (count != 1) return list[layer];
    kvmeld_tensor out = *list;
    if (layer != 0 && out.data != nullptr)
      out.data = static_cast<typename Form::element_type*>(out.data) + out.layer_stride * std::int64_t{layer};
    return out;
  }
};

template <class Place, class Form> class engine_cache_of final : public engine_cache {
public:
  engine_cache_of(char const* call, ingredients const& of, tensor_list const* tensors)
      : engine_cache_of(call, of, Place::executor(of),
                        layer_layouts<Form>(call, Form(of.pages), tensors, of.sizes.extent),
                        tensors != nullptr) {}

  kvmeld::any_cache& cache() override { return *cache_; }
  void rebind(char const* call, tensor_list const& tensors) override {
    layer_layouts<Form> const other(call, form_, &tensors, cache_->options().extent);
    Place::rewrite(executor(), keys_, other.keys);
    Place::rewrite(executor(), values_, other.values);
  }
  void read(void* to, void const* ledger, std::size_t bytes) override {
    Place::read(executor(), to, ledger, bytes);
  }
  float_memory floats(char const* call, char const* what, std::size_t n, float const* from) override {
    return floats_of(call, what, memory_, executor(), n, from);
  }
  char const* fault() const override { return Place::fault(executor()); }

private:
  using layout = typename Form::layout;
  using array = typename Place::template array<layout>;
  using cache_type = kvmeld::merged_cache<typename Place::executor_type, kvmeld::compose::composed,
                                          kvmeld::per_layer<layout>, kvmeld::per_layer<layout>>;

  engine_cache_of(char const* call, ingredients const& of, typename Place::executor_type executor,
                  layer_layouts<Form> const& layouts, bool used)
      : form_(of.pages),
        memory_(*of.memory),
        keys_(Place::copy(executor, layouts.keys)),
        values_(Place::copy(executor, layouts.values)),
        frequencies_(used ? numbers_of(call, "frequencies", of, executor, of.frequencies) : nullptr),
        learned_(used ? numbers_of(call, "learned weights", of, executor, of.learned) : nullptr),
        cache_(kvmeld::make_any_cache(
            cache_type(std::move(executor), reading(of, frequencies_.get(), learned_.get()),
                       kvmeld::kv{kvmeld::per_layer<layout>(keys_.data(), of.sizes.extent.key_dim),
                                  kvmeld::per_layer<layout>(values_.data(), of.sizes.extent.value_dim)},
                       of.sizes))) {}
  typename Place::executor_type& executor() const { return cache_->get<cache_type>()->executor(); }

  static float_memory floats_of(char const* call, char const* what, memory_source const& memory,
                                typename Place::executor_type& executor, std::size_t n, float const* from) {
    float_memory out = Place::floats(executor, n, from);
    if (out != nullptr) return out;
    std::string const text = kvmeld::refusal(call, kvmeld::message("memory for ", what, " in bytes"),
                                             n * sizeof(float), "as many as there is memory for");
    throw_lack_of_memory(memory, call, text.c_str());
    throw failure(KVMELD_NO_MEMORY, text);
  }
  /// Numbers of the host where phases can read them; null if there are none.
  static float_memory numbers_of(char const* call, char const* what, ingredients const& of,
                                 typename Place::executor_type& executor, std::vector<float> const& numbers) {
    if (numbers.empty()) return nullptr;
    return floats_of(call, what, *of.memory, executor, numbers.size(), numbers.data());
  }
  /// The policy with its numbers where phases can read them. A cache that is not used may keep those of the
  /// host: nothing reads them.
  static kvmeld::compose::composed reading(ingredients const& of, float const* frequencies,
                                           float const* learned) {
    kvmeld::compose::composed policy = of.policy;
    if (frequencies != nullptr) {
      kvmeld::rope_params rope = kvmeld::compose::rope_of(policy);
      rope.frequencies = frequencies;
      kvmeld::compose::set_rope(policy, rope);
    }
    kvmeld::shape const& s = of.sizes.extent;
    if (!of.learned.empty())
      kvmeld::compose::set_learned(
          policy, {learned != nullptr ? learned : of.learned.data(), s.layers, s.kv_heads, s.key_dim});
    return policy;
  }

  Form form_;
  memory_source const& memory_;  ///< of the executor
  array keys_, values_;          ///< a layout per layer
  float_memory frequencies_;     ///< of the policy's rotation, or null
  float_memory learned_;         ///< weights of the policy's score, or null
  std::unique_ptr<kvmeld::any_cache> cache_;
};

template <class Place, class T>
std::unique_ptr<engine_cache> make_on_tensors(char const* call, ingredients const& of,
                                              tensor_list const* tensors) {
  using form = on_tensors<typename Place::template element<T>>;
  return std::make_unique<engine_cache_of<Place, form>>(call, of, tensors);
}
template <class Place, class T>
std::unique_ptr<engine_cache> make_on_pages(char const* call, ingredients const& of,
                                            tensor_list const* tensors) {
  using form = on_pages<typename Place::template element<T>>;
  return std::make_unique<engine_cache_of<Place, form>>(call, of, tensors);
}

}  // namespace kvmeld_library
