// What a cache needs besides K and V.
#pragma once

#include "session.hpp"

namespace kvmeld_bench {

/// Adds the figures that follow from the sizes alone. Scratch and ledger are added where presets run.
void remember_workspace(session& s);

}  // namespace kvmeld_bench
