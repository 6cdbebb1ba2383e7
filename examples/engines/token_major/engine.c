/* The engine in C with kvmeld. before.c is the same engine without it: the difference of the two files is the
 * work. */
#include "engine.h"
#include "binary16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t slots(token_major_shape const* s) { return (size_t)s->layers * s->capacity * s->kv_heads; }

/* Where the row of a head lies. */
static size_t row(token_major_shape const* s, uint32_t layer, uint32_t slot, uint32_t head) {
  return (((size_t)layer * s->capacity + slot) * s->kv_heads + head) * s->head_dim;
}

/* What is added to the logits of a KV head's entries; its query heads have equal rows. */
static float* bias_of(token_major_engine const* e, uint32_t layer, uint32_t kv_head) {
  token_major_shape const* s = &e->shape;
  return e->bias + ((size_t)layer * s->kv_heads + kv_head) * s->group * s->capacity;
}

/* A cache on the engine's own tensors, with one sequence. */
static int create_cache(token_major_engine* e, char const* policy) {
  int64_t const d = e->shape.head_dim, slot = d * e->shape.kv_heads, layer = slot * e->shape.capacity;
  kvmeld_tensor const keys = {e->keys, layer, 0, d, slot, 1}, values = {e->values, layer, 0, d, slot, 1};
  kvmeld_options o;
  kvmeld_options_init(&o, sizeof o);
  o.policy = policy;
  o.layers = e->shape.layers;
  o.sequences = 1;
  o.kv_heads = e->shape.kv_heads;
  o.queries_per_kv_head = e->shape.group;
  o.key_dim = o.value_dim = e->shape.head_dim;
  o.capacity = e->shape.capacity;
  o.element = KVMELD_FLOAT16;
  o.threads = 1;
  return kvmeld_create(&o, &keys, &values, 1, &e->kv) != KVMELD_OK ||
         kvmeld_open(e->kv, 0, 0, 0) != KVMELD_OK;
}

/* Adds an entry for the token at `pos`. Position 0 begins a new text, and an earlier position than the next
   one goes back to it. */
static int begin(token_major_engine* e, uint32_t pos) {
  uint32_t const sequence = 0, one = 1;
  uint32_t tokens, longest;
  if (kvmeld_tokens(e->kv, 0, &tokens) != KVMELD_OK) return 1;
  if (pos == 0 && tokens != 0) {
    if (kvmeld_close(e->kv, 0) != KVMELD_OK || kvmeld_open(e->kv, 0, 0, 0) != KVMELD_OK) return 1;
    e->merged = 0;
  } else if (pos != tokens && kvmeld_truncate(e->kv, 0, pos) != KVMELD_OK) {
    return 1;
  }
  if (e->when_full.entries != 0 || e->when_full.ratio != 0) {
    if (kvmeld_longest(e->kv, 0, &longest) != KVMELD_OK) return 1;
    if (longest == e->shape.capacity && token_major_compress(e, e->when_full) != 0) return 1;
  }
  /* At once: a token is read for good, and only what is committed can be observed. */
  return kvmeld_append(e->kv, &sequence, &one, 1) != KVMELD_OK ||
         kvmeld_commit(e->kv, &sequence, &one, 1) != KVMELD_OK ||
         kvmeld_lengths(e->kv, 0, e->lengths) != KVMELD_OK;
}

int token_major_create(token_major_engine* e, token_major_shape shape, token_major_layers layers, void* model,
                       char const* policy, kvmeld_budget when_full) {
  size_t const elements = slots(&shape) * shape.head_dim;
  memset(e, 0, sizeof *e);
  e->shape = shape;
  e->layers = layers;
  e->model = model;
  e->keys = calloc(elements, sizeof *e->keys);
  e->values = calloc(elements, sizeof *e->values);
  e->weights = calloc(shape.capacity, sizeof *e->weights);
  int failed = e->keys == NULL || e->values == NULL || e->weights == NULL;
  if (policy != NULL && !failed) {
    size_t const heads = (size_t)shape.kv_heads * shape.group;
    e->when_full = when_full;
    e->lengths = calloc((size_t)shape.layers * shape.kv_heads, sizeof *e->lengths);
    e->log_sum_exps = calloc(heads, sizeof *e->log_sum_exps);
    e->bias = calloc(shape.layers * heads * shape.capacity, sizeof *e->bias);
    failed = e->lengths == NULL || e->log_sum_exps == NULL || e->bias == NULL || create_cache(e, policy);
  }
  if (failed) token_major_destroy(e);
  return failed;
}

void token_major_destroy(token_major_engine* e) {
  if (e->kv.id != 0) kvmeld_destroy(e->kv);
  free(e->lengths);
  free(e->log_sum_exps);
  free(e->bias);
  free(e->keys);
  free(e->values);
  free(e->weights);
  memset(e, 0, sizeof *e);
}

float const* token_major_forward(token_major_engine* e, int token, uint32_t pos) {
  if (e->kv.id != 0 && begin(e, pos) != 0) return NULL;
  if (e->kv.id == 0 && pos >= e->shape.capacity) return NULL;
  e->tokens = pos + 1;
  return e->layers(e->model, e, token, pos);
}

void token_major_attend(token_major_engine* e, uint32_t layer, float const* q, float const* k, float const* v,
                        float* out) {
  token_major_shape const* s = &e->shape;
  uint32_t const d = s->head_dim;
  float const scale = 1.0f / sqrtf((float)d);
  for (uint32_t kv_head = 0; kv_head < s->kv_heads; ++kv_head) {
    /* Before kvmeld the number of tokens, the same for all heads. */
    uint32_t const length = token_major_length(e, layer, kv_head);
    float const* const bias = e->merged ? bias_of(e, layer, kv_head) : NULL;
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
      /* A loop of its own: the one over the products stays as it was. */
      if (bias != NULL) {
        for (uint32_t slot = 0; slot < length; ++slot) e->weights[slot] += bias[slot];
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
      if (e->kv.id != 0) e->log_sum_exps[head] = most + logf(sum);
    }
  }
  if (e->kv.id != 0) kvmeld_observe(e->kv, layer, 0, 1, KVMELD_FLOAT32, q, d, 0, e->log_sum_exps, 1, scale);
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
  uint32_t const sequence = 0, heads = e->shape.kv_heads * e->shape.group, capacity = e->shape.capacity;
  if (e->kv.id == 0 || kvmeld_compress(e->kv, &sequence, 1, budget) != KVMELD_OK ||
      kvmeld_lengths(e->kv, 0, e->lengths) != KVMELD_OK)
    return 1;
  e->merged = 1;
  for (uint32_t layer = 0; layer < e->shape.layers; ++layer) {
    float* const rows = bias_of(e, layer, 0);
    if (kvmeld_log_degrees(e->kv, layer, 0, rows, capacity, capacity) != KVMELD_OK) return 1;
    /* Slots behind the entries are masked there. Tokens that come to lie in them stand for one token. */
    for (uint32_t head = 0; head < heads; ++head) {
      for (uint32_t slot = token_major_length(e, layer, head / e->shape.group); slot < capacity; ++slot)
        rows[(size_t)head * capacity + slot] = 0.0f;
    }
  }
  return 0;
}

uint32_t token_major_length(token_major_engine const* e, uint32_t layer, uint32_t kv_head) {
  return e->kv.id != 0 ? e->lengths[layer * e->shape.kv_heads + kv_head] : e->tokens;
}

char const* token_major_problem(void) { return kvmeld_problem(); }
