// SPDX-License-Identifier: Apache-2.0
// Calls whose launches are kept and repeated. What may change between repetitions lies at stable addresses.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A series of calls, as an engine captures it in a CUDA graph. While it is recorded, calls launch as always,
/// but their lists (sequences, counts, budgets) get places of their own. To replay it, the same calls are
/// made again with other lists. They check their arguments, update what the host knows, write the lists to
/// the same places, and launch nothing. Then the owner of the kept launches repeats them. Calls whose
/// launches do not happen after all are taken back. Lists may be shorter than recorded, but not longer; tiles
/// of the missing sequences are idle. Everything that is not a list is as recorded: tensors, layers,
/// parameters, fallbacks.
///
/// An executor that can be recorded asks its attached record. A backend's graph owns one record and its
/// memory.
class call_record {
public:
  /// `places` is where phases read the lists. It has room for `room` numbers, and this class neither reads
  /// nor writes it.
  call_record(std::uint32_t* places, std::size_t room) : places_(places), room_(room) {}

  /// Forgets what was recorded, and records the calls from now on.
  void begin_recording() {
    numbers_.clear();
    pieces_.clear();
    limits_.clear();
    launches_.clear();
    begin(true);
  }
  /// From now on the recorded calls are made again, with other lists.
  void begin_replay() { begin(false); }

  /// Why the calls made since `begin_...` cannot be launched; empty if they can. If they can, copy numbers()
  /// to `places` before the launch.
  std::string end() {
    if (problem_.empty() &&
        (piece_ != pieces_.size() || launch_ != launches_.size() || limit_ != limits_.size()))
      refuse("sequence of calls", "shorter", "the one that was recorded");
    return problem_;
  }
  /// The lists of the calls made last, in the order of their places.
  index_list numbers() const { return {numbers_.data(), numbers_.size()}; }

  /// Where phases find the list. It has the recorded length and is filled up with idle_sequence.
  index_list stage(index_list list) {
    if (recording_ && !add_piece(list.size())) return {places_, 0};
    if (piece_ == pieces_.size()) return refuse_other_calls();
    piece const p = pieces_[piece_++];
    if (list.size() > p.size) {
      refuse("length of a list", list.size(), "at most ", p.size,
             ", as was recorded (record with the longest)");
      return {places_ + p.begin, p.size};
    }
    std::uint32_t* const to = numbers_.data() + p.begin;
    std::copy_n(list.data(), list.size(), to);
    std::fill(to + list.size(), to + p.size, idle_sequence);
    return {places_ + p.begin, p.size};
  }

  /// A number that sizes launches. Recording stores `most`. The call returns the recorded number, and refuses
  /// if `wanted` is larger.
  std::uint32_t limit(char const* what, std::uint32_t wanted, std::uint32_t most) {
    if (recording_) limits_.push_back(most);
    if (limit_ == limits_.size()) return refuse_other_calls(), wanted;
    std::uint32_t const recorded = limits_[limit_++];
    if (wanted > recorded) {
      refuse(message("number of ", what), wanted, "at most ", recorded,
             ", as was recorded (record with the most)");
    }
    return recorded;
  }

  /// Whether a launch is to be made: only while recording. `kind` tells phases apart.
  bool launch(void const* kind, std::uint64_t tiles) {
    if (recording_) launches_.push_back({kind, tiles});
    if (launch_ == launches_.size()) {
      refuse_other_calls();
      return false;
    }
    one const& l = launches_[launch_++];
    if (l.kind != kind || l.tiles != tiles) refuse_other_calls();
    return recording_;
  }

