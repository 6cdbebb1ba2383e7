#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float from_half(uint16_t h) {
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
static uint16_t to_half(float x) {
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

static size_t slots(kvmeld_bridge_shape const* s) { return (size_t)s->layers * s->capacity * s->kv_heads; }

/* Where the row of a head lies. */
static size_t row(kvmeld_bridge_shape const* s, uint32_t layer, uint32_t slot, uint32_t head) {
  return (((size_t)layer * s->capacity + slot) * s->kv_heads + head) * s->head_dim;
}

int token_major_create(token_major_engine* e, kvmeld_bridge_shape shape, char const* policy) {
  size_t const elements = slots(&shape) * shape.head_dim;
  size_t const heads = (size_t)shape.layers * shape.kv_heads * shape.group;
  memset(e, 0, sizeof *e);
  e->shape = shape;
  e->keys = calloc(elements, sizeof *e->keys);
  e->values = calloc(elements, sizeof *e->values);
  e->queries = calloc(heads * shape.head_dim, sizeof *e->queries);
  e->log_sum_exps = calloc(heads, sizeof *e->log_sum_exps);
  e->weights = calloc(shape.capacity, sizeof *e->weights);
  if (policy != NULL && e->keys != NULL && e->values != NULL)
    e->kv = kvmeld_bridge_create(shape, e->keys, e->values, policy);
  if (e->keys != NULL && e->values != NULL && e->queries != NULL && e->log_sum_exps != NULL &&
      e->weights != NULL && (policy == NULL || e->kv != NULL))
    return 0;
  token_major_destroy(e);
  return 1;
}

void token_major_destroy(token_major_engine* e) {
  kvmeld_bridge_destroy(e->kv);
  free(e->keys);
  free(e->values);
  free(e->queries);
  free(e->log_sum_exps);
  free(e->weights);
  memset(e, 0, sizeof *e);
}

uint32_t token_major_tokens(token_major_engine const* e) {
  return e->kv != NULL ? kvmeld_bridge_tokens(e->kv) : e->tokens;
}

int token_major_begin(token_major_engine* e) {
  if (e->kv != NULL) return kvmeld_bridge_append(e->kv);
  return e->tokens++ < e->shape.capacity ? 0 : 1;
}

void token_major_attend(token_major_engine* e, uint32_t layer, float const* q, float const* k, float const* v,
                        float* out) {
  kvmeld_bridge_shape const* s = &e->shape;
  uint32_t const d = s->head_dim, heads = s->kv_heads * s->group;
  float const scale = 1.0f / sqrtf((float)d);
  memcpy(e->queries + (size_t)layer * heads * d, q, (size_t)heads * d * sizeof *q);
  for (uint32_t kv_head = 0; kv_head < s->kv_heads; ++kv_head) {
    /* Before kvmeld both were one for all: the number of tokens, and no bias. */
    uint32_t const length = e->kv != NULL ? kvmeld_bridge_length(e->kv, layer, kv_head) : e->tokens;
    float const* const bias = e->kv != NULL ? kvmeld_bridge_bias(e->kv, layer, kv_head) : NULL;
    uint16_t* const new_key = e->keys + row(s, layer, length - 1, kv_head);
    uint16_t* const new_value = e->values + row(s, layer, length - 1, kv_head);
    for (uint32_t c = 0; c < d; ++c) {
      new_key[c] = to_half(k[kv_head * d + c]);
      new_value[c] = to_half(v[kv_head * d + c]);
    }
    for (uint32_t head = kv_head * s->group; head < (kv_head + 1) * s->group; ++head) {
      float const* const query = q + (size_t)head * d;
      float* const result = out + (size_t)head * d;
      float most = -3.0e38f, sum = 0.0f;
      for (uint32_t slot = 0; slot < length; ++slot) {
        uint16_t const* const key = e->keys + row(s, layer, slot, kv_head);
        float product = 0.0f;
        for (uint32_t c = 0; c < d; ++c) product += query[c] * from_half(key[c]);
        e->weights[slot] = product * scale;
        if (bias != NULL) e->weights[slot] += bias[slot];
        if (e->weights[slot] > most) most = e->weights[slot];
      }
      memset(result, 0, d * sizeof *result);
      for (uint32_t slot = 0; slot < length; ++slot) {
        uint16_t const* const value = e->values + row(s, layer, slot, kv_head);
        float const weight = expf(e->weights[slot] - most);
        sum += weight;
        for (uint32_t c = 0; c < d; ++c) result[c] += weight * from_half(value[c]);
      }
      for (uint32_t c = 0; c < d; ++c) result[c] /= sum;
      e->log_sum_exps[(size_t)layer * heads + head] = most + logf(sum);
    }
  }
}

int token_major_end(token_major_engine* e) {
  return e->kv != NULL ? kvmeld_bridge_commit(e->kv, e->queries, e->log_sum_exps) : 0;
}

int token_major_compress(token_major_engine* e, uint32_t entries) {
  return e->kv != NULL ? kvmeld_bridge_compress(e->kv, entries) : 1;
}
