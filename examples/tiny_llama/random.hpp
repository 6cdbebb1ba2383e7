// A small random generator whose numbers are the same with every standard library.
#pragma once

#include <cstdint>

namespace tiny_llama {

/// splitmix64 (Steele, Lea and Flood, 2014): a counter and a bijective mix, so any seed is a good one.
class splitmix64 {
public:
  explicit splitmix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// A whole number in [0, count); count >= 1. The bias of the remainder is below count / 2^64.
  std::uint64_t below(std::uint64_t count) { return (*this)() % count; }

  /// A number in [0, 1).
  double unit() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }

private:
  std::uint64_t state_;
};

}  // namespace tiny_llama
