/* The life of a few sequences that a C program leads through kvmeld.h, and expected.cpp with the C++
   template: the numbers in it, and what is looked at along the way. */
#ifndef KVMELD_TESTS_C_LIFE_H
#define KVMELD_TESTS_C_LIFE_H

#include <kvmeld/kvmeld.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  LAYERS = 2,
  SEQUENCES = 3,
  KV_HEADS = 2,
  GROUP = 2,
  QUERY_HEADS = KV_HEADS * GROUP,
  KEY_DIM = 16,
  VALUE_DIM = 24,
  CAPACITY = 224,
  QUERIES = 16,
  FROZEN = 4,
  CHECKPOINTS = 8
};

/* The policies that lives are led with. */
enum {
  LIFE_SNAPKV,          /* "snapkv window=16 recents=16" */
  LIFE_CHELSEA,         /* "chelsea" */
  LIFE_LEVERAGE_DROPKV, /* "leverage_dropkv" */
  LIFE_H2O,             /* "h2o", which sees rows of probabilities */
  LIFE_KVZAP,           /* "kvzap threshold=0.25", whose scores the program brings */
  LIFE_PARTS            /* parts, by their names */
};

/* All that can be asked about a sequence. Rows are the bits of elements. */
typedef struct checkpoint {
  uint32_t tokens, longest, warnings, lengths[LAYERS][KV_HEADS];
  float degrees[LAYERS][KV_HEADS][CAPACITY];
  int32_t positions[LAYERS][KV_HEADS][CAPACITY];
  float log_degrees[LAYERS][QUERY_HEADS][CAPACITY];
  uint32_t keys[LAYERS][KV_HEADS][CAPACITY][KEY_DIM];
  uint32_t values[LAYERS][KV_HEADS][CAPACITY][VALUE_DIM];
  float outputs[LAYERS][QUERY_HEADS][QUERIES][VALUE_DIM];
  float log_sums[LAYERS][QUERY_HEADS][QUERIES];
} checkpoint;

/* A number from -1 to 1 that depends on a place alone. */
static inline float number_at(uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t x = kind * 0x9e3779b9u + a * 0x85ebca6bu + b * 0xc2b2ae35u + c * 0x27d4eb2fu + d * 0x165667b1u;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  x *= 0x297a2d39u;
  x ^= x >> 15;
  return (float)(int32_t)(x >> 8) / 8388608.0f - 1.0f;
}
static inline float key_at(uint32_t layer, uint32_t head, uint32_t token, uint32_t channel) {
  /* Neighbours resemble each other, so that there is something to merge. */
  return number_at(1, layer, head, token / 3, channel) + 0.25f * number_at(2, layer, head, token, channel);
}
static inline float value_at(uint32_t layer, uint32_t head, uint32_t token, uint32_t channel) {
  return number_at(3, layer, head, token, channel);
}
static inline float query_at(uint32_t layer, uint32_t head, uint32_t token, uint32_t channel) {
  return 2.0f * number_at(4, layer, head, token, channel);
}
static inline float probability_at(uint32_t layer, uint32_t head, uint32_t row, uint32_t entry) {
  return 0.5f + 0.5f * number_at(5, layer, head, row, entry);
}
static inline float score_at(uint32_t layer, uint32_t head, uint32_t entry) {
  return number_at(6, layer, head, entry, 0);
}

/* What the template makes of the same life. */
void expected_life(int policy, kvmeld_element element, checkpoint out[CHECKPOINTS]);
/* A number as an element, and an element's bits. */
void write_element(kvmeld_element element, float x, void* to);
uint32_t bits_of_element(kvmeld_element element, void const* from);

#ifdef __cplusplus
}
#endif

#endif
