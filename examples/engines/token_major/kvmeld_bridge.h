/* What an engine written in C needs of kvmeld, for one sequence: the calls of merged_cache behind plain functions. */
#ifndef KVMELD_BRIDGE_H
#define KVMELD_BRIDGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvmeld_bridge kvmeld_bridge;

typedef struct {
  uint32_t layers, kv_heads, group, head_dim, capacity;
} kvmeld_bridge_shape;

/* Over the engine's own tensors [layer][slot][kv_head][channel] of binary16 bits, which it frees after the bridge. NULL where
   it cannot be; kvmeld_bridge_problem() then says why. `policy` is "chelsea", "kvmerger", "h2o" or "streaming_llm". */
kvmeld_bridge* kvmeld_bridge_create(kvmeld_bridge_shape shape, uint16_t* keys, uint16_t* values,
                                    char const* policy);
void kvmeld_bridge_destroy(kvmeld_bridge* b);

/* One token is about to be read: its rows go to slot kvmeld_bridge_length(..) - 1 of every head. 0, or else not. */
int kvmeld_bridge_append(kvmeld_bridge* b);
/* The token has been read in all layers. `queries` [layer][head][channel] and `log_sum_exps` [layer][head] may be NULL if
   kvmeld_bridge_observes says no. */
int kvmeld_bridge_commit(kvmeld_bridge* b, float const* queries, float const* log_sum_exps);
int kvmeld_bridge_observes(kvmeld_bridge const* b);
/* Merges every head down to `entries`. */
int kvmeld_bridge_compress(kvmeld_bridge* b, uint32_t entries);

/* Entries of a head, and what is added to their logits: [length], 0 for entries that stand for one token. */
uint32_t kvmeld_bridge_length(kvmeld_bridge const* b, uint32_t layer, uint32_t kv_head);
float const* kvmeld_bridge_bias(kvmeld_bridge const* b, uint32_t layer, uint32_t kv_head);
/* Tokens read: the position of the next one. */
uint32_t kvmeld_bridge_tokens(kvmeld_bridge const* b);
/* Why the last call of this thread failed. */
char const* kvmeld_bridge_problem(void);

#ifdef __cplusplus
}
#endif

#endif
