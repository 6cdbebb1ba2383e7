// A team of one lane with the vector unit behind it.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/team.hpp>

#include <cstddef>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// serial_team with the kernels that the four primitives and the loads use; null: the generic forms.
class host_team : public serial_team {
public:
  host_team(void* scratch, std::size_t bytes, host_kernels const* kernels)
      : serial_team(scratch, bytes), kernels_(kernels) {}

  KVMELD_HD host_kernels const* kernels() const { return kernels_; }

private:
  host_kernels const* kernels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
