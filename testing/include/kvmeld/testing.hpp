// SPDX-License-Identifier: Apache-2.0
// For an engine's own tests, on the host only: checks of layouts, plans and invariants. Every check returns a
// text that says what is wrong, empty if nothing is. No test framework is needed.
#pragma once

#include <kvmeld/testing/check_layout.hpp>
#include <kvmeld/testing/check_plan.hpp>
#include <kvmeld/testing/check_state.hpp>
#include <kvmeld/testing/watch.hpp>
