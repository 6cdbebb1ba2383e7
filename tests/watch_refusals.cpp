// Holds every refusal of the library that a test meets against the rule: the linker sends each throw here
// first.
#include <atomic>
#include <cstring>
#include <exception>
#include <string>
#include <typeinfo>

#include <doctest/doctest.h>

#include "support/refusal_rule.hpp"

namespace {

std::atomic<std::uint64_t> met{0};

// By name: the type's inline namespace differs between files that are compiled differently.
bool is_refusal(std::type_info const& type) {
  return std::strstr(type.name(), "6kvmeld") != nullptr &&
         std::strstr(type.name(), "16invalid_argument") != nullptr;
}

}  // namespace

std::uint64_t support::refusals_met() { return met; }

extern "C" {
[[noreturn]] void __real___cxa_throw(void* thrown, void* type, void (*destroy)(void*));

// GNU ld's --wrap=__cxa_throw calls this for every throw.
[[noreturn]] void __wrap___cxa_throw(void* thrown, void* type, void (*destroy)(void*)) {
  if (is_refusal(*static_cast<std::type_info const*>(type))) {
    ++met;
    std::string const text = static_cast<std::exception const*>(thrown)->what();
    if (std::string const problem = support::broken_rule(text);
        !problem.empty() && doctest::is_running_in_test) {
      ADD_FAIL_CHECK_AT(__FILE__, __LINE__, "a refusal breaks the rule: " << problem << ": " << text);
    }
  }
  __real___cxa_throw(thrown, type, destroy);
}
}
