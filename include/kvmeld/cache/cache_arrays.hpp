// SPDX-License-Identifier: Apache-2.0
// The memory of a cache: one block that holds the ledger, the plan's list of sequences, the workspace and,
// with options.stats, the stats.
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/rounds/compress.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The arrays that lie in the block.
struct cache_arrays {
  ledger_ref ledger;                 ///< at the beginning of the block
  std::size_t word_bytes = 0;        ///< bytes of the arrays per track and per sequence, which come first
  std::size_t ledger_bytes = 0;      ///< bytes of the ledger
  std::uint32_t* planned = nullptr;  ///< [sequences] the sequences of the plan made last
  workspace_ref workspace{};         ///< the rest of the block
  cache_stats* stats = nullptr;  ///< [tracks] what the last request wrote down; null without options.stats
};

/// Carves the ledger of a cache with these options; only counts bytes if the arena has no memory.
inline ledger_ref carve_ledger(arena& a, cache_options const& options, channel_list const& channels,
                               std::uint32_t table_floats) {
  ledger_pages const& pages = options.ledger_pages;
  ledger_ref l = pages.count == 0
                     ? carve_ledger(a, options.extent, channels, options.members, table_floats)
                     : carve_ledger(a, options.extent, channels, options.members, table_floats, pages.places,
                                    pages.count * static_cast<std::size_t>(pages.places.page_stride));
  l.first_layer = options.first_layer;
  l.first_kv_head = options.first_kv_head;
  l.ignore_degree = options.ignore_degree;
  l.padded = options.padded;
  return l;
}

/// Tracks that are planned at a time at most, if they are so short that the workspace has room for them.
inline constexpr std::uint32_t most_of_wave = 1024;

/// Carves the whole block; only counts bytes if the arena has no memory.
inline cache_arrays carve_cache(arena& a, cache_options const& options, channel_list const& channels,
                                std::uint32_t table_floats) {
  cache_arrays c;
  c.ledger = carve_ledger(a, options, channels, table_floats);
  c.word_bytes = static_cast<std::size_t>(reinterpret_cast<std::byte const*>(c.ledger.degree) -
                                          reinterpret_cast<std::byte const*>(c.ledger.length));
  c.ledger_bytes = a.bytes();
  c.planned = a.take<std::uint32_t>(options.extent.sequences);
  std::uint32_t const plans = options.whole_plan ? options.extent.tracks() : options.wave_tracks;
  // A plan that stays, and members, have places by the capacity.
  bool const fits = !options.whole_plan && options.members == 0;
  c.workspace = carve_workspace(a, options.extent, options.wave_tracks, plans, options.members,
                                tracks_per_budget(options.budgets_over, options.extent),
                                fits ? min_of(options.extent.tracks(), most_of_wave) : 0);
  c.workspace.zero_emptied = options.clears_emptied();
  c.workspace.wave.scope = tracks_per_plan(options.scope, options.extent);
  if (options.stats) {
    c.workspace.stats = a.take<stat_counts>(options.extent.tracks());
    c.stats = a.take<cache_stats>(options.extent.tracks());
  }
  return c;
}

/// Number of tracks of full capacity that are planned at a time: options.wave_tracks. If that is 0, two per
/// worker, or as many as 1 MiB of workspace per worker holds, if these are more; but no more than 64 MiB
/// hold. At most all tracks, and rounded down to whole plan scopes, but at least one of them; rounded to
/// whole budget scopes, too, where these are fewer tracks, or where entries are shared.
inline std::uint32_t tracks_of_wave(cache_options const& options, std::uint32_t workers) {
  constexpr std::size_t worth_a_launch = std::size_t{1} << 20, most = std::size_t{64} << 20;
  std::uint32_t const per_budget = tracks_per_budget(options.budgets_over, options.extent),
                      scope = tracks_per_plan(options.scope, options.extent),
                      tracks = options.extent.tracks();
  std::uint32_t wanted = options.wave_tracks;
  if (wanted == 0) {
    std::size_t const each = workspace_bytes(options.extent, scope, options.members) / scope;
    auto const held_by = [&](std::size_t bytes) {
      return static_cast<std::uint32_t>(min_of<std::size_t>(tracks, bytes / max_of<std::size_t>(1, each)));
    };
    wanted = min_of(max_of(2 * workers, held_by(worth_a_launch * workers)), held_by(most));
  }
  wanted = min_of(wanted, tracks);
  std::uint32_t const unit = options.members != 0 || wanted >= per_budget ? max_of(scope, per_budget) : scope;
  return max_of(unit, wanted / unit * unit);
}

/// Bytes that a cache with these options takes from its executor at construction, in one block: the ledger
/// and the workspace. For engines that set the memory aside themselves. `channels` and `table_floats` are
/// those of the policy's score (channels_of, table_floats_of), `workers` is the executor's number of workers.
inline std::size_t cache_bytes(cache_options options, channel_list const& channels, std::uint32_t workers,
                               std::uint32_t table_floats = 0) {
  options.wave_tracks = tracks_of_wave(options, workers);
  arena sizing;
  carve_cache(sizing, options, channels, table_floats);
  return sizing.bytes();
}

/// A ledger that the host can read: the cache's own, or a copy in `memory`.
struct readable_ledger {
  std::vector<std::byte> memory;          ///< the copy's bytes; empty if the host can read executor memory
  ledger_ref ledger;                      ///< the copy, or the cache's own ledger
  std::shared_ptr<void const> entries{};  ///< keeps the copy of a sequence's entries, if they lie in pages
  std::string problem{};                  ///< why there is no copy; empty if there is
};

/// The cache's ledger for the host. If launches are not immediate, waits and copies its first `bytes` bytes;
/// arrays behind them must not be read.
template <class Executor>
readable_ledger read_ledger(Executor& executor, cache_arrays const& arrays, void const* block,
                            cache_options const& options, [[maybe_unused]] std::size_t bytes) {
  if constexpr (is_immediate<Executor>::value) {
    return {{}, arrays.ledger};
  } else {
    readable_ledger copy{std::vector<std::byte>(bytes), {}};
    executor.download(copy.memory.data(), block, bytes);
    arena a(copy.memory.data(), copy.memory.size());
    copy.ledger = carve_ledger(a, options, arrays.ledger.channels, arrays.ledger.table_floats);
    return copy;
  }
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
