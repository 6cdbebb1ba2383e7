#include "fast.hpp"

#include <demo/methods.hpp>

#ifndef __FAST_MATH__
#error "this file is the one that is compiled with -ffast-math"
#endif

namespace tiled_engine {
namespace {
struct fast_math {};
}  // namespace

std::unique_ptr<any_reader> make_fast(tiny_llama::model& m, std::uint32_t capacity,
                                      std::string const& policy) {
  return std::make_unique<reader<fast_math>>(m, capacity, demo::policy_of(policy, {}));
}

}  // namespace tiled_engine
