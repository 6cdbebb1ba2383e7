// SPDX-License-Identifier: Apache-2.0
// Calibration: what a model's heads need, measured once on the host. Not part of the engine's run path.
#pragma once

#include <kvmeld/calibrate/allot.hpp>
#include <kvmeld/calibrate/calibration.hpp>
#include <kvmeld/calibrate/learned_fit.hpp>
#include <kvmeld/calibrate/outlier_heads.hpp>
#include <kvmeld/calibrate/query_means.hpp>
#include <kvmeld/calibrate/thresholds.hpp>
