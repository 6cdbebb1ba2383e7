// A cache on an engine's tensors behind one interface, and how it is made for one type of tensors.
#pragma once

#include "memory_source.hpp"

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/kvmeld.h>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvmeld_library {

/// The keys and values of a call: one tensor for all layers, or one per layer.
struct tensor_list {
  kvmeld_tensor const* keys;
  kvmeld_tensor const* values;
  std::uint32_t count;
};

/// How sequences find their pages. `size` 0: there are none.
struct page_list {
  std::uint32_t size;
  std::int32_t const* table;
  std::int64_t stride;
};

/// Floats that the calls of a cache can read and write until the last owner is gone. Null: there is no
/// memory.
using float_memory = std::shared_ptr<float>;

/// What a handle stands for.
class engine_cache {
public:
  virtual ~engine_cache() = default;
  /// The calls of the cache.
  virtual kvmeld::any_cache& cache() = 0;
  /// Reads rows from other tensors from now on. Refuses tensors that cannot be right, and then reads from
  /// those that it had.
  virtual void rebind(char const* call, tensor_list const& tensors) = 0;
  /// Copies bytes of the ledger, once all calls so far have done their work.
  virtual void read(void* to, void const* ledger, std::size_t bytes) = 0;
  /// n floats where the cache's tensors are: on the host or on its device. With `from` they hold a copy of
  /// it. `what` names them where the call is refused, because there is no memory.
  virtual float_memory floats(char const* call, char const* what, std::size_t n,
                              float const* from = nullptr) = 0;
  /// What the runtime of the device has reported so far; null: no error.
  virtual char const* fault() const = 0;
};

/// What a cache is made of, apart from its tensors.
struct ingredients {
  kvmeld::compose::composed policy;
  kvmeld::cache_options sizes;
  page_list pages;
  memory_source* memory;
  std::uint32_t threads;               ///< for a cache on the host
  void* stream;                        ///< for a cache on a device
  std::vector<float> frequencies;      ///< of the policy's rotation, which does not lead to them yet
  std::vector<float> learned;          ///< weights of the policy's score, the same
  kvmeld::attention_params attention;  ///< of the model
  std::vector<float> sinks;            ///< its sink logits, to which `attention` does not lead yet
};

/// Where tensors are: host, which host.hpp defines, or device, which device.cuh defines.
class host;
class device;

/// Makes a cache over elements of T. Without a list of tensors, the cache must not be used: it only takes its
/// memory.
template <class Place, class T>
std::unique_ptr<engine_cache> make_on_tensors(char const* call, ingredients const& of,
                                              tensor_list const* tensors);
template <class Place, class T>
std::unique_ptr<engine_cache> make_on_pages(char const* call, ingredients const& of,
                                            tensor_list const* tensors);

}  // namespace kvmeld_library
