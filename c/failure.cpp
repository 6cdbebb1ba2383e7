#include "failure.hpp"

#include <string>

namespace kvmeld_library {

namespace {

thread_local std::string text;
thread_local char const* shown = "";

}  // namespace

void set_problem(char const* what) noexcept {
  try {
    if (*what == '\0') {
      shown = "";
      return;
    }
    text = what;
    shown = text.c_str();
  } catch (...) {
    shown = "kvmeld: memory for the text of a refusal is used up; it must be some hundred bytes";
  }
}
char const* problem() noexcept { return shown; }

}  // namespace kvmeld_library
