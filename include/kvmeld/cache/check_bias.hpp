// Whether the consumer of a cache can take the bias that a policy's merged entries need.
#pragma once

#include <kvmeld/cache/limits.hpp>
#include <kvmeld/core/config.hpp>

#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Why results of this merge function cannot be read under these limits; empty if they can. A merged entry that stands
/// for N tokens needs log N added to its logit, or it counts for too little.
template <class Merge> std::string bias_problem(Merge const& merge, limits const& sizes) {
  if (!merge.carries_degree() || sizes.ignore_degree) return {};
  if (sizes.bias == bias_support::none) {
    return "limits.bias is bias_support::none, but the policy's merged entries stand for several tokens; "
           "allowed are "
           "per_head, shared with limits.scope layer or group, or limits.ignore_degree = true";
  }
  if (sizes.bias == bias_support::shared && sizes.scope == plan_scope::head) {
    return "limits.bias is bias_support::shared, but every head makes a plan of its own; allowed are "
           "limits.scope "
           "layer or group, bias_support::per_head, or limits.ignore_degree = true";
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
