// A call that has to be refused: its text, and proof that nothing was touched.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <initializer_list>
#include <string>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace cache_test {

// The text of the refusal; empty if the call went through.
template <class F> std::string refusal_of(F call) {
  try {
    call();
  } catch (kvmeld::invalid_argument const& e) {
    return e.what();
  }
  return {};
}

inline void check_text(std::string const& text, std::initializer_list<char const*> parts) {
  CAPTURE(text);
  CHECK_FALSE(text.empty());
  for (char const* part : parts) {
    CAPTURE(std::string(part));
    CHECK(text.find(part) != std::string::npos);
  }
}

// The call is refused with a text that holds every part, and K, V and the ledger keep every bit.
template <class Cache, class Memory, class F>
void refused(Cache& cache, Memory const& memory, F call, std::initializer_list<char const*> parts) {
  Memory const before = memory;
  auto const ledger = support::ledger_bytes(cache);
  check_text(refusal_of([&] { call(cache); }), parts);
  CHECK(memory == before);
  CHECK(support::ledger_bytes(cache) == ledger);
}

}  // namespace cache_test
