// How much of the long tests runs.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "sanitizer.hpp"

namespace support {

/// Whether random tests take fewer cases and lives are shorter: under AddressSanitizer, and where KVMELD_BRIEF_TESTS is set, as
/// the preset `clang` does, which does not optimise.
inline bool brief() { return under_address_sanitizer || std::getenv("KVMELD_BRIEF_TESTS") != nullptr; }

/// Of a test that takes seconds: this many tokens, or a tenth.
inline std::uint32_t long_life(std::uint32_t tokens) { return brief() ? tokens / 10 : tokens; }

}  // namespace support
