// SPDX-License-Identifier: Apache-2.0
// The options that a cache is built with, and their checks.
#pragma once

#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/page_places.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What an engine's attention can add to the logits of merged entries.
enum class bias_support : std::uint8_t {
  per_head,  ///< a row of log degrees per KV head, as attention::attend does
  shared,    ///< one row for all heads of a layer: heads must share their plans (plan_scope layer or
             ///< all_layers)
  none,      ///< nothing: a policy whose results carry degrees is refused unless `ignore_degree` is set
};

/// Which tracks of a sequence share one plan.
enum class plan_scope : std::uint8_t {
  head,        ///< every track has a plan of its own
  layer,       ///< all KV heads of a layer share one plan
  all_layers,  ///< all KV heads of all layers share one plan
};

namespace detail {

/// Number of tracks that share one plan.
inline std::uint32_t tracks_per_plan(plan_scope scope, shape const& s) {
  return scope == plan_scope::head ? 1 : scope == plan_scope::layer ? s.kv_heads : s.kv_heads * s.layers;
}

}  // namespace detail

/// Pages in which the ledger keeps its numbers per entry, in the order of the pages of K and V. A paged
/// engine has fewer slots in its pool than sequences * capacity, and the ledger then takes bytes for the pool
/// alone.
struct ledger_pages {
  std::uint32_t count = 0;  ///< pages of the pool; 0: the ledger has an element for every slot of every track
  /// How K's block table names the page of an entry, and where the entry's elements lie: dense_places(table,
  /// page_size, extent). The table is read where rows are read: it must name a page for every slot that a
  /// call appends, and for every entry that is held. When it moves, call rebind_pages.
  page_places<> places;
};

/// Options fixed at construction. They determine how much memory a cache takes.
struct cache_options {
  shape extent;  ///< layers, sequences, heads and capacity of the cache
  /// Tracks of full capacity that the workspace has room to plan together, rounded to whole plan scopes. Of
  /// shorter tracks it holds more, up to 1024. 0: two per worker of the executor, or as many as 1 MiB of
  /// workspace per worker holds, if these are more; but no more than 64 MiB hold, if that is a plan scope.
  std::uint32_t wave_tracks = 0;
  bool whole_plan = false;                     ///< hold a plan of every track; `plan` and `apply` need it
  std::uint32_t members = 0;                   ///< members per track, for policies that share entries
  std::uint32_t first_layer = 0;               ///< global number of the group's first layer
  std::uint32_t first_kv_head = 0;             ///< global number of the first KV head on this rank
  bias_support bias = bias_support::per_head;  ///< what the engine's attention can add to logits
  bool ignore_degree =
      false;  ///< every entry counts as one token in attention and in scores, whatever its degree
  /// Which tracks share one plan. The same entries merge and stay in all of these tracks, so their lengths,
  /// positions and degrees are equal. Scores are averaged over the tracks. Similarity is computed on the
  /// tracks' rows joined to one long row. Every track weighs its own rows.
  plan_scope scope = plan_scope::head;
  /// The widest budget scope that calls may ask for (budget::over). The tracks of a scope, for `layer` all
  /// heads of a layer, for `all_layers` all tracks of a sequence, are scored together: beyond those that are
  /// planned together, a track takes 4 bytes an entry and about 1 KB. (Where entries are shared, all are
  /// planned together.)
  budget_scope budgets_over = budget_scope::head;
  /// For engines with one length and one block table per sequence, but a mask or bias row per head. After
  /// `compress` every track of a sequence has the same length, length_bound(sequence), so the host knows the
  /// lengths even on a device. If launches are immediate, this is the length of the longest track. Otherwise
  /// it is the largest of the bounds, which a policy that is not `exact` may leave unchanged; sync_lengths or
  /// a polled report lowers what the next compression leaves. Slots behind a track's own last entry are
  /// empty: degree 0 (their log degree is the lowest float, which masks them), K and V rows of zeros,
  /// channels at their initial values, flags 0, the position of the entry before them. Appended entries lie
  /// behind the empty slots. The next `compress` first takes the empty slots out.
  bool padded = false;
  /// true: when a track becomes shorter, the V rows behind its new end become zeros, which costs about as
  /// much as an eviction that moves as many rows. Some attention kernels read whole tiles past the end, and
  /// only add a bias there. Their weight is 0, but 0 times NaN is NaN. Such kernels need zeros. false: these
  /// rows keep what was in them. kvmeld never reads them (testing::watch::poison_emptied shows whether an
  /// engine does). `padded` implies it.
  bool zero_emptied = false;
  /// With a count: the ledger's numbers per entry lie in pages. Sequences that share a page share its
  /// numbers, so that entries of such pages must be frozen in all of them, and nothing is added to the scores
  /// of frozen entries. Needs `members` 0: members lie in no pages.
  kvmeld::ledger_pages ledger_pages{};
  /// Compressions count what they do, for request_stats. This costs two more launches per wave and 112 bytes
  /// per track.
  bool stats = false;

