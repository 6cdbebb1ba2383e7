// SPDX-License-Identifier: Apache-2.0
// A report on its way to the host, copied without waiting: the ledger's arrays per track and per sequence, or
// stats.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/executor.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Transfer of executors whose memory the host can read: nothing has to be sent.
struct no_transfer {};

template <class Executor, class = void> struct transfer_of {
  static_assert(is_immediate<Executor>::value,
                "kvmeld: Executor is not immediate and has no `transfer` type (exec/executor.hpp)");
  using type = no_transfer;
};
template <class Executor> struct transfer_of<Executor, std::void_t<typename Executor::transfer>> {
  using type = typename Executor::transfer;
};

/// At most one report, which may be on its way. A copy has no report on its way.
template <class Executor> class report_on_its_way {
public:
  report_on_its_way() = default;
  report_on_its_way(report_on_its_way const&) {}
  report_on_its_way(report_on_its_way&&) = default;
  report_on_its_way& operator=(report_on_its_way other) noexcept {
    transfer_ = std::move(other.transfer_);
    sent_ = std::exchange(other.sent_, false);
    return *this;
  }

  void send(Executor& executor, void const* from, std::size_t bytes) {
    transfer_.begin(executor, from, bytes);
    sent_ = true;
  }
  bool sent() const { return sent_; }
  /// Returns true once when the report has arrived.
  bool arrived(Executor& executor) {
    if (!sent_ || !transfer_.done(executor)) return false;
    sent_ = false;
    return true;
  }
  void* data() const { return transfer_.data(); }

private:
  typename transfer_of<Executor>::type transfer_;
  bool sent_ = false;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
