// How a function of kvmeld.h fails: with a status, and with a text that kvmeld_problem tells.
#pragma once

#include <kvmeld/core/error.hpp>
#include <kvmeld/kvmeld.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace kvmeld_library {

/// A refusal with a status of its own.
class failure : public std::exception {
public:
  failure(kvmeld_status status, std::string text) : status_(status), text_(std::move(text)) {}
  kvmeld_status status() const { return status_; }
  char const* what() const noexcept override { return text_.c_str(); }

private:
  kvmeld_status status_;
  std::string text_;
};

/// Refuses an argument, in the one form that refusals have.
template <class Value, class... Condition>
[[noreturn]] void refuse(char const* call, std::string const& argument, Value const& value,
                         Condition const&... condition) {
  throw failure(KVMELD_INVALID_ARGUMENT, kvmeld::refusal(call, argument, value, condition...));
}
/// Refuses a null pointer.
inline void require(void const* pointer, char const* call, char const* argument, char const* condition) {
  if (pointer == nullptr) refuse(call, argument, "null", condition);
}

/// The text of this thread's last call. Neither function throws.
void set_problem(char const* text) noexcept;
char const* problem() noexcept;

/// Runs the body of a function. What it throws becomes the status and the text.
template <class Body> kvmeld_status guarded(Body body) noexcept {
  set_problem("");
  try {
    body();
    return KVMELD_OK;
  } catch (failure const& refused) {
    set_problem(refused.what());
    return refused.status();
  } catch (kvmeld::invalid_argument const& refused) {
    set_problem(refused.what());
    return KVMELD_INVALID_ARGUMENT;
  } catch (std::bad_alloc const&) {
    set_problem("kvmeld: memory of the host is used up; it must be enough for this call");
    return KVMELD_NO_MEMORY;
  } catch (std::exception const& defect) {
    set_problem(defect.what());
    return KVMELD_INTERNAL;
  } catch (...) {
    set_problem("kvmeld: an exception is of unknown type; it must be one of the standard library");
    return KVMELD_INTERNAL;
  }
}

}  // namespace kvmeld_library
