// The measured guard: merges pass if outputs of given queries change little (KVMerger definition 3.1).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Queries that merging is measured with: those of the last tokens (an observation window), or any. Every
/// query head of every sequence has the same number. Rows are addressed by sequence, query head and probe;
/// layers lie a stride apart. All memory is the executor's and stays valid until a compression has run.
template <class Q> struct probe_set {
  head_rows<Q const> query;  ///< rows of key_dim, as attention takes them
  head_rows<float const>
      lse;  ///< their natural log-sum-exps over the cache as it is, sink and degrees included
  std::int64_t query_layer_stride = 0, lse_layer_stride = 0;  ///< in elements
  std::uint32_t count = 0;                                    ///< probes per query head; 0: none given yet
  float* room = nullptr;                                      ///< probe_room(shape, count) floats

  /// A probe's query.
  KVMELD_HD Q const* query_row(track t, std::uint32_t head, std::uint32_t i) const {
    return query.row(t.sequence, head, i) + std::int64_t{t.layer} * query_layer_stride;
  }
  /// A probe's natural log-sum-exp.
  KVMELD_HD float lse_of(track t, std::uint32_t head, std::uint32_t i) const {
    return lse.row(t.sequence, head, i)[std::int64_t{t.layer} * lse_layer_stride];
  }
};

/// Floats that a set of probes needs beside the probes: per track and probe its output, what merging has
/// added to the output, and what it has added to the softmax's denominator.
inline std::size_t probe_room(shape const& s, std::uint32_t count) {
  return std::size_t{s.tracks()} * count * s.queries_per_kv_head * (2 * std::size_t{s.value_dim} + 1);
}

/// Merges sets, thins them or leaves them alone such that no probe's output of one head changes by more than
/// epsilon (Euclidean norm) in one compression. The change is measured for all sets together, with rows as
/// they are stored. Sets pass in the order of the change that each alone would cause: the smallest first,
/// ties to the lower slot. Nothing is promised for other queries, nor across compressions: give the cache new
/// probes before each compression (merged_cache::set_guard). See docs/guarded.md.
template <class Q> struct probed {
  float epsilon;          ///< largest change of a probe's output, in the unit of the values
  probe_set<Q> probes{};  ///< the queries
  /// How logits are computed from probes. causal: probe i of count does not see the last count - 1 - i
  /// entries. A window and a rotation are refused; a sink is part of the log-sum-exps.
  attention_params params{};
  std::uint32_t rounds = 16;  ///< largest number of rounds in one compression

  static constexpr char const* name = "probed";

  std::string problem() const {
    if (!(epsilon > 0.0f && is_finite(epsilon)))
      return refusal("policy", "guard::probed.epsilon", epsilon, "a finite number above 0");
    if (params.window != 0)
      return refusal("policy", "guard::probed.params.window", params.window,
                     "0, because a set is seen or not as a whole");
    if (params.rope.active())
      return refusal("policy", "guard::probed.params.rope.pairing", "a rotation",
                     "rope_pairing::none, for keys that lie rotated");
    if (!params.use_degree)
      return refusal("policy", "guard::probed.params.use_degree", "false",
                     "true, because merged entries stand for several tokens");
    if (rounds == 0) return refusal("policy", "guard::probed.rounds", 0, "at least 1");
    return {};
  }
  /// Why nothing can be compressed with these probes yet; empty if it can.
  std::string problem_of_call(char const* call) const {
    if (probes.count == 0)
      return refusal(call, "guard::probed.probes.count", 0, "at least 1 (give probes by set_guard)");
    char const* const null = probes.query.data == nullptr ? "guard::probed.probes.query.data"
                             : probes.lse.data == nullptr ? "guard::probed.probes.lse.data"
                             : probes.room == nullptr     ? "guard::probed.probes.room"
                                                          : nullptr;
    if (null != nullptr)
      return refusal(call, null, "null", "an array of the probes (give probes by set_guard)");
    return {};
  }
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
