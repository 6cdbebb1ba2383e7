// A source of items that are about no track in particular.
#pragma once

#include <kvmeld/core/types.hpp>

#include <cstdint>

namespace support {

struct any_track {
  kvmeld::track where(std::uint32_t) const { return {}; }
  bool idle(std::uint32_t) const { return false; }
};

}  // namespace support
