// For an engine's own tests, host only: layout conformance, plan validator, invariants. Everything returns
// a text that says what is wrong, empty if nothing is, and needs no test framework.
#pragma once

#include <kvmeld/testing/check_layout.hpp>
#include <kvmeld/testing/check_plan.hpp>
#include <kvmeld/testing/check_state.hpp>
#include <kvmeld/testing/watch.hpp>
