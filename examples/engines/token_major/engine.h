/* An engine in C that reads token by token, as llama2.c and calm do: its cache, its attention and the loop
   around them. Keys and values lie token-major, [layer][slot][kv_head][channel]. */
#ifndef TOKEN_MAJOR_ENGINE_H
#define TOKEN_MAJOR_ENGINE_H

#include <kvmeld/kvmeld.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct token_major_engine token_major_engine;

typedef struct token_major_shape {
  uint32_t layers, kv_heads, group, head_dim, capacity; /* group: query heads per KV head */
} token_major_shape;

/* The rest of the model: embeds `token`, runs its layers, which call token_major_attend, and returns the
 * logits [vocab]. */
typedef float const* (*token_major_layers)(void* model, token_major_engine* e, int token, uint32_t pos);

struct token_major_engine {
  token_major_shape shape;
  token_major_layers layers;
  void* model;
  uint16_t *keys, *values; /* binary16 bits */
  float* weights;          /* [capacity] */
  uint32_t tokens;         /* read so far: the position of the next one */
  /* Merging adds: */
  kvmeld_cache kv;         /* id 0: merging is off */
  kvmeld_budget when_full; /* what a full cache shrinks to; all 0: it takes no other token */
  uint32_t* lengths;       /* [layer][kv_head] */
  float* log_sum_exps;     /* [head] */
  float* bias;             /* [layer][head][capacity]: what is added to the logits of entries */
  int merged;              /* whether the bias is needed */
};

/* Merging is on where `policy` names one (kvmeld_policies) and off where it is NULL. A cache that is full
   shrinks to `when_full`, or refuses another token where `when_full` is nothing. 0; else nothing has been
   allocated. */
int token_major_create(token_major_engine* e, token_major_shape shape, token_major_layers layers, void* model,
                       char const* policy, kvmeld_budget when_full);
void token_major_destroy(token_major_engine* e);

/* The logits after `token` at position `pos`; NULL where the call is refused. `pos` 0 begins a new text, and
   an earlier position than the next one goes back to it. */
float const* token_major_forward(token_major_engine* e, int token, uint32_t pos);
/* Attention of one layer. Rows q and out [head][channel], k and v [kv_head][channel]. */
void token_major_attend(token_major_engine* e, uint32_t layer, float const* q, float const* k, float const* v,
                        float* out);
/* Reads `prompt_tokens` tokens and generates until `steps` tokens have been read; out[pos] is what follows
   the token at `pos`. 0, or else not. */
int token_major_generate(token_major_engine* e, int vocab, int const* prompt, int prompt_tokens, int steps,
                         int* out);

/* Merges every head down to the budget now. 0, or else not: merging is off, or refused. */
int token_major_compress(token_major_engine* e, kvmeld_budget budget);
/* Entries of a head. */
uint32_t token_major_length(token_major_engine const* e, uint32_t layer, uint32_t kv_head);
/* Why the last call failed. */
char const* token_major_problem(void);

#ifdef __cplusplus
}
#endif

#endif
