/* A file of the form of llama2.c's run.c, around an attention of its own: docs/engines/llama2_c.md is tried
 * on it. What is marked with a number is where the edit with this number belongs; a marked name is replaced.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  int dim, n_layers, n_heads, n_kv_heads, seq_len;
} Config;
typedef struct {
  float *xb, *q, *k, *v, *att, *key_cache, *value_cache;
} RunState;
typedef struct {
  Config config;
  RunState state;
} Transformer;
/*@1*/

static void build_transformer(Transformer* t) {
  Config const c = {64, 2, 4, 2, 128};
  size_t const kv = (size_t)(c.n_layers * c.seq_len * c.dim * c.n_kv_heads / c.n_heads);
  t->config = c;
  t->state.xb = calloc((size_t)c.dim, sizeof(float));
  t->state.q = calloc((size_t)c.dim, sizeof(float));
  t->state.att = calloc((size_t)(c.n_heads * c.seq_len), sizeof(float));
  t->state.key_cache = calloc(kv, sizeof(float));
  t->state.value_cache = calloc(kv, sizeof(float));
  if (!t->state.xb || !t->state.q || !t->state.att || !t->state.key_cache || !t->state.value_cache) abort();
}

static void softmax(float* x, int size) {
  float most = x[0], sum = 0.0f;
  for (int i = 1; i < size; i++) most = x[i] > most ? x[i] : most;
  for (int i = 0; i < size; i++) sum += x[i] = expf(x[i] - most);
  for (int i = 0; i < size; i++) x[i] /= sum;
}

static float noise(int token, int layer, int i) {
  unsigned x = (unsigned)token * 2654435761u ^ (unsigned)(layer * 977 + i) * 2246822519u;
  x = (x ^ x >> 15) * 3266489917u;
  return (float)(x >> 8) * 0x1p-23f - 1.0f;
}

static float* forward(Transformer* transformer, int token, int pos) {
  Config* p = &transformer->config;
  RunState* s = &transformer->state;
  int kv_dim = p->dim * p->n_kv_heads / p->n_heads, kv_mul = p->n_heads / p->n_kv_heads;
  int head_size = p->dim / p->n_heads;
  /*@2*/
  for (int l = 0; l < p->n_layers; l++) {
    int loff = l * p->seq_len * kv_dim;
    s->k = s->key_cache + loff + pos * kv_dim;
    s->v = s->value_cache + loff + pos * kv_dim;
    /*@3*/
    for (int i = 0; i < p->dim; i++) s->q[i] = noise(token, l, i) + (l == 0 ? 0.0f : s->xb[i]);
    for (int i = 0; i < kv_dim; i++) {
      s->k[i] = noise(token, l, 1000 + i);
      s->v[i] = noise(token, l, 2000 + i);
    }
    /*@4*/
    for (int h = 0; h < p->n_heads; h++) {
      float *q = s->q + h * head_size, *att = s->att + h * p->seq_len, *xb = s->xb + h * head_size;
      /*@5*/
      for (int t = 0; t <= /*@6:*/ pos /*:@*/; t++) {
        float* k = s->key_cache + loff + t * kv_dim + (h / kv_mul) * head_size;
        att[t] = 0.0f;
        for (int i = 0; i < head_size; i++) att[t] += q[i] * k[i];
      }
      /*@7*/
      softmax(att, /*@8:*/ pos /*:@*/ + 1);
      for (int i = 0; i < head_size; i++) xb[i] = 0.0f;
      for (int t = 0; t <= /*@9:*/ pos /*:@*/; t++) {
        float* v = s->value_cache + loff + t * kv_dim + (h / kv_mul) * head_size;
        for (int i = 0; i < head_size; i++) xb[i] += att[t] * v[i];
      }
    }
    /*@10*/
  }
  return s->xb;
}

static void generate(Transformer* transformer, int num_prompt_tokens, int steps) {
  int token = 1, pos = 0;
  printf("a prompt of %d tokens\n", num_prompt_tokens);
  while (pos < steps) {
    float* logits = forward(transformer, token, pos);
    /*@11*/
    printf("%d %a %a\n", token, (double)logits[0], (double)logits[7]);
    token = (token * 75 + 74) % 257; /* whatever the logits are: both ways read the same text */
    pos++;
    /*@12*/
  }
}

int main(int argc, char** argv) {
  int const steps = argc > 1 ? atoi(argv[1]) : 100;
  Transformer transformer;
  build_transformer(&transformer);
  /*@13*/
  /*@14*/
  generate(&transformer, 60, steps);
  return fflush(stdout) == 0 ? 0 : 1;
}
