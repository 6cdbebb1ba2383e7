// The functions of kvmeld.h about the library itself.
#include "failure.hpp"

#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/kvmeld.h>

#include <atomic>
#include <memory>
#include <string>

namespace {

std::string list_of_policies() {
  std::string out;
  for (kvmeld::compose::named_policy const& p : kvmeld::compose::named_policies())
    out += std::string(p.name) + "\t" + p.does + "\n";
  return out;
}
std::string version() {
  return kvmeld::message(KVMELD_VERSION_MAJOR, ".", KVMELD_VERSION_MINOR, ".", KVMELD_VERSION_PATCH);
}

/// The text that Make makes, once; never destroyed, because programs may hold it. No lock is held meanwhile:
/// a fork at that moment would leave the child with the lock.
template <std::string (*Make)()> char const* made_once() noexcept {
  static std::atomic<std::string const*> kept{nullptr};
  try {
    std::string const* here = kept.load(std::memory_order_acquire);
    if (here != nullptr) return here->c_str();
    auto fresh = std::make_unique<std::string const>(Make());
    if (kept.compare_exchange_strong(here, fresh.get())) here = fresh.release();
    return here->c_str();
  } catch (...) {
    return "";
  }
}

}  // namespace

extern "C" {

uint32_t kvmeld_abi(void) { return KVMELD_C_ABI; }

char const* kvmeld_version(void) { return made_once<version>(); }

char const* kvmeld_problem(void) { return kvmeld_library::problem(); }

char const* kvmeld_policies(void) { return made_once<list_of_policies>(); }

}  // extern "C"
