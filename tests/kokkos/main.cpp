// Tests between Kokkos::initialize and finalize. Says which space and how large its teams can be.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <kvmeld/kokkos.hpp>

#include <cstdio>

int main(int count, char** arguments) {
  Kokkos::ScopeGuard const kokkos(count, arguments);
  using space = Kokkos::DefaultExecutionSpace;
  std::printf("on Kokkos %d, %s: %d threads, teams of up to %u\n", KOKKOS_VERSION, space::name(),
              space().concurrency(), kvmeld::kokkos_executor<>::max_lanes());
  return doctest::Context(count, arguments).run();
}
