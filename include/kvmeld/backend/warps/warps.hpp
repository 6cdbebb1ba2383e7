// SPDX-License-Identifier: Apache-2.0
// All tuned forms for teams made of warps.
#pragma once

#include <kvmeld/backend/warps/attend_few.hpp>
#include <kvmeld/backend/warps/attend_few_shared.hpp>
#include <kvmeld/backend/warps/consecutive.hpp>
#include <kvmeld/backend/warps/match_centers.hpp>
#include <kvmeld/backend/warps/match_chunks.hpp>
#include <kvmeld/backend/warps/observe_queries.hpp>
#include <kvmeld/backend/warps/row_slices.hpp>
#include <kvmeld/backend/warps/weigh_gaussian.hpp>
