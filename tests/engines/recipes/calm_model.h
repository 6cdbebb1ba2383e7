/* What the two files of calm's form share. Names are those that docs/engines/calm.md mentions. */
#ifndef MODEL_H
#define MODEL_H

enum { KV_SINKS = 2 };

struct Config {
  int n_layers, n_heads, n_kv_heads, head_dim, seq_len;
};
struct RunState {
  float *xb2, *q, *k, *v, *att; /* head outputs; rows of a token; (head, slot) */
  void *key_cache, *value_cache;
};
struct Transformer {
  struct Config config;
  struct RunState state;
  float* (*forward)(struct Transformer* transformer, int token, int pos, unsigned flags);
};

#endif
