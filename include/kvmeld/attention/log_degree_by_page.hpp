// SPDX-License-Identifier: Apache-2.0
// Writes the log degrees of a merged cache by page, for attention kernels that address a page and a token of
// it.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/attention/log_degree_bias.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/page_places.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

template <class Keys, class Values, class Places, class T> struct log_degree_by_page_phase {
  cache_ref<Keys, Values> cache;
  work_list work;
  std::uint32_t const* slots;  ///< [work.sequence_count]
  Places places;
  T* out;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = cache.length(t.where);
    std::uint32_t const wanted = slots[t.item / cache.extent().kv_heads % work.sequence_count];
    team.for_each(places.covered(t.where, wanted, n), [&](std::uint32_t s) {
      out[places.at(t.where, s)] = stored_log_degree<T>(cache, t.where, s, n);
    });
  }
};

/// out[page number][layer][head][token] = log degree (natural) of the entry there, or the lowest finite value
/// of T (float, float16 or bfloat16) where there is none. The call writes the pages that hold the first
/// slots[i] slots (the length_bound) of sequences[i], to the end of the last page. `places` gives the
/// strides. `out` has an element for every layer, head and token of every page of the pool. The call leaves
/// pages of no listed sequence alone. Each sequence that shares a page writes it, with equal values. If a
/// kernel scales logits after the hook that adds the log degree, the hook has to divide the log degree by the
/// scale. Enqueues 1 launch on `executor`; does not wait. Takes O(slots written) work. Refuses lists of
/// different lengths, numbers out of range, and a null `out`.
template <class Executor, class Keys, class Values, class Entry, class Index, class T>
status write_log_degree_by_page(Executor& executor, cache_ref<Keys, Values> const& cache,
                                index_list sequences, index_list slots,
                                page_places<Entry, Index> const& places, T* out) {
  char const* const call = "attention::write_log_degree_by_page";
  shape const& s = cache.extent();
  if (std::string const problem = kvmeld::detail::ref_problem(call, cache.ledger); !problem.empty())
    return raise(problem);
  if (sequences.size() != slots.size()) {
    return raise(
        refusal(call, "number of slots given", slots.size(), sequences.size(), ", one for each sequence"));
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] >= s.sequences)
      return raise(refusal(call, "sequence", sequences[i], "0 to ", s.sequences - 1));
    if (slots[i] > s.capacity)
      return raise(
          refusal(call, message("slots[", i, "]"), slots[i], "at most ", s.capacity, ", the capacity"));
  }
  if (out == nullptr) return raise(refusal(call, "out", "null", "an array of the pool's pages"));
  if (std::string const problem = places.problem(call); !problem.empty()) return raise(problem);
  index_list const staged = executor.stage(sequences);
  work_list const work{staged.data(), static_cast<std::uint32_t>(staged.size())};
  using phase_type = log_degree_by_page_phase<Keys, Values, page_places<Entry, Index>, T>;
  phase_type const phase{cache, work, executor.stage(slots).data(), places, out};
  return launch_all(executor, call, [&] { executor.run(phase, s, work.tracks(s), track_source{s, work}); });
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
