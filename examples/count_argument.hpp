// A number on the command line of a small program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// Argument `i` as a whole number from `least` to `most`; `otherwise` if it is not given. Any other text ends
/// the program with a sentence and status 2.
inline std::uint32_t count_argument(int count, char** arguments, int i, std::uint32_t otherwise,
                                    std::uint32_t least, std::uint32_t most) {
  if (i >= count) return otherwise;
  std::uint64_t number = 0;
  char const* at = arguments[i];
  for (; *at >= '0' && *at <= '9' && number <= most; ++at)
    number = 10 * number + static_cast<std::uint64_t>(*at - '0');
  if (at == arguments[i] || *at != '\0' || number < least || number > most) {
    std::fprintf(stderr, "%s: argument %d is '%s'; it must be a whole number from %u to %u\n", arguments[0],
                 i, arguments[i], least, most);
    std::exit(2);
  }
  return static_cast<std::uint32_t>(number);
}
