// A report on its way to the host: the ledger's words of tracks and sequences, copied without waiting.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/executor.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where nothing has to be sent, since the host can look.
struct no_transfer {};

template <class Executor, class = void> struct transfer_of {
  static_assert(is_immediate<Executor>::value,
                "kvmeld: Executor is not immediate and has no `transfer` type (exec/executor.hpp)");
  using type = no_transfer;
};
template <class Executor> struct transfer_of<Executor, std::void_t<typename Executor::transfer>> {
  using type = typename Executor::transfer;
};

/// At most one report of a cache is on its way. A copy of the cache waits for none.
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
  /// True once, when it is there.
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

}  // namespace KVMELD_ABI
}  // namespace kvmeld
