#include "session.hpp"

#include <algorithm>
#include <iostream>

namespace kvmeld_bench {

namespace {

std::string label(std::string const& name, input const& of) {
  return name + " " + std::to_string(of.n) + " " + of.dtype;
}

}  // namespace

bool session::wants(std::string const& name, input const& of) const {
  return label(name, of).find(options_.filter) != std::string::npos;
}

bool session::wants_any(std::initializer_list<char const*> stages, std::string const& suffix,
                        input const& of) const {
  return std::any_of(stages.begin(), stages.end(), [&](char const* s) { return wants(s + suffix, of); });
}

void session::announce(std::string const& name, input const& of) const {
  std::cerr << "timing " << label(name, of) << std::endl;
}

void session::remember(memory_row const& figure) {
  for (memory_row& known : memory_) {
    if (known.name != figure.name) continue;
    known.value = std::max(known.value, figure.value);
    return;
  }
  memory_.push_back(figure);
}

}  // namespace kvmeld_bench
