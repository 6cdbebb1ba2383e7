// expect: consecutive_threshold is a scan with one threshold
#include <kvmeld/kvmeld.hpp>

#ifdef KVMELD_CONTROL
using admission = kvmeld::admit::threshold;
#else
using admission = kvmeld::admit::top_share;
#endif

kvmeld::identify::consecutive_threshold<admission> const identifier{};
