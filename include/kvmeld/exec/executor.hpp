// SPDX-License-Identifier: Apache-2.0
// What an executor of a backend has to offer.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Whether the tuned forms of a backend replace the generic phases.
enum class tuning : std::uint8_t { on, off };

/// Whether the launches of a backend are done when they return, and its memory is the host's. An executor is
/// a value that has
/// - `memory`: the type that allocate returns, with data() and size(). Copies are deep.
/// - `allocate(bytes)`, `clear(p, bytes)`: called when a cache is constructed, never on the run path. If
///   there is no memory, allocate returns a `memory` whose data() is null
/// - `upload(p, host, bytes)`: keeps its order with launches; `host` may change when the call returns
/// - `download(host, p, bytes)`: waits until the bytes are there
/// - `stage(list)`: returns a list of numbers where phases of the same call can read it; the list may be
///   filled up with idle_sequence
/// - `run(phase, extent, items, source)`: one launch, phase(team, tile) for every tile of every item that is
///   not idle
/// - `transfer`: a copy to the host that nothing waits for, with begin(executor, p, bytes), done(executor)
///   and data()
/// - `workers()`, `immediate`
/// It derives from executor_base, or from recordable_executor if its calls can be recorded.
///
/// If `immediate` is true, the host may look at any array at any time and needs no transfer. If it is false,
/// caches go by what the host knows (host_mirror).
template <class Executor, class = void> struct is_immediate : std::false_type {};
template <class Executor>
struct is_immediate<Executor, std::enable_if_t<Executor::immediate>> : std::true_type {};

/// Base of executors. A rehearsal goes through the launches of a call and launches nothing: `run` only makes
/// room for the scratch of each phase. A call therefore finds out that memory is missing before its first
/// launch writes.
class executor_base {
public:
  /// Calls launches() as a rehearsal. Returns the bytes of scratch that could not be allocated. If it returns
  /// 0, the launches will allocate nothing.
  template <class Launches> std::size_t rehearse(Launches const& launches) {
    struct rehearsal {
      explicit rehearsal(bool& r) : on(r) { on = true; }
      rehearsal(rehearsal const&) = delete;
      rehearsal& operator=(rehearsal const&) = delete;
      ~rehearsal() { on = false; }
      bool& on;
    };
    missing_ = 0;
    rehearsal const now(rehearses_);
    launches();
    return missing_;
  }
  /// Whether `run` launches nothing now.
  bool rehearses() const { return rehearses_; }
  /// Whether a call_record is attached.
  static constexpr bool records() { return false; }
  /// Does what call_record::remember does, if a call_record is attached.
  template <class Keep> static void remember(void*, void (*)(void*), Keep const&) {}
  /// The number that sizes launches: `wanted`, or the recorded number if a call_record is attached.
  static constexpr std::uint32_t limit(char const*, std::uint32_t wanted, std::uint32_t) { return wanted; }
  /// A number that chooses the form of launches: `now`, or the recorded number if a call_record is attached.
  static constexpr std::uint32_t as_recorded(std::uint32_t now) { return now; }

protected:
  /// Called by `run` during a rehearsal: notes that `bytes` bytes could not be allocated.
  void lacks(std::size_t bytes) const {
    if (bytes > missing_) missing_ = bytes;
  }

private:
  bool rehearses_ = false;
  mutable std::size_t missing_ = 0;
};

namespace detail {

/// The condition that every refusal for missing memory names.
inline constexpr char const* memory_to_be_had = "no more than the executor can allocate";

}  // namespace detail

/// Rehearses the launches of one public call. Refuses, in the name of `call`, if there is no memory for their
/// scratch. Otherwise the launches allocate nothing. Enqueues nothing; does not wait. Recorded calls never
/// allocate and are not rehearsed.
template <class Executor, class Launches>
status make_room(Executor& executor, char const* call, Launches const& launches) {
  std::size_t const missing = executor.records() ? 0 : executor.rehearse(launches);
  if (missing == 0) return {};
  return raise(refusal(call, "scratch per tile in bytes", missing, detail::memory_to_be_had));
}
/// Makes all launches of one public call, or none if make_room refuses. Enqueues; does not wait.
template <class Executor, class Launches>
status launch_all(Executor& executor, char const* call, Launches const& launches) {
  status s = make_room(executor, call, launches);
  if (s.ok()) launches();
  return s;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
