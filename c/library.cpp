// The functions of kvmeld.h about the library itself.
#include "failure.hpp"

#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/kvmeld.h>

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

}  // namespace

extern "C" {

uint32_t kvmeld_abi(void) { return KVMELD_C_ABI; }

char const* kvmeld_version(void) {
  try {
    static std::string const& text = *new std::string(version());  // never destroyed: programs may hold it
    return text.c_str();
  } catch (...) {
    return "";
  }
}

char const* kvmeld_problem(void) { return kvmeld_library::problem(); }

char const* kvmeld_policies(void) {
  try {
    static std::string const& text = *new std::string(list_of_policies());
    return text.c_str();
  } catch (...) {
    return "";
  }
}

}  // extern "C"
