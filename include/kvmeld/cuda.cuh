// SPDX-License-Identifier: Apache-2.0
// kvmeld with its CUDA backend: any cache, policy and attention on a cuda_executor. Needs the CUDA Toolkit
// with CUB.
#pragma once

#include <kvmeld/backend/cuda/block_team.cuh>
#include <kvmeld/backend/cuda/call_graph.cuh>
#include <kvmeld/backend/cuda/cuda_executor.cuh>
#include <kvmeld/backend/cuda/device_memory.cuh>
#include <kvmeld/backend/cuda/element_types.cuh>
#include <kvmeld/backend/warps/warps.hpp>
#include <kvmeld/kvmeld.hpp>
