// kvmeld: merge KV-cache entries in place, on an engine's own tensors. Host-safe umbrella; no CUDA header behind it.
#pragma once

#include <kvmeld/attention/extend.hpp>
#include <kvmeld/attention/extend_shared.hpp>
#include <kvmeld/attention/log_degree_bias.hpp>
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/identify/none.hpp>
#include <kvmeld/layout/from_mdspan.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/paged.hpp>
#include <kvmeld/layout/relocatable.hpp>
#include <kvmeld/layout/ring.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/layout/tiled.hpp>
#include <kvmeld/layout/transposed.hpp>
#include <kvmeld/layout/validate_pages.hpp>
#include <kvmeld/merge/average.hpp>
#include <kvmeld/merge/score_weighted.hpp>
#include <kvmeld/preset/cam.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/preset/d2o.hpp>
#include <kvmeld/preset/ems.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/keepkv.hpp>
#include <kvmeld/preset/kvmerger.hpp>
