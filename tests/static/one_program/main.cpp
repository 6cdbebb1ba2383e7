// Units compiled with -ffast-math, with -fno-exceptions -fno-rtti and plainly link into one program, and each
// computes the same order keys: in particular, none has its functions replaced by another unit's.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "unit.hpp"

static_assert(KVMELD_VERSION_MAJOR == PROJECT_MAJOR && KVMELD_VERSION_MINOR == PROJECT_MINOR &&
                  KVMELD_VERSION_PATCH == PROJECT_PATCH,
              "the headers and the CMake project name different versions");

namespace {

int failures = 0;

void expect(bool ok, const char* what, int where) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "failed: %s (probe %d)\n", what, where);
}

// A whole compression of 60 entries to 20, and two refusals in our words.
void check_pipeline(const one_program::report& r, bool throws, int unit) {
  expect(r.length == 20, "the cache was compressed to its budget", unit);
  expect(r.warnings == 0, "without warnings", unit);
  expect(std::fabs(r.degrees - 60.0f) < 1e-3f, "its entries stand for all tokens", unit);
  expect(std::fabs(r.values - 240.0) < 0.5, "equal values stay equal", unit);
  expect(r.throws == throws, "refusals are thrown where exceptions are on, and only there", unit);
  expect(r.accepted, "sound calls go through", unit);
  expect(r.unusable, "a refused construction leaves nothing to call", unit);
  expect(std::strstr(r.refusal[0], "chunked_bipartite.chunk is 1; it must be at least 2") != nullptr,
         "a constructor's refusal names part, value and what must hold", unit);
  expect(std::strstr(r.refusal[1], "open: sequence is 0; it must be closed") != nullptr,
         "a call's refusal says why", unit);
}

}  // namespace

int main() {
  const one_program::report plain = one_program::plain();
  const one_program::report fast = one_program::fast_math();
  const one_program::report bare = one_program::no_exceptions();
  for (int i = 0; i < one_program::probe_count; ++i) {
    expect(plain.keys[i] == fast.keys[i], "-ffast-math gives the same key", i);
    expect(plain.keys[i] == bare.keys[i], "-fno-exceptions gives the same key", i);
  }
  check_pipeline(plain, true, 0);
  check_pipeline(fast, true, 1);
  check_pipeline(bare, false, 2);
  for (int i = 1; i < one_program::probe_count; ++i) {
    const bool both_zero = i == 5;
    expect(both_zero ? plain.keys[i - 1] == plain.keys[i] : plain.keys[i - 1] < plain.keys[i],
           "keys ascend, NaN lowest, -0 = +0", i);
  }
  return failures == 0 ? 0 : 1;
}
