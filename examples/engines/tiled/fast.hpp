// The engine as such engines are built: with -ffast-math.
#pragma once

#include "reader.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace tiled_engine {

/// `policy` is a method's name as the demo has them.
std::unique_ptr<any_reader> make_fast(tiny_llama::model& m, std::uint32_t capacity,
                                      std::string const& policy);

}  // namespace tiled_engine
