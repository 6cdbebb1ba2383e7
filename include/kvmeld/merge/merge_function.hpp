// What a merge function is, and the phase that computes coefficients.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A merge function writes key, value and degree weights of one set into the step:
///   `weigh(wave, tile, pivot, members)`                         not `cooperative`: called by one lane per set
///   `weigh(team, wave, keys, tile, pivot, members, buffers)`    `cooperative`: called by the whole team, set by set,
///   `prepare(team, key_channels)`                               with buffers from here, taken once per tile
///   `weigh_spans(team, wave, tile, sources)`            `spreads`: called once per track by the whole team, with the
///                                                       spread sources, whose value weights hold the identifier's masks
///
/// It declares `needs_score`, `carries_degree()` (results have degree > 1) and `scratch_bytes(shape, lanes)`.
template <class Merge, class = void> struct is_merge_function : std::false_type {};

template <class Merge>
struct is_merge_function<Merge, std::void_t<decltype(Merge::needs_score), decltype(Merge::cooperative),
                                            decltype(std::declval<Merge const&>().carries_degree()),
                                            decltype(std::declval<Merge const&>().scratch_bytes(shape{}, 1))>>
    : std::bool_constant<std::is_trivially_copyable_v<Merge>> {};

/// Optional declaration of a merge function, as those below, false where it says nothing: `sums_degrees`, where it carries
/// degrees, results have the sum of their members' degrees (guarded merging).
template <class Merge, class = void> struct sums_degrees : std::false_type {};
template <class Merge> struct sums_degrees<Merge, std::enable_if_t<Merge::sums_degrees>> : std::true_type {};
/// `needs_similarity`: weighs by how alike sources are; wants an identifier that gives similarities.
template <class Merge, class = void> struct needs_similarity : std::false_type {};
template <class Merge>
struct needs_similarity<Merge, std::enable_if_t<Merge::needs_similarity>> : std::true_type {};
/// `shares`: merged entries live on as members with their own norms (fate::share); the cache's ref is a shared_ref.
template <class Merge, class = void> struct shares_entries : std::false_type {};
template <class Merge> struct shares_entries<Merge, std::enable_if_t<Merge::shares>> : std::true_type {};
/// `spreads`: weighs spans (fate::spread) instead of sets; wants an identifier that makes spans.
template <class Merge, class = void> struct spreads_entries : std::false_type {};
template <class Merge> struct spreads_entries<Merge, std::enable_if_t<Merge::spreads>> : std::true_type {};

/// Coefficients of the step's sets.
template <class Merge, class Keys> struct weigh_phase {
  static constexpr std::uint32_t block = 256;  ///< pivot slots per tile
  Merge merge;
  Keys keys;
  wave_ref wave;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int lanes) const { return merge.scratch_bytes(wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].merged == 0) return;
    std::uint32_t const count = min_of(block, n - begin);
    if constexpr (Merge::cooperative) {
      auto const scratch = merge.prepare(team, keys.channels());
      for (std::uint32_t i = 0; i < count; ++i) {
        member_list const m = members_of(wave, t.item, begin + i);
        if (m.count > 1) merge.weigh(team, wave, keys, t, begin + i, m, scratch);
      }
    } else {
      team.for_each(count, [&](std::uint32_t i) {
        member_list const m = members_of(wave, t.item, begin + i);
        if (m.count > 1) merge.weigh(wave, t, begin + i, m);
      });
    }
  }
};

/// Coefficients of the step's spans.
template <class Merge> struct weigh_spans_phase {
  Merge merge;
  wave_ref wave;

  static constexpr bool light = is_light<Merge>::value;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return merge.scratch_bytes(wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    member_list const sources = spreads_of(wave, t.item);
    if (sources.count != 0) merge.weigh_spans(team, wave, t, sources);
  }
};

/// Writes one set's weights: `share(i)` for member i, the same for keys and values.
template <class Share>
KVMELD_HD void write_weights(wave_ref const& wave, tile const& t, member_list const& m, Share share) {
  for (std::uint32_t i = 0; i < m.count; ++i) {
    std::size_t const e = wave.step.at(t.item, m.slots[i]);
    float const w = share(i);
    wave.step.key_weight[e] = w;
    wave.step.value_weight[e] = w;
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
