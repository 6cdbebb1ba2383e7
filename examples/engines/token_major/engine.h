/* An engine's cache and attention in C, token-major: [layer][slot][kv_head][channel], one row of it per token at first. */
#ifndef TOKEN_MAJOR_ENGINE_H
#define TOKEN_MAJOR_ENGINE_H

#include "kvmeld_bridge.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  kvmeld_bridge_shape shape;
  uint16_t *keys, *values; /* binary16 bits */
  float* queries;          /* [layer][head][channel] of the token being read */
  float* log_sum_exps;     /* [layer][head] */
  float* weights;          /* [capacity] */
  kvmeld_bridge* kv;       /* NULL: the engine as it was before kvmeld */
  uint32_t tokens;         /* read so far, without kvmeld */
} token_major_engine;

/* 0; else nothing has been allocated and kvmeld_bridge_problem says why. `policy` NULL leaves kvmeld out. */
int token_major_create(token_major_engine* e, kvmeld_bridge_shape shape, char const* policy);
void token_major_destroy(token_major_engine* e);

/* One token: begin, attend in every layer, end. 0, or else not. Rows q [head][channel], k and v [kv_head][channel]. */
int token_major_begin(token_major_engine* e);
void token_major_attend(token_major_engine* e, uint32_t layer, float const* q, float const* k, float const* v,
                        float* out);
int token_major_end(token_major_engine* e);

/* Tokens read: the position of the next one. */
uint32_t token_major_tokens(token_major_engine const* e);
int token_major_compress(token_major_engine* e, uint32_t entries);

#ifdef __cplusplus
}
#endif

#endif