  /// Registers undo(owner), which is called if the calls made since `begin_...` are not launched. keep() runs
  /// the first time an owner asks, and stores the state that the owner has to go back to. If keep() throws,
  /// nothing is registered.
  template <class Keep> void remember(void* owner, void (*undo)(void*), Keep const& keep) {
    for (auto const& [known, how] : undos_) {
      if (known == owner) return;
    }
    undos_.reserve(undos_.size() + 1);
    keep();
    undos_.push_back({owner, undo});
  }
  /// Takes the calls back: every owner returns to its state from before the calls. To be called by the owner
  /// of the launches if it made none.
  void take_back() {
    for (auto const& [owner, undo] : undos_) undo(owner);
    undos_.clear();
  }

  /// Notes why the calls cannot be launched. Only the first problem is kept.
  template <class Value, class... Condition>
  void refuse(std::string const& argument, Value const& value, Condition const&... condition) {
    if (problem_.empty()) problem_ = refusal(recording_ ? "record" : "replay", argument, value, condition...);
  }

private:
  struct piece {
    std::size_t begin, size;
  };
  struct one {
    void const* kind;
    std::uint64_t tiles;
  };

  void begin(bool recording) {
    recording_ = recording;
    problem_.clear();
    undos_.clear();
    piece_ = limit_ = launch_ = 0;
  }
  bool add_piece(std::size_t size) {
    if (numbers_.size() + size > room_) {
      refuse("number of numbers in lists", numbers_.size() + size, "at most ", room_,
             ", the room of the record");
      return false;
    }
    pieces_.push_back({numbers_.size(), size});
    numbers_.resize(numbers_.size() + size);
    return true;
  }
  index_list refuse_other_calls() {
    refuse("sequence of calls", "another", "the one that was recorded");
    return {places_, 0};
  }

  std::uint32_t* places_;
  std::size_t room_;
  bool recording_ = false;
  std::vector<std::uint32_t> numbers_;
  std::vector<piece> pieces_;
  std::vector<std::uint32_t> limits_;
  std::vector<one> launches_;
  std::size_t piece_ = 0, limit_ = 0, launch_ = 0;
  std::string problem_;
  std::vector<std::pair<void*, void (*)(void*)>> undos_;
};

/// Guards calls that are launched together or not at all. If `launched` is not set when it is destroyed, also
/// after an exception, it takes the calls back.
struct joint_launch {
  /// Guards the calls of record `r`.
  explicit joint_launch(call_record& r) : record(r) {}
  joint_launch(joint_launch const&) = delete;
  joint_launch& operator=(joint_launch const&) = delete;
  ~joint_launch() {
    if (!launched) record.take_back();
  }
  call_record& record;    ///< the record that is taken back
  bool launched = false;  ///< set once the launches are on their way
};

/// Base of executors whose calls can be recorded. A copy of an executor is attached to nothing.
class recordable_executor : public executor_base {
public:
  recordable_executor() = default;
  /// The copy is attached to nothing.
  recordable_executor(recordable_executor const&) : executor_base() {}
  /// Keeps its own attachment.
  recordable_executor& operator=(recordable_executor const&) { return *this; }

  void attach(call_record* record) { record_ = record; }
  bool records() const { return record_ != nullptr; }
  std::uint32_t limit(char const* what, std::uint32_t wanted, std::uint32_t most) const {
    return record_ == nullptr ? wanted : record_->limit(what, wanted, most);
  }
  /// A number that chooses the form of launches: `now`, or the recorded number in a replay.
  std::uint32_t as_recorded(std::uint32_t now) const {
    return record_ == nullptr ? now : record_->limit("", 0, now);  // 0 is never more than was recorded
  }
  /// To be called before every change to the owner. Does nothing if no record is attached. Otherwise the
  /// first call of an owner runs keep(), which stores what the owner knows now, for undo(owner).
  template <class Keep> void remember(void* owner, void (*undo)(void*), Keep const& keep) const {
    if (record_ != nullptr) record_->remember(owner, undo, keep);
  }

protected:
  call_record* record() const { return record_; }
  /// An address that is different for every type of phase.
  template <class Phase> static void const* kind_of() {
    static constexpr char kind = 0;
    return &kind;
  }

private:
  call_record* record_ = nullptr;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
