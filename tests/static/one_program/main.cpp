// Units compiled with -ffast-math, with -fno-exceptions -fno-rtti, without OpenMP and plainly link into one
// program, and each computes the same order keys: in particular, none has its functions replaced by another unit's.
#include <cstdio>

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

}  // namespace

int main() {
  const one_program::report plain = one_program::plain();
  const one_program::report fast = one_program::fast_math();
  const one_program::report bare = one_program::no_exceptions();
  for (int i = 0; i < one_program::probe_count; ++i) {
    expect(plain.keys[i] == fast.keys[i], "-ffast-math gives the same key", i);
    expect(plain.keys[i] == bare.keys[i], "-fno-exceptions gives the same key", i);
  }
#if defined(UNIT_NO_OPENMP)
  const one_program::report serial = one_program::no_openmp();
  for (int i = 0; i < one_program::probe_count; ++i)
    expect(plain.keys[i] == serial.keys[i], "without OpenMP the key is the same", i);
#endif
  for (int i = 1; i < one_program::probe_count; ++i) {
    const bool both_zero = i == 5;
    expect(both_zero ? plain.keys[i - 1] == plain.keys[i] : plain.keys[i - 1] < plain.keys[i],
           "keys ascend, NaN lowest, -0 = +0", i);
  }
  return failures == 0 ? 0 : 1;
}
