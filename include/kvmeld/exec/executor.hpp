// What a backend's executor is asked for.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Whether a backend's tuned forms replace the generic phases.
enum class tuning : std::uint8_t { on, off };

/// Whether a backend's launches have happened when they return, and its memory is the host's. An executor is
/// a value with
/// - `memory`: what allocate gives: data(), size(); deep copies
/// - `allocate(bytes)`, `clear(p, bytes)`: at construction of a cache; never on the run path. Where there is
/// no memory,
///   allocate gives one whose data() is null
/// - `upload(p, host, bytes)`: in order with launches; `host` may change when the call returns
/// - `download(host, p, bytes)`: waits until the bytes are there
/// - `stage(list)`: a list of numbers where phases of the same call can read it, maybe filled up with
///   idle_sequence
/// - `run(phase, extent, items, source)`: one launch: phase(team, tile) for every tile of every item that is
/// not idle
/// - `transfer`: a copy to the host that nothing waits for: begin(executor, p, bytes),
///   done(executor), data()
/// - `workers()`, `immediate`
/// It derives from executor_base, or from recordable_executor where calls can be recorded.
///
/// Where `immediate` is true the host may look at any array at any time, and needs no transfer. Where it is
/// not, caches go by what the host knows (host_mirror).
template <class Executor, class = void> struct is_immediate : std::false_type {};
template <class Executor>
struct is_immediate<Executor, std::enable_if_t<Executor::immediate>> : std::true_type {};

/// Base of executors. A rehearsal goes through the launches of a call and launches nothing: `run` only makes
/// room for the scratch of each phase. So a call finds out that memory is missing before its first launch
/// writes.
class executor_base {
public:
  /// Calls launches() as a rehearsal. Bytes of scratch that were not to be had; 0: the launches will allocate
  /// nothing.
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
  /// As call_record has it, where one is attached.
  template <class Keep> static void remember(void*, void (*)(void*), Keep const&) {}
  /// The number that sizes launches: the one wanted, or the one that was recorded.
  static constexpr std::uint32_t limit(char const*, std::uint32_t wanted, std::uint32_t) { return wanted; }

protected:
  /// For `run` during a rehearsal: so many bytes are not to be had.
  void lacks(std::size_t bytes) const {
    if (bytes > missing_) missing_ = bytes;
  }

private:
  bool rehearses_ = false;
  mutable std::size_t missing_ = 0;
};

/// The condition of every refusal for missing memory.
inline constexpr char const* memory_to_be_had = "no more than the executor can allocate";

/// Rehearses the launches of one public call. Refuses, in the name of `call`, where there is no memory for
/// their scratch; otherwise the launches allocate nothing. Recorded calls allocate nothing anyway and are not
/// rehearsed.
template <class Executor, class Launches>
status make_room(Executor& executor, char const* call, Launches const& launches) {
  std::size_t const missing = executor.records() ? 0 : executor.rehearse(launches);
  if (missing == 0) return {};
  return raise(refusal(call, "scratch per tile in bytes", missing, memory_to_be_had));
}
/// Makes the launches of one public call: all of them, or where make_room refuses none.
template <class Executor, class Launches>
status launch_all(Executor& executor, char const* call, Launches const& launches) {
  status s = make_room(executor, call, launches);
  if (s.ok()) launches();
  return s;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
