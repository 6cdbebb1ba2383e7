// How much of the long tests runs.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "sanitizer.hpp"

namespace support {

/// Whether random tests take fewer cases and lives are shorter: under AddressSanitizer, and where
/// KVMELD_BRIEF_TESTS is set, as the preset `clang` does, which does not optimise.
inline bool brief() { return under_address_sanitizer || std::getenv("KVMELD_BRIEF_TESTS") != nullptr; }

/// Of a test that takes seconds: this many tokens, or a twentieth.
inline std::uint32_t long_life(std::uint32_t tokens) { return brief() ? tokens / 20 : tokens; }

/// Of random cases: this many, or one of `part`.
inline int cases(int wanted, int part = 4) { return brief() ? (wanted + part - 1) / part : wanted; }

/// A number from the environment, or another where it is not set.
inline std::uint64_t from_environment(char const* name, std::uint64_t otherwise) {
  char const* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// CI counts its runs in KVMELD_TEST_RUN: what takes too long to try whole is tried in parts, another one in
/// every run.
inline std::uint64_t test_run() { return from_environment("KVMELD_TEST_RUN", 0); }

}  // namespace support
