// One life of a cache (tests/lanes) leaves the same bytes of K, V and ledger on Kokkos' default host space as
// on the host: generic forms on teams of any size, tuned ones on teams of one lane. Its worlds lie in host
// memory.
#pragma once

#include "lanes/scenario.hpp"

#include "device.hpp"

#include <string>

namespace kokkos_test {

template <class Storage> struct same_on_all_teams {
  kvmeld::shortfall fallback = kvmeld::shortfall::keep;
  lanes_test::sizes_of_life life = lanes_test::short_life;

  template <class Policy> void operator()(char const* name, Policy const& policy) const {
    using space = Kokkos::DefaultHostExecutionSpace;
    CAPTURE(std::string(name));
    for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
      auto const host = lanes_test::play<Storage>(kvmeld::host_executor(1, tuning), policy, fallback, life);
      for (std::uint32_t lanes : team_sizes<space>()) {
        if (tuning == kvmeld::tuning::on && lanes > 1) continue;
        CAPTURE(lanes);
        kvmeld::kokkos_executor<space> const executor({}, lanes, tuning);
        CHECK(host == lanes_test::play<Storage>(executor, policy, fallback, life));
      }
    }
  }
};

}  // namespace kokkos_test
