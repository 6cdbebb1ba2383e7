// What the bodies of tests/device ask of a device: the Kokkos backend on any execution space.
#pragma once

#include <kvmeld/kokkos.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

namespace kokkos_test {

/// `Immediate` false: a host space as if it were a device.
template <class Space, bool Immediate = kvmeld::runs_on_host<Space>::value> struct kokkos_device {
  using float16 = kvmeld::float16;
  using bfloat16 = kvmeld::bfloat16;
  using executor_type = kvmeld::kokkos_executor<Space, Immediate>;

  template <class T> class array {
  public:
    explicit array(std::size_t n) : view_("array", n * sizeof(T)) {}
    explicit array(std::vector<T> const& from) : array(from.size()) { put(from); }
    array(array const&) = delete;
    array& operator=(array const&) = delete;

    T* data() const { return reinterpret_cast<T*>(view_.data()); }
    void put(std::vector<T> const& from) {
      Kokkos::deep_copy(view_, on_host(reinterpret_cast<unsigned char const*>(from.data())));
    }
    std::vector<T> get() const {
      std::vector<T> out(view_.extent(0) / sizeof(T));
      Kokkos::deep_copy(on_host(reinterpret_cast<unsigned char*>(out.data())), view_);
      return out;
    }

  private:
    template <class U> auto on_host(U* data) const {
      return Kokkos::View<U*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(data,
                                                                                          view_.extent(0));
    }
    Kokkos::View<unsigned char*, typename Space::memory_space> view_;  // T may have no default
  };

  executor_type executor(kvmeld::tuning tuning) const { return executor_type({}, lanes, tuning); }
  static bool settled(executor_type const& executor) {
    executor.space().fence();
    return true;
  }

  std::uint32_t lanes = 0;
};

/// Team sizes that the space allows: none said, one, several, a crooked number of them.
template <class Space> std::vector<std::uint32_t> team_sizes() {
  std::vector<std::uint32_t> out;
  for (std::uint32_t n : {0u, 1u, 2u, 3u, 4u, 8u, 64u}) {
    if (n <= kvmeld::kokkos_executor<Space>::max_lanes()) out.push_back(n);
  }
  return out;
}

}  // namespace kokkos_test
