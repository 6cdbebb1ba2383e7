// Sizes that no memory holds, and numbers of threads that no machine has.
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

namespace size_limits_cases {

TEST_CASE("an arena that is asked for more than 64 bits count says so") {
  constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
  // 2^61 + 1 doubles are 8 bytes more than 2^64.
  for (std::size_t count : {(std::size_t{1} << 61) + 1, all / 8, all}) {
    kvmeld::arena a;
    CHECK(a.take<double>(count) == nullptr);
    CHECK(a.overflowed());
    CHECK(a.bytes() == all);
    a.take<double>(1);
    CHECK(a.bytes() == all);
  }
  kvmeld::arena two;  // each of them can be counted, both together cannot
  two.take<char>(all / 4 + 1);
  CHECK_FALSE(two.overflowed());
  two.take<char>(all / 4 + 1);
  CHECK(two.overflowed());
  alignas(64) char block[128];
  kvmeld::arena carved(block, sizeof block);
  CHECK(carved.take<double>((std::size_t{1} << 61) + 1) == nullptr);
  CHECK(carved.overflowed());
}

TEST_CASE("a host executor takes as many threads as a machine may have") {
  auto const text = [](std::uint32_t threads) {
    try {
      kvmeld::host_executor const executor(threads);
    } catch (kvmeld::invalid_argument const& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(text(4096).empty());
  CHECK(text(4097) == "host_executor: threads is 4097; it must be 1 to 4096");
  CHECK(text(0xffffffffu) == "host_executor: threads is 4294967295; it must be 1 to 4096");
}

TEST_CASE("numbers in messages are whole where they are whole") {
  CHECK(kvmeld::message(4294967296.0, " ", 1e6f, " ", -0.0, " ", 0.25, " ", std::uint8_t{7}, " ", true) ==
        "4294967296 1000000 0 0.25 7 true");
  CHECK(kvmeld::message(1e30) == "1e+30");
  CHECK(kvmeld::message(-std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(kvmeld::in_quotes(std::string("a\n\0b\x80", 5)) == "\"a??b?\"");
  CHECK(kvmeld::in_quotes(std::string(100, 'x')) == '"' + std::string(80, 'x') + "...\"");
  CHECK(kvmeld::message(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(kvmeld::message(std::string("a\0b", 3), 'c') == std::string("a\0bc", 4));
}

}  // namespace size_limits_cases
