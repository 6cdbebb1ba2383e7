// SPDX-License-Identifier: Apache-2.0
// Stats: what a track holds and what its compressions did, as a small struct for dashboards.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Stats of one track at the moment of request_stats. Counts of compressions begin when the sequence is
/// opened, adopted, forked or resumed.
struct cache_stats {
  static constexpr std::uint32_t bins = 12;  ///< bins of the histogram of degrees

  std::uint32_t tokens = 0;  ///< committed tokens of the sequence
  std::uint32_t held = 0;    ///< entries, pending ones included, empty slots (options.padded) not
  /// Entries that became part of others (merged, shared or spread), and entries that were dropped (the zero
  /// class of EMS). `merged` and `dropped` count the last compression or apply that the sequence was listed
  /// in.
  std::uint32_t merged = 0, dropped = 0;
  std::uint32_t merged_in_all = 0, dropped_in_all = 0;  ///< the same for all compressions
  /// Entries by degree: degrees[b] counts 2^b <= degree < 2^(b+1). The first bin also counts those below 1,
  /// the last one all above.
  std::uint32_t degrees[bins] = {};
  float largest_degree = 0.0f;  ///< most tokens that one entry stands for
  /// Attention mass retained: the share of the gathered score that the last compression kept, merged or
  /// spread. The whole is what entries and members had gathered when it began. The score is summed per track
  /// as the policy keeps it: accumulated attention, else attention of the last window, else hits. 1 if
  /// nothing has been compressed, or the policy keeps no score. Numbers that are not finite are left out.
  float mass_retained = 1.0f;
  float mass_retained_in_all = 1.0f;  ///< the product over all compressions
};

/// What stats are made of between requests: one per track, in memory of the executor.
struct stat_counts {
  std::uint32_t merged, dropped, merged_in_all, dropped_in_all;  ///< as cache_stats has them
  float mass_before;                                             ///< mass when the running compression began
  float retained, retained_in_all;  ///< shares of the mass: as mass_retained and mass_retained_in_all
};

/// Stats of several tracks, added up.
struct stats_sum {
  std::uint32_t tracks = 0;            ///< tracks that were added up
  std::uint64_t tokens = 0, held = 0;  ///< summed over the tracks: held / tokens is the share of entries left
  /// Sums of the fields of cache_stats with the same names.
  std::uint64_t merged = 0, dropped = 0, merged_in_all = 0, dropped_in_all = 0;
  /// Sums, bin by bin.
  std::uint64_t degrees[cache_stats::bins] = {};
  float largest_degree = 0.0f;               ///< largest degree of all tracks
  float min_mass_retained = 1.0f;            ///< mass retained by the worst track
  double masses = 0.0, masses_in_all = 0.0;  ///< sums of the shares; see mass_retained()

  stats_sum() = default;
  /// The stats of one track.
  explicit stats_sum(cache_stats const& f)
      : tracks(1),
        tokens(f.tokens),
        held(f.held),
        merged(f.merged),
        dropped(f.dropped),
        merged_in_all(f.merged_in_all),
        dropped_in_all(f.dropped_in_all),
        largest_degree(f.largest_degree),
        min_mass_retained(f.mass_retained),
        masses(static_cast<double>(f.mass_retained)),
        masses_in_all(static_cast<double>(f.mass_retained_in_all)) {
    for (std::uint32_t b = 0; b < cache_stats::bins; ++b) degrees[b] = f.degrees[b];
  }
  /// Adds the tracks of `other`.
  void operator+=(stats_sum const& other) {
    tracks += other.tracks;
    tokens += other.tokens;
    held += other.held;
    merged += other.merged;
    dropped += other.dropped;
    merged_in_all += other.merged_in_all;
    dropped_in_all += other.dropped_in_all;
    for (std::uint32_t b = 0; b < cache_stats::bins; ++b) degrees[b] += other.degrees[b];
    if (other.largest_degree > largest_degree) largest_degree = other.largest_degree;
    if (other.min_mass_retained < min_mass_retained) min_mass_retained = other.min_mass_retained;
    masses += other.masses;
    masses_in_all += other.masses_in_all;
  }
  /// Mean over the tracks of cache_stats::mass_retained. Tracks weigh the same, because each saw the same
  /// queries.
  double mass_retained() const { return tracks == 0 ? 1.0 : masses / tracks; }
  /// Mean over the tracks of cache_stats::mass_retained_in_all.
  double mass_retained_in_all() const { return tracks == 0 ? 1.0 : masses_in_all / tracks; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
