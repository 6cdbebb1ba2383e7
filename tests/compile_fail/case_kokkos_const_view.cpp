// expect: the View's elements are const
// A View that merging could not write to.
#include <kvmeld/kokkos.hpp>

#if defined(KVMELD_CONTROL)
using element = float;
#else
using element = float const;
#endif

auto use(Kokkos::View<element***, Kokkos::HostSpace> const& view) {
  return kvmeld::from_view<Kokkos::DefaultHostExecutionSpace>(view);
}
