// The engine on the host, with any policy that can be put together at run time.
#pragma once

#include "engine.hpp"
#include "host_kv.hpp"

#include <kvmeld/compose/composed.hpp>

namespace paged_engine {

using any_host_kv = host_kv<kvmeld::compose::composed>;
using host_engine = engine<any_host_kv>;

}  // namespace paged_engine