  /// Whether rows behind a shortened track are cleared.
  bool clears_emptied() const { return zero_emptied || padded; }
};

namespace detail {

/// Why an extent is refused; empty if it is not. kvmeld::largest and docs/limits.md give the limits.
inline std::string extent_problem(shape const& s) {
  struct {
    char const* name;
    std::uint32_t value, limit;
  } const fields[] = {{"layers", s.layers, largest::tracks},
                      {"sequences", s.sequences, largest::tracks},
                      {"kv_heads", s.kv_heads, largest::tracks},
                      {"queries_per_kv_head", s.queries_per_kv_head, largest::queries_per_kv_head},
                      {"key_dim", s.key_dim, largest::channels},
                      {"value_dim", s.value_dim, largest::channels},
                      {"capacity", s.capacity, largest::capacity}};
  for (auto const& f : fields) {
    if (f.value == 0 || f.value > f.limit) {
      return refusal("shape", f.name, f.value, "1 to ", f.limit);
    }
  }
  auto const product = [](std::uint64_t a, std::uint64_t b) { return saturated_product(a, b); };
  std::uint64_t const tracks = product(product(s.layers, s.sequences), s.kv_heads);
  if (tracks > largest::tracks) {
    return refusal("shape", "layers * sequences * kv_heads", tracks, "at most ", largest::tracks);
  }
  if (std::uint64_t const heads = product(s.kv_heads, s.queries_per_kv_head); heads > largest::query_heads) {
    return refusal("shape", "kv_heads * queries_per_kv_head", heads, "at most ", largest::query_heads);
  }
  if (std::uint64_t const slots = product(tracks, s.capacity); slots > largest::slots) {
    return refusal("shape", "layers * sequences * kv_heads * capacity", slots, "at most ", largest::slots);
  }
  return {};
}

/// Why the ledger's numbers cannot lie in these pages; empty if they can, or if there are none.
inline std::string ledger_pages_problem(cache_options const& options) {
  ledger_pages const& pages = options.ledger_pages;
  if (pages.count == 0) return {};
  if (options.members != 0)
    return refusal("options.ledger_pages", "options.members", options.members,
                   "0, because members lie in no pages");
  page_places<> const& p = pages.places;
  if (std::string text = p.problem("options.ledger_pages"); !text.empty()) return text;
  struct {
    char const* name;
    std::int64_t value;
  } const strides[] = {
      {"page_stride", p.page_stride}, {"layer_stride", p.layer_stride}, {"head_stride", p.head_stride}};
  for (auto const& stride : strides) {
    if (stride.value < 0 || stride.value > std::int64_t{largest::slots})
      return refusal("options.ledger_pages", stride.name, stride.value, "0 to ", largest::slots);
  }
  std::uint64_t const least = p.least_page_stride(options.extent);
  if (static_cast<std::uint64_t>(p.page_stride) < least)
    return refusal("options.ledger_pages", "page_stride", p.page_stride, "at least ", least,
                   ", the elements of a page");
  std::uint64_t const elements =
      saturated_product<std::uint64_t>(pages.count, static_cast<std::uint64_t>(p.page_stride));
  if (elements <= largest::slots) return {};
  return refusal("options.ledger_pages", "count * page_stride", elements, "at most ", largest::slots);
}

/// Why the tracks of a plan scope cannot share one plan; empty if they can. Their rows, joined to one long
/// row, must not have too many channels.
inline std::string scope_problem(cache_options const& options) {
  std::uint64_t const channels = std::uint64_t{tracks_per_plan(options.scope, options.extent)} *
                                 max_of(options.extent.key_dim, options.extent.value_dim);
  if (options.scope == plan_scope::head || channels <= largest::joined_channels) return {};
  return refusal("options.scope", "number of channels of all tracks that share a plan", channels, "at most ",
                 largest::joined_channels);
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
