// SPDX-License-Identifier: Apache-2.0
// Writes the log degrees of a merged cache to memory, for attention kernels that take an additive mask.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// What write_log_degree writes to the slots behind a head's entries.
enum class behind_end : std::uint8_t {
  masked,   ///< the lowest finite value: for kernels that read the whole capacity
  unmerged  ///< 0: for engines that stop at the length; rows stay correct while single tokens are appended
};

/// Log degree of slot `s` of a track of `length`, as T. If the slot has no entry, the lowest finite value of
/// T.
template <class T, class Keys, class Values>
KVMELD_HD T stored_log_degree(cache_ref<Keys, Values> const& cache, track where, slot_t s,
                              std::uint32_t length) {
  float const log_degree = s < length ? cache.log_degree(where, s) : element_traits<float>::lowest;
  bool const empty = log_degree == element_traits<float>::lowest;
  return element_traits<T>::from_float(empty ? element_traits<T>::lowest : log_degree);
}

template <class Keys, class Values, class T> struct log_degree_bias_phase {
  static constexpr std::uint32_t block = 1024;
  cache_ref<Keys, Values> cache;
  work_list work;
  std::uint32_t layer;
  std::uint32_t heads_per_track;
  head_rows<T> out;
  behind_end behind;
  std::uint32_t columns;

  std::uint32_t tiles(shape const&) const { return ceil_div(columns, block); }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD track where(std::uint32_t item) const {
    std::uint32_t const heads = cache.extent().kv_heads;
    return cache.where(layer, work.sequences[item / heads], item % heads);
  }
  KVMELD_HD bool idle(std::uint32_t item) const {
    return work.sequences[item / cache.extent().kv_heads] == idle_sequence;
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const begin = t.index * block;
    std::uint32_t const length = cache.length(t.where);
    std::uint32_t const member = t.item / cache.extent().kv_heads;
    team.for_each(min_of(block, columns - begin), [&](std::uint32_t i) {
      slot_t const s = begin + i;
      T const value = s >= length && behind == behind_end::unmerged
                          ? element_traits<T>::from_float(0.0f)
                          : stored_log_degree<T>(cache, t.where, s, length);
      for (std::uint32_t h = 0; h < heads_per_track; ++h) {
        out.row(member, t.where.kv_head * heads_per_track + h, 0)[s] = value;
      }
    });
  }
};

/// out[sequence of the list][head][slot] = log degree (natural) of the head's entries. Empty slots and the
/// rest of the capacity get the lowest finite value of T (float, float16 or bfloat16): adding it masks them
/// without infinities. heads_per_track = 1 writes one row per KV head. heads_per_track = queries_per_kv_head
/// writes one row per query head, for masks indexed by query head. An engine that appends token by token, and
/// writes the bias only after `compress`, `truncate` and `open`, passes behind_end::unmerged. The slot of a
/// token that is appended later then holds 0, not the mask. A row has `columns` slots; 0: as many as the
/// capacity. f16 resolves log degrees to about 2^-11 relative. `out` aliases nothing. Enqueues 1 launch on
/// `executor`; does not wait. Takes O(columns) work per row. Refuses a layer or sequence out of range, null
/// rows, and any other heads_per_track.
///
/// Example: a track with entries of the degrees 3 and 1 gets 1.0986, 0, and the lowest float in all slots
/// behind.
template <class Executor, class Keys, class Values, class T>
status write_log_degree(Executor& executor, cache_ref<Keys, Values> const& cache, std::uint32_t layer,
                        index_list sequences, head_rows<T> out, std::uint32_t heads_per_track = 1,
                        behind_end behind = behind_end::masked, std::uint32_t columns = 0) {
  shape const& s = cache.extent();
  if (std::string const problem = kvmeld::detail::ref_problem("attention::write_log_degree", cache.ledger);
      !problem.empty())
    return raise(problem);
  if (layer >= s.layers) {
    return raise(refusal("attention::write_log_degree", "layer", layer, "0 to ", s.layers - 1));
  }
  for (std::uint32_t sequence : sequences) {
    if (sequence >= s.sequences) {
      return raise(refusal("attention::write_log_degree", "sequence", sequence, "0 to ", s.sequences - 1));
    }
  }
  if (out.data == nullptr) {
    return raise(refusal("attention::write_log_degree", "out.data", "null", "the rows of the log degrees"));
  }
  if (heads_per_track != 1 && heads_per_track != s.queries_per_kv_head) {
    return raise(refusal("attention::write_log_degree", "heads_per_track", heads_per_track,
                         "1, for a row per KV head, or ", s.queries_per_kv_head,
                         ", queries_per_kv_head, for a row per query head"));
  }
  if (columns == 0) columns = s.capacity;
  index_list const staged = executor.stage(sequences);
  work_list const work{staged.data(), static_cast<std::uint32_t>(staged.size())};
  log_degree_bias_phase<Keys, Values, T> const phase{cache, work,   layer,  heads_per_track,
                                                     out,   behind, columns};
  return launch_all(executor, "attention::write_log_degree",
                    [&] { executor.run(phase, s, work.sequence_count * s.kv_heads, phase); });
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
