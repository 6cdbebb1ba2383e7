// What a backend's executor is asked for.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Whether a backend's tuned forms replace the generic phases.
enum class tuning : std::uint8_t { on, off };

/// Whether a backend's launches have happened when they return, and its memory is the host's. An executor is a value with
///   `memory`                             what allocate gives: data(), size(); deep copies
///   `allocate(bytes)`, `clear(p, bytes)`   at construction of a cache; never on the run path
///   `upload(p, host, bytes)`             in order with launches; `host` may change when the call returns
///   `download(host, p, bytes)`           waits until the bytes are there
///   `stage(list)`                        a list of numbers where phases of the same call can read it, maybe filled up with
///                                      idle_sequence
///   `records()`, `limit(what, n, most)`    whether a call_record is attached; n, or what was recorded for it
///   `remembers(owner, undo)`             false, or as recordable_executor has it
///   `run(phase, extent, items, source)`  one launch: phase(team, tile) for every tile of every item that is not idle
///   `transfer`                           a copy to the host that nothing waits for: begin(executor, p, bytes),
///                                      done(executor), data()
///   `workers()`, `immediate`
///
/// Where `immediate` is true the host may look at any array at any time, and needs no transfer. Where it is not, caches go by
/// what the host knows (known_state).
template <class Executor, class = void> struct is_immediate : std::false_type {};
template <class Executor>
struct is_immediate<Executor, std::enable_if_t<Executor::immediate>> : std::true_type {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
