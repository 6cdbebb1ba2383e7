// SPDX-License-Identifier: Apache-2.0
// The mean queries of a model's heads, measured once for TriAttention.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/score/distance_preference.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {

/// What score::distance_preference::means points to: the means of the queries of text samples, joined by
/// their counts (TriAttention, Mao et al., 2026, measures them before use). Show samples to a cache with that
/// score, and add its sequences. A caller that saves `numbers` can fill them in later.
struct query_means {
  std::size_t floats_of_head = 0;           ///< score::distance_preference::table_of_head
  std::vector<std::vector<float>> numbers;  ///< [layers][query heads * floats_of_head]

  /// Adds what `cache` observed of `sequence`. The host can read its ledger. Its score is, or holds, a
  /// distance_preference without means, for the same model as that of all others added. Refuses a cache
  /// without a table, a sequence that is out of range, and a table of another size; false then where
  /// exceptions are off.
  template <class Cache> bool add(Cache const& cache, std::uint32_t sequence) {
    ledger_ref const& l = cache.ledger();
    std::uint32_t const group = l.extent.queries_per_kv_head;
    std::size_t const of_head = l.table_floats / group, heads = l.extent.query_heads();
    std::string problem;
    if (l.table_floats == 0) {
      problem = refusal("add", "number of floats that the score keeps of each track", 0, "above 0");
    } else if (sequence >= l.extent.sequences) {
      problem = refusal("add", "sequence", sequence, "0 to ", l.extent.sequences - 1);
    } else if (!numbers.empty() && (of_head != floats_of_head || numbers.size() != l.extent.layers ||
                                    numbers[0].size() != heads * of_head)) {
      problem = refusal("add", "number of floats of a layer", heads * of_head, numbers[0].size(), ", in ",
                        numbers.size(), " layers, as those that were added before");
    }
    if (!raise(problem)) return false;
    floats_of_head = of_head;
    numbers.resize(l.extent.layers, std::vector<float>(heads * of_head, 0.0f));
    for (std::uint32_t layer = 0; layer < l.extent.layers; ++layer) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        float const* const from =
            l.table_of(make_track(l.extent, layer, sequence, h / group)) + h % group * of_head;
        float* const to = numbers[layer].data() + h * of_head;
        if (!(from[0] > 0.0f)) continue;
        to[0] += from[0];
        for (std::size_t i = 1; i < of_head; ++i) to[i] += from[0] / to[0] * (from[i] - to[i]);
      }
    }
    return true;
  }

  /// The pointers for score::distance_preference::means; they and `numbers` have to outlive the cache.
  std::vector<float const*> layers() const {
    std::vector<float const*> out;
    for (auto const& of_layer : numbers) out.push_back(of_layer.data());
    return out;
  }
};

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
