// How many threads the engine may use; without OpenMP it is one.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

namespace tiny_llama {

/// 0 leaves the choice to the OpenMP runtime.
inline void use_threads(int count) {
#ifdef _OPENMP
  if (count > 0) {
    omp_set_num_threads(count);
  }
#else
  static_cast<void>(count);
#endif
}

inline int threads_in_use() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace tiny_llama
