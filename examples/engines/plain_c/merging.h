/* kvmeld in an engine of plain C that has one sequence and reads one token at a time. The file that computes
 * the attention includes this one. docs/engines/llama2_c.md and calm.md say which lines call it. Rows lie as
 * (layer, slot, KV head, channel). MERGING_ROW is their type and MERGING_ELEMENT its name for kvmeld: float,
 * unless the engine says otherwise before the include. */
#include <kvmeld/kvmeld.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MERGING_ROW
#define MERGING_ROW float
#define MERGING_ELEMENT KVMELD_FLOAT32
#endif

static struct {
  kvmeld_cache cache;                         /* id 0: merging is off */
  uint32_t layers, heads, kv_heads, d, slots; /* of the model; d channels per head */
  uint32_t* lengths;                          /* (layer, KV head): entries */
  float *bias, *log_sum_exps;                 /* (layer, head, slot); (head) */
  MERGING_ROW *keys, *values;                 /* the engine's */
  float *key, *value;                         /* room for the rows of a new token */
  int merged;                                 /* whether entries may stand for several tokens */
} m;

static int merging(void) { return m.cache.id != 0; }

/* Ends the program if a call was refused. */
static void merging_expect(kvmeld_status status) {
  if (status == KVMELD_OK) return;
  fprintf(stderr, "%s\n", kvmeld_problem());
  exit(EXIT_FAILURE);
}

static float* merging_bias(uint32_t layer, uint32_t head) {
  return m.bias + ((size_t)layer * m.heads + head) * m.slots;
}

/* Entries of a query head. */
static uint32_t merging_length(uint32_t layer, uint32_t head) {
  return m.lengths[layer * m.kv_heads + head / (m.heads / m.kv_heads)];
}

/* A cache on the engine's tensors, whose capacity is `slots`. `policy`: as kvmeld_options.policy. */
static void merging_create(int layers, int heads, int kv_heads, int head_dim, int slots, MERGING_ROW* keys,
                           MERGING_ROW* values, char const* policy) {
  m.layers = (uint32_t)layers;
  m.heads = (uint32_t)heads;
  m.kv_heads = (uint32_t)kv_heads;
  m.d = (uint32_t)head_dim;
  m.slots = (uint32_t)slots;
  m.keys = keys;
  m.values = values;
  m.lengths = calloc((size_t)m.layers * m.kv_heads, sizeof *m.lengths);
  m.bias = calloc((size_t)m.layers * m.heads * m.slots, sizeof *m.bias);
  m.log_sum_exps = calloc(m.heads, sizeof *m.log_sum_exps);
  m.key = calloc((size_t)m.kv_heads * m.d, sizeof *m.key);
  m.value = calloc((size_t)m.kv_heads * m.d, sizeof *m.value);
  int64_t const d = m.d, slot = d * m.kv_heads, layer = slot * m.slots;
  kvmeld_tensor const k = {keys, layer, 0, d, slot, 1}, v = {values, layer, 0, d, slot, 1};
  kvmeld_options o;
  kvmeld_options_init(&o, sizeof o);
  o.policy = policy;
  o.layers = m.layers;
  o.sequences = 1;
  o.kv_heads = m.kv_heads;
  o.queries_per_kv_head = m.heads / m.kv_heads;
  o.key_dim = o.value_dim = m.d;
  o.capacity = m.slots;
  o.element = MERGING_ELEMENT;
  o.threads = 1;
  merging_expect(kvmeld_create(&o, &k, &v, 1, &m.cache));
  merging_expect(kvmeld_open(m.cache, 0, 0, 0));
}

/* Adds an entry for the token at `pos`. 0 begins a new text; an earlier position than the next goes back to
 * it. */
static void merging_begin(int pos) {
  uint32_t const sequence = 0, one = 1;
  uint32_t tokens = 0;
  merging_expect(kvmeld_tokens(m.cache, 0, &tokens));
  if (pos == 0 && tokens != 0) {
    merging_expect(kvmeld_close(m.cache, 0));
    merging_expect(kvmeld_open(m.cache, 0, 0, 0));
    m.merged = 0;
  } else if ((uint32_t)pos != tokens) {
    merging_expect(kvmeld_truncate(m.cache, 0, (uint32_t)pos));
  }
  merging_expect(kvmeld_append(m.cache, &sequence, &one, 1));
  merging_expect(kvmeld_commit(m.cache, &sequence, &one, 1));
  merging_expect(kvmeld_lengths(m.cache, 0, m.lengths));
}

/* Puts the rows of the new token, (KV head, channel), behind the entries of each head. */
static void merging_store(uint32_t layer, float const* key, float const* value) {
  for (uint32_t head = 0; head < m.kv_heads; ++head) {
    uint32_t const slot = m.lengths[layer * m.kv_heads + head] - 1;
    size_t const to = (((size_t)layer * m.slots + slot) * m.kv_heads + head) * m.d;
    for (uint32_t c = 0; c < m.d; ++c) {
      m.keys[to + c] = (MERGING_ROW)key[head * m.d + c];
      m.values[to + c] = (MERGING_ROW)value[head * m.d + c];
    }
  }
}

/* Adds the log degrees to a head's logits, keeps their log-sum-exp and returns the largest. */
static float merging_logits(uint32_t layer, uint32_t head, float* logits) {
  uint32_t const n = merging_length(layer, head);
  float const* const bias = merging_bias(layer, head);
  for (uint32_t t = 0; m.merged && t < n; ++t) logits[t] += bias[t];
  float most = logits[0], sum = 0.0f;
  for (uint32_t t = 1; t < n; ++t) most = logits[t] > most ? logits[t] : most;
  for (uint32_t t = 0; t < n; ++t) sum += expf(logits[t] - most);
  m.log_sum_exps[head] = most + logf(sum);
  return most;
}

/* After the attention of a layer: scores see its queries, (head, channel), and their log-sum-exps. */
static void merging_observe(uint32_t layer, float const* queries) {
  merging_expect(kvmeld_observe(m.cache, layer, 0, 1, KVMELD_FLOAT32, queries, m.d, 0, m.log_sum_exps, 1,
                                1.0f / sqrtf((float)m.d)));
}

/* Between two tokens. */
static void merging_compress(kvmeld_budget budget) {
  uint32_t const sequence = 0;
  merging_expect(kvmeld_compress(m.cache, &sequence, 1, budget));
  merging_expect(kvmeld_lengths(m.cache, 0, m.lengths));
  m.merged = 1;
  for (uint32_t layer = 0; layer < m.layers; ++layer) {
    merging_expect(kvmeld_log_degrees(m.cache, layer, 0, merging_bias(layer, 0), m.slots, m.slots));
    /* Slots behind the entries are masked there. Tokens that come to lie in them stand for one token. */
    for (uint32_t head = 0; head < m.heads; ++head) {
      float* const bias = merging_bias(layer, head);
      for (uint32_t slot = merging_length(layer, head); slot < m.slots; ++slot) bias[slot] = 0.0f;
    }
  }
}
