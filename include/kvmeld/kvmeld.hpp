// SPDX-License-Identifier: Apache-2.0
// kvmeld: merges KV-cache entries in place, in an engine's own tensors. This umbrella header is safe on the
// host: it includes no CUDA header.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/log_degree_bias.hpp>
#include <kvmeld/attention/log_degree_by_page.hpp>
#include <kvmeld/attention/output_error.hpp>
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/cache/attend_and_observe.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/identify/turned.hpp>
#include <kvmeld/layout/from_mdspan.hpp>
#include <kvmeld/layout/ggml_rows.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/nvfp4_rows.hpp>
#include <kvmeld/layout/overlap.hpp>
#include <kvmeld/layout/paged.hpp>
#include <kvmeld/layout/per_layer.hpp>
#include <kvmeld/layout/relocatable.hpp>
#include <kvmeld/layout/ring.hpp>
#include <kvmeld/layout/scaled.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/layout/tiled.hpp>
#include <kvmeld/layout/transposed.hpp>
#include <kvmeld/layout/validate_pages.hpp>
#include <kvmeld/layout/zero_point_rows.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/preset/attention_matching.hpp>
#include <kvmeld/preset/cam.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/preset/compactor.hpp>
#include <kvmeld/preset/d2o.hpp>
#include <kvmeld/preset/ems.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/keepkv.hpp>
#include <kvmeld/preset/kvmerger.hpp>
#include <kvmeld/preset/learned.hpp>
#include <kvmeld/preset/merging.hpp>
#include <kvmeld/preset/recommended.hpp>
#include <kvmeld/preset/row_scores.hpp>
#include <kvmeld/shared/attend_shared.hpp>
#include <kvmeld/shared/shared_ref.hpp>
