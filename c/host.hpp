// Caches on tensors in host memory.
#pragma once

#include "engine_cache.hpp"

#include <kvmeld/backend/host/extern_kernels.hpp>
#include <kvmeld/backend/host/host_executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace kvmeld_library {

/// A place: host memory, and the threads of this process.
class host {
public:
  using executor_type = kvmeld::host_executor;
  /// The type in which phases read elements of T.
  template <class T> using element = T;
  /// An array that phases can read.
  template <class T> using array = std::vector<T>;

  static executor_type executor(ingredients const& of) {
    executor_type out(of.threads);
    out.use(of.memory->hook());
    return out;
  }
  template <class T> static array<T> copy(executor_type&, std::vector<T> const& from) { return from; }
  template <class T> static void rewrite(executor_type&, array<T>& to, std::vector<T> const& from) {
    std::copy(from.begin(), from.end(), to.begin());
  }
  static void read(executor_type&, void* to, void const* ledger, std::size_t bytes) {
    std::memcpy(to, ledger, bytes);
  }
  static float_memory floats(executor_type&, std::size_t n, float const* from) {
    float_memory const out(new float[n], [](float* p) { delete[] p; });
    if (from != nullptr) std::copy_n(from, n, out.get());
    return out;
  }
  static char const* fault(executor_type const&) { return nullptr; }
};

}  // namespace kvmeld_library
