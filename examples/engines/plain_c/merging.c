/* The half of merging.h that makes the calls of kvmeld.h. */
#include "merging.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__FLT16_MANT_DIG__)
__extension__ typedef _Float16 half_row; /* not of ISO C */
#endif

int merging_is_on = 0;

static struct {
  kvmeld_cache cache;
  size_t layers, heads, kv_heads, d, slots; /* of the model; d channels per head */
  uint32_t* lengths;                        /* (layer, KV head): entries */
  float *bias, *log_sum_exps;               /* (layer, head, slot); (head) */
  kvmeld_element element;                   /* of the two: */
  void *keys, *values;                      /* the engine's */
  float *key, *value;                       /* room for the rows of a new token */
  int merged;                               /* whether entries may stand for several tokens */
  int refused;                              /* whether `problem` says why */
  char problem[512];
} m;

static int refuse(char const* text) {
  size_t const length = strlen(text), most = sizeof m.problem - 1;
  memmove(m.problem, text, length < most ? length : most);
  m.problem[length < most ? length : most] = '\0';
  m.refused = 1;
  return 1;
}

static int refused(kvmeld_status status) { return status == KVMELD_OK ? 0 : refuse(kvmeld_problem()); }

char const* merging_problem(void) { return m.refused ? m.problem : NULL; }

static float* bias_of(size_t layer, size_t head) { return m.bias + (layer * m.heads + head) * m.slots; }

static size_t length_of(size_t layer, size_t kv_head) { return m.lengths[layer * m.kv_heads + kv_head]; }

float* merging_key(void) { return m.key; }
float* merging_value(void) { return m.value; }

int merging_length(int layer, int head) {
  return (int)length_of((size_t)layer, (size_t)head / (m.heads / m.kv_heads));
}

static int create(char const* policy) {
#if !defined(__FLT16_MANT_DIG__)
  if (m.element == KVMELD_FLOAT16)
    return refuse("merging_create: element is KVMELD_FLOAT16; it must be KVMELD_FLOAT32, because this "
                  "compiler has no _Float16");
#endif
  if (m.element != KVMELD_FLOAT16 && m.element != KVMELD_FLOAT32)
    return refuse("merging_create: element is another one; it must be KVMELD_FLOAT32 or KVMELD_FLOAT16");
  m.lengths = calloc(m.layers * m.kv_heads, sizeof *m.lengths);
  m.bias = calloc(m.layers * m.heads * m.slots, sizeof *m.bias);
  m.log_sum_exps = calloc(m.heads, sizeof *m.log_sum_exps);
  m.key = calloc(m.kv_heads * m.d, sizeof *m.key);
  m.value = calloc(m.kv_heads * m.d, sizeof *m.value);
  if (m.lengths == NULL || m.bias == NULL || m.log_sum_exps == NULL || m.key == NULL || m.value == NULL)
    return refuse("merging_create: there is no memory for the log degrees");
  int64_t const d = (int64_t)m.d, slot = d * (int64_t)m.kv_heads, layer = slot * (int64_t)m.slots;
  kvmeld_tensor const k = {m.keys, layer, 0, d, slot, 1}, v = {m.values, layer, 0, d, slot, 1};
  kvmeld_options o;
  kvmeld_options_init(&o, sizeof o);
  o.policy = policy;
  o.layers = (uint32_t)m.layers;
  o.sequences = 1;
  o.kv_heads = (uint32_t)m.kv_heads;
  o.queries_per_kv_head = (uint32_t)(m.heads / m.kv_heads);
  o.key_dim = o.value_dim = (uint32_t)m.d;
  o.capacity = (uint32_t)m.slots;
  o.element = m.element;
  o.threads = 1;
  return refused(kvmeld_create(&o, &k, &v, 1, &m.cache)) || refused(kvmeld_open(m.cache, 0, 0, 0));
}

int merging_create(int layers, int heads, int kv_heads, int head_dim, int slots, kvmeld_element element,
                   void* keys, void* values, char const* policy) {
  merging_destroy();
  if (layers < 1 || kv_heads < 1 || heads < kv_heads || heads % kv_heads != 0 || head_dim < 1 || slots < 1)
    return refuse("merging_create: a number of the model is out of range; each must be at least 1, and "
                  "kv_heads divide heads");
  m.layers = (size_t)layers;
  m.heads = (size_t)heads;
  m.kv_heads = (size_t)kv_heads;
  m.d = (size_t)head_dim;
  m.slots = (size_t)slots;
  m.element = element;
  m.keys = keys;
  m.values = values;
  merging_is_on = create(policy) == 0;
  if (merging_is_on) return 0;
  char told[sizeof m.problem];
  memcpy(told, m.problem, sizeof told);
  merging_destroy();
  return refuse(told);
}

