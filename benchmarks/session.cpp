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
  std::string const text = label(name, of);
  auto const found = [&](std::string const& filter) { return text.find(filter) != std::string::npos; };
  return options_.filters.empty() || std::any_of(options_.filters.begin(), options_.filters.end(), found);
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
