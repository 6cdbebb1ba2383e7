/* Whether stdout took what a program printed. Every program asks at its end, because the output may be a full
 * disk, a closed pipe or nothing at all, and a status of 0 would hide that. C and C++. */
#pragma once

#include <stdio.h>

/* Writes out what stdout still holds. Returns 1, or 0 and says on stderr that output was lost. std::cout
 * counts, which hands all it gets to stdout. */
static inline int all_printed(void) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return 1;
  fputs("stdout: not all of the output could be written\n", stderr);
  return 0;
}
