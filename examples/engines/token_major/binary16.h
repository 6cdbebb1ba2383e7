/* Numbers of binary16 as their 16 bits. */
#ifndef TOKEN_MAJOR_BINARY16_H
#define TOKEN_MAJOR_BINARY16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float from_half(uint16_t h) {
  uint32_t const sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  float x;
  if (magnitude < 0x0400u) {
    x = (float)magnitude * 0x1p-24f;
  } else {
    uint32_t const bits = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
    memcpy(&x, &bits, sizeof x);
  }
  return sign != 0 ? -x : x;
}

/* To nearest, ties to even. */
static inline uint16_t to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t const sign = bits >> 16 & 0x8000u;
  float const size = fabsf(x);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u); /* NaN */
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) return (uint16_t)(sign | (uint32_t)lrintf(size * 0x1p24f));
  magnitude += 0x0fffu + (magnitude >> 13 & 1u);
  return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

#endif
