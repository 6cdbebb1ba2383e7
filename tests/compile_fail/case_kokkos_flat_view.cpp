// expect: the rank is not 3
// A View without heads.
#include <kvmeld/kokkos.hpp>

#if defined(KVMELD_CONTROL)
using view = Kokkos::View<float***, Kokkos::HostSpace>;
#else
using view = Kokkos::View<float**, Kokkos::HostSpace>;
#endif

auto use(view const& x) { return kvmeld::from_view<Kokkos::DefaultHostExecutionSpace>(x); }
