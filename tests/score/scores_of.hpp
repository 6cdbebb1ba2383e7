// A score outside a compression.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace score_test {

// The score of every entry of a track, computed as a compression computes it but for the inspection of rows:
// by generic loops, or with the kernels that the host's executor chooses.
template <class Score, class Ref>
std::vector<float> scores_of(Score const& score, Ref const& ref, kvmeld::track where,
                             kvmeld::host_kernels const* kernels = nullptr, std::uint32_t limit = 0) {
  std::vector<float> room(ref.length(where), -77.0f);
  kvmeld::score_view const view(ref.ledger, where, ref.length(where), limit, room.data());
  std::uint32_t const widest = std::max(ref.keys.channels(), ref.values.channels());
  std::size_t const bytes =
      kvmeld::detail::scratch_of_score(score, ref.ledger.extent, 1) + kvmeld::row_scratch::bytes(widest);
  std::vector<std::max_align_t> scratch(bytes / sizeof(std::max_align_t) + 1);
  std::vector<std::max_align_t> memory(kvmeld::host_team::tuned_bytes / sizeof(std::max_align_t) + 1);
  kvmeld::host_team const team(scratch.data(), bytes, kernels, memory.data());
  kvmeld::row_scratch const rooms(team, widest);
  kvmeld::kv const rows{kvmeld::track_rows(ref.keys, view, rooms),
                        kvmeld::track_rows(ref.values, view, rooms)};
  std::vector<float> out(view.length(), -77.0f);
  kvmeld::detail::evaluate_score(score, team, view, rows, out.data());
  return out;
}

inline kvmeld::host_kernels const* tuned() { return kvmeld::kernels_of(kvmeld::best_instruction_set()); }

}  // namespace score_test
