// Choices read from the bytes of a fuzzer, with the calls of support::dice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace fuzz {

/// Draws from bytes, so that a change of one byte changes one choice. Small ranges take one byte. Behind the
/// last byte every draw is 0: loops end when `empty()`.
class choices {
public:
  choices(std::uint8_t const* data, std::size_t size) : at_(data), end_(data + size) {}

  bool empty() const { return at_ == end_; }
  std::uint64_t next() { return bytes(8); }
  std::uint32_t below(std::uint32_t n) {
    int const count = n <= 0x100 ? 1 : n <= 0x10000 ? 2 : 4;
    return static_cast<std::uint32_t>(bytes(count)) % n;
  }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  double uniform() { return static_cast<double>(bytes(1)) / 256; }
  bool chance(double p) { return uniform() < p; }
  template <class T> T const& pick(std::vector<T> const& list) {
    return list[below(static_cast<std::uint32_t>(list.size()))];
  }
  template <class T, std::size_t N> T const& pick(T const (&list)[N]) {
    return list[below(static_cast<std::uint32_t>(N))];
  }

private:
  std::uint64_t bytes(int count) {
    std::uint64_t out = 0;
    for (int i = 0; i < count && at_ != end_; ++i) out |= std::uint64_t{*at_++} << (8 * i);
    return out;
  }
  std::uint8_t const *at_, *end_;
};

/// Ends the program as a crash does: the driver, or libFuzzer, then writes the input to a file.
[[noreturn]] inline void fail(std::string const& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}
inline void require(bool holds, char const* what) {
  if (!holds) fail(what);
}

}  // namespace fuzz
