/* A file of the form of calm's src/infer.c, around an attention of its own: docs/engines/calm.md is tried on
 * it. What is marked with a number is where the addition with this number belongs. */
#include "model.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
/*@1*/

#if defined(__FLT16_MANT_DIG__)
typedef _Float16 kvtype_t;
#else
typedef float kvtype_t;
#endif

void prepare(struct Transformer* transformer);
float* forward(struct Transformer* transformer, int token, int pos, unsigned flags);

void prepare(struct Transformer* transformer) {
  struct Config* p = &transformer->config;
  struct RunState* s = &transformer->state;
  size_t const kv_dim = (size_t)(p->n_kv_heads * p->head_dim), q_dim = (size_t)(p->n_heads * p->head_dim);
  size_t const slots = (size_t)(p->n_layers * p->seq_len);
  s->xb2 = calloc(q_dim, sizeof(float));
  s->q = calloc(q_dim, sizeof(float));
  s->k = calloc(kv_dim, sizeof(float));
  s->v = calloc(kv_dim, sizeof(float));
  s->att = calloc((size_t)(p->n_heads * p->seq_len), sizeof(float));
  s->key_cache = calloc(slots * kv_dim, sizeof(kvtype_t));
  s->value_cache = calloc(slots * kv_dim, sizeof(kvtype_t));
  if (!s->xb2 || !s->q || !s->k || !s->v || !s->att || !s->key_cache || !s->value_cache) abort();
  /*@4*/
}

static void attn(float* xout, float* atth, float* qh, kvtype_t* kh, kvtype_t* vh, int head_dim, int kv_dim,
                 int kv_len /*@2*/) {
  float score_max = -FLT_MAX, sum = 0.0f;
  for (int t = 0; t < kv_len; ++t) {
    atth[t] = 0.0f;
    for (int c = 0; c < head_dim; ++c) atth[t] += qh[c] * (float)kh[t * kv_dim + c];
    score_max = atth[t] > score_max ? atth[t] : score_max;
  }
  /*@3*/
  for (int t = 0; t < kv_len; ++t) sum += atth[t] = expf(atth[t] - score_max);
  for (int c = 0; c < head_dim; ++c) {
    xout[c] = 0.0f;
    for (int t = 0; t < kv_len; ++t) xout[c] += atth[t] / sum * (float)vh[t * kv_dim + c];
  }
}

/* A number that is always the same for a place. */
static float noise(int token, int layer, int i) {
  unsigned x = (unsigned)token * 2654435761u ^ (unsigned)(layer * 977 + i) * 2246822519u;
  x = (x ^ x >> 15) * 3266489917u;
  return (float)(x >> 8) * 0x1p-23f - 1.0f;
}

float* forward(struct Transformer* transformer, int token, int pos, unsigned flags) {
  struct Config* p = &transformer->config;
  struct RunState* s = &transformer->state;
  int const kv_dim = p->n_kv_heads * p->head_dim, kv_mul = p->n_heads / p->n_kv_heads;
  int kv_sink = pos >= p->seq_len ? KV_SINKS : 0;
  int kv_pos = kv_sink + (pos - kv_sink) % (p->seq_len - kv_sink);
  int kv_len = pos >= p->seq_len ? p->seq_len : pos + 1;
  (void)flags;
  /*@5*/
  /*@6*/
  for (int l = 0; l < p->n_layers; l++) {
    kvtype_t* kb = (kvtype_t*)s->key_cache + (size_t)(l * p->seq_len * kv_dim);
    kvtype_t* vb = (kvtype_t*)s->value_cache + (size_t)(l * p->seq_len * kv_dim);
    for (int i = 0; i < p->n_heads * p->head_dim; i++)
      s->q[i] = noise(token, l, i) + (l == 0 ? 0.0f : s->xb2[i]);
    for (int i = 0; i < kv_dim; i++) {
      s->k[i] = noise(token, l, 1000 + i);
      s->v[i] = noise(token, l, 2000 + i);
    }
    /*@7*/
    for (int i = 0; i < kv_dim; i++) {
      kb[kv_pos * kv_dim + i] = (kvtype_t)s->k[i];
      vb[kv_pos * kv_dim + i] = (kvtype_t)s->v[i];
    }
    for (int r = 0; r < kv_sink; r++) kb[r * kv_dim] = -kb[r * kv_dim]; /* calm turns its sinks here */
    for (int h = 0; h < p->n_heads; h++) {
      int const own = (h / kv_mul) * p->head_dim;
      attn(s->xb2 + h * p->head_dim, s->att + h * p->seq_len, s->q + h * p->head_dim, kb + own, vb + own,
           p->head_dim, kv_dim, /*@8*/ kv_len /*@9*/);
    }
    /*@10*/
  }
  return s->xb2;
}
