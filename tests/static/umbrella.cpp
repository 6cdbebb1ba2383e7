#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>
// Once more: every header guards itself.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>
