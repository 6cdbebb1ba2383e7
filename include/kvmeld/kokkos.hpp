// SPDX-License-Identifier: Apache-2.0
// kvmeld on Kokkos: runs any cache, policy and attention on a kokkos_executor, and takes a Kokkos::View as a
// layout. Needs Kokkos 3.4 or newer.
#pragma once

#include <kvmeld/backend/kokkos/element_types.hpp>
#include <kvmeld/backend/kokkos/from_view.hpp>
#include <kvmeld/backend/kokkos/kokkos_executor.hpp>
#include <kvmeld/backend/kokkos/kokkos_memory.hpp>
#include <kvmeld/backend/kokkos/kokkos_team.hpp>
#include <kvmeld/backend/kokkos/kokkos_tiles.hpp>
#include <kvmeld/backend/kokkos/kokkos_transfer.hpp>
#include <kvmeld/kvmeld.hpp>
