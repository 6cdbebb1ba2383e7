#include <kvmeld/kvmeld.hpp>
// Once more: every header guards itself.
#include <kvmeld/kvmeld.hpp>
