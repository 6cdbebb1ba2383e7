/* The engine in C before kvmeld: engine.c is the same file with the edits that merging needs. */
#include "binary16.h"
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t slots(token_major_shape const* s) { return (size_t)s->layers * s->capacity * s->kv_heads; }

/* Where the row of a head lies. */
static size_t row(token_major_shape const* s, uint32_t layer, uint32_t slot, uint32_t head) {
  return (((size_t)layer * s->capacity + slot) * s->kv_heads + head) * s->head_dim;
}

int token_major_create(token_major_engine* e, token_major_shape shape, token_major_layers layers, void* model,
                       char const* policy, kvmeld_budget when_full) {
  size_t const elements = slots(&shape) * shape.head_dim;
  (void)policy;
  (void)when_full;
  memset(e, 0, sizeof *e);
  e->shape = shape;
  e->layers = layers;
  e->model = model;
  e->keys = calloc(elements, sizeof *e->keys);
  e->values = calloc(elements, sizeof *e->values);
  e->weights = calloc(shape.capacity, sizeof *e->weights);
  int failed = e->keys == NULL || e->values == NULL || e->weights == NULL;
  if (failed) token_major_destroy(e);
  return failed;
}

void token_major_destroy(token_major_engine* e) {
  free(e->keys);
  free(e->values);
  free(e->weights);
  memset(e, 0, sizeof *e);
}

float const* token_major_forward(token_major_engine* e, int token, uint32_t pos) {
  if (pos >= e->shape.capacity) return NULL;
  e->tokens = pos + 1;
  return e->layers(e->model, e, token, pos);
}

void token_major_attend(token_major_engine* e, uint32_t layer, float const* q, float const* k, float const* v,
                        float* out) {
  token_major_shape const* s = &e->shape;
  uint32_t const d = s->head_dim;
  float const scale = 1.0f / sqrtf((float)d);
  for (uint32_t kv_head = 0; kv_head < s->kv_heads; ++kv_head) {
    uint32_t const length = e->tokens;
    uint16_t* const new_key = e->keys + row(s, layer, length - 1, kv_head);
    uint16_t* const new_value = e->values + row(s, layer, length - 1, kv_head);
    for (uint32_t c = 0; c < d; ++c) {
      new_key[c] = to_half(k[kv_head * d + c]);
      new_value[c] = to_half(v[kv_head * d + c]);
    }
    for (uint32_t head = kv_head * s->group; head < (kv_head + 1) * s->group; ++head) {
      float const* const query = q + (size_t)head * d;
      float* const result = out + (size_t)head * d;
      for (uint32_t slot = 0; slot < length; ++slot) {
        uint16_t const* const key = e->keys + row(s, layer, slot, kv_head);
        float product = 0.0f;
        for (uint32_t c = 0; c < d; ++c) product += query[c] * from_half(key[c]);
        e->weights[slot] = product * scale;
      }
      float most = e->weights[0], sum = 0.0f;
      for (uint32_t slot = 1; slot < length; ++slot) {
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
    }
  }
}

static int max_likely(float const* logits, int vocab) {
  int best = 0;
  for (int i = 1; i < vocab; ++i) best = logits[i] > logits[best] ? i : best;
  return best;
}

int token_major_generate(token_major_engine* e, int vocab, int const* prompt, int prompt_tokens, int steps,
                         int* out) {
  int token = prompt[0];
  for (int pos = 0; pos < steps; ++pos) {
    float const* const logits = token_major_forward(e, token, (uint32_t)pos);
    if (logits == NULL) return 1;
    token = pos + 1 < prompt_tokens ? prompt[pos + 1] : max_likely(logits, vocab);
    out[pos] = token;
  }
  return 0;
}

int token_major_compress(token_major_engine* e, kvmeld_budget budget) {
  (void)e;
  (void)budget;
  return 1;
}

uint32_t token_major_length(token_major_engine const* e, uint32_t layer, uint32_t kv_head) {
  (void)layer;
  (void)kv_head;
  return e->tokens;
}

char const* token_major_problem(void) { return ""; }
