// A ledger, a workspace and a wave around K and V: what compress works on, opened up so that stages run
// alone.
#pragma once

#include "session.hpp"
#include "tensors.hpp"

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/merge/sets.hpp>
#include <kvmeld/rounds/compress.hpp>
#include <kvmeld/sequences/open.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kvmeld_bench {

/// What a plan does, summed over the tracks of the wave.
struct counts {
  double entries = 0;     ///< before
  double candidates = 0;  ///< entries of the live-slot lists
  double removed = 0;     ///< by the round
  double sets = 0;
  double members = 0;  ///< of those sets, pivots included
  double moved = 0;    ///< kept entries that change their slot
  double emptied = 0;  ///< slots that hold nothing afterwards
};

/// All eight tracks form one wave, so that a stage is one launch over all of them.
class workbench {
public:
  workbench(kvmeld::shape const& extent, kvmeld::channel_list const& channels, std::uint32_t threads,
            std::uint32_t table_floats = 0)
      : executor_(threads), extent_(extent) {
    kvmeld::arena sizing;
    carve(sizing, channels, table_floats);
    memory_ = executor_.allocate(sizing.bytes());
    std::memset(memory_.data(), 0, memory_.size());
    kvmeld::arena a(memory_.data(), memory_.size());
    carve(a, channels, table_floats);
    kvmeld::track_source const source{extent_, work()};
    executor_.run(
        kvmeld::sequences::tracks_phase<kvmeld::sequences::open>{{ledger_, work(), &extent_.capacity},
                                                                 {0, 0}},
        extent_, extent_.tracks(), source);
    fill_scores(ledger_);
    kvmeld::detail::for_each_wave(workspace_, ledger_, work(), 1,
                                  [&](kvmeld::wave_ref const& w) { wave_ = w; });
  }
  workbench(workbench const&) = delete;
  workbench& operator=(workbench const&) = delete;

  template <class Phase> void launch(Phase const& phase) {
    kvmeld::detail::launcher<kvmeld::host_executor>{executor_, wave_}(phase);
  }
  kvmeld::host_executor& executor() { return executor_; }
  kvmeld::wave_ref const& wave() const { return wave_; }
  kvmeld::ledger_ref const& ledger() const { return ledger_; }

  /// The states of the tracks, to go back to before a stage that changes them.
  std::vector<kvmeld::track_state> states() const { return {wave_.state, wave_.state + wave_.tracks}; }
  void restore(std::vector<kvmeld::track_state> const& states) {
    std::copy(states.begin(), states.end(), wave_.state);
  }
  /// Every entry stays, as at the beginning of a compression.
  void clear_plan() {
    for (std::uint32_t item = 0; item < wave_.tracks; ++item) {
      for (std::uint32_t s = 0; s < extent_.capacity; ++s) kvmeld::keep_entry(wave_.plan, item, s);
    }
  }
  /// No row was looked at yet.
  void forget_checks() { std::memset(ledger_.flags, 0, extent_.slots()); }

  /// Sets as link_phase listed them last; moves as new_slots_phase numbered them last.
  counts count() const {
    counts c;
    for (std::uint32_t item = 0; item < wave_.tracks; ++item) {
      kvmeld::track_state const& s = wave_.state[item];
      c.entries += s.length;
      c.candidates += s.live_count;
      c.removed += s.merged;
      for (std::uint32_t slot = 0; slot < s.length; ++slot) {
        std::uint32_t const members = kvmeld::members_of(wave_, item, slot).count;
        c.sets += members > 1 ? 1 : 0;
        c.members += members > 1 ? members : 0;
        std::size_t const i = wave_.plan.at(item, slot);
        bool const kept = wave_.plan.fates[i] == kvmeld::fate::keep;
        c.moved += kept && wave_.plan.new_slot[i] != slot ? 1 : 0;
        c.emptied += kept ? 0 : 1;
      }
    }
    return c;
  }

private:
  void carve(kvmeld::arena& a, kvmeld::channel_list const& channels, std::uint32_t table_floats) {
    ledger_ = kvmeld::carve_ledger(a, extent_, channels, 0, table_floats);
    workspace_ = kvmeld::carve_workspace(a, extent_, extent_.tracks(), extent_.tracks());
  }
  kvmeld::work_list work() const { return {&sequence_, 1}; }

  kvmeld::host_executor executor_;
  kvmeld::shape extent_;
  kvmeld::host_executor::memory memory_;
  kvmeld::ledger_ref ledger_;
  kvmeld::workspace_ref workspace_{};
  kvmeld::wave_ref wave_;
  std::uint32_t sequence_ = 0;
};

}  // namespace kvmeld_bench