void merging_destroy(void) {
  if (m.cache.id != 0) kvmeld_destroy(m.cache);
  free(m.lengths);
  free(m.bias);
  free(m.log_sum_exps);
  free(m.key);
  free(m.value);
  memset(&m, 0, sizeof m);
  merging_is_on = 0;
}

int merging_begin(int pos) {
  uint32_t const sequence = 0, one = 1, at = (uint32_t)pos;
  uint32_t tokens = 0;
  if (pos < 0) return refuse("merging_begin: pos is negative; it must be a position");
  if (pos == 0) m.refused = 0;
  if (refused(kvmeld_tokens(m.cache, 0, &tokens))) return 1;
  if (pos == 0 && tokens != 0) {
    if (refused(kvmeld_close(m.cache, 0)) || refused(kvmeld_open(m.cache, 0, 0, 0))) return 1;
    m.merged = 0;
  } else if (at != tokens) {
    if (refused(kvmeld_truncate(m.cache, 0, at))) return 1;
  }
  return refused(kvmeld_append(m.cache, &sequence, &one, 1)) ||
         refused(kvmeld_commit(m.cache, &sequence, &one, 1)) ||
         refused(kvmeld_lengths(m.cache, 0, m.lengths));
}

void merging_store(int layer, float const* key, float const* value) {
  for (size_t head = 0; head < m.kv_heads; ++head) {
    size_t const length = length_of((size_t)layer, head);
    if (length == 0) continue; /* no token has begun */
    size_t const from = head * m.d, to = (((size_t)layer * m.slots + length - 1) * m.kv_heads + head) * m.d;
    for (size_t c = 0; c < m.d; ++c) {
#if defined(__FLT16_MANT_DIG__)
      if (m.element == KVMELD_FLOAT16) {
        ((half_row*)m.keys)[to + c] = (half_row)key[from + c];
        ((half_row*)m.values)[to + c] = (half_row)value[from + c];
        continue;
      }
#endif
      ((float*)m.keys)[to + c] = key[from + c];
      ((float*)m.values)[to + c] = value[from + c];
    }
  }
}

float merging_logits(int layer, int head, float* logits) {
  int const n = merging_length(layer, head);
  if (n == 0) return 0.0f;
  float const* const bias = bias_of((size_t)layer, (size_t)head);
  for (int t = 0; m.merged && t < n; ++t) logits[t] += bias[t];
  float most = logits[0], sum = 0.0f;
  for (int t = 1; t < n; ++t) most = logits[t] > most ? logits[t] : most;
  for (int t = 0; t < n; ++t) sum += expf(logits[t] - most);
  m.log_sum_exps[head] = most + logf(sum);
  return most;
}

int merging_observe(int layer, float const* queries) {
  return refused(kvmeld_observe(m.cache, (uint32_t)layer, 0, 1, KVMELD_FLOAT32, queries, (int64_t)m.d, 0,
                                m.log_sum_exps, 1, 1.0f / sqrtf((float)m.d)));
}

int merging_compress(kvmeld_budget budget) {
  uint32_t const sequence = 0;
  if (refused(kvmeld_compress(m.cache, &sequence, 1, budget)) ||
      refused(kvmeld_lengths(m.cache, 0, m.lengths)))
    return 1;
  m.merged = 1;
  for (size_t layer = 0; layer < m.layers; ++layer) {
    if (refused(kvmeld_log_degrees(m.cache, (uint32_t)layer, 0, bias_of(layer, 0), (int64_t)m.slots,
                                   (uint32_t)m.slots)))
      return 1;
    /* Slots behind the entries are masked there. Tokens that come to lie in them stand for one token. */
    for (size_t head = 0; head < m.heads; ++head) {
      float* const bias = bias_of(layer, head);
      for (size_t slot = length_of(layer, head / (m.heads / m.kv_heads)); slot < m.slots; ++slot)
        bias[slot] = 0.0f;
    }
  }
  return 0;
}
