/* What an engine written in C needs of kvmeld, for one sequence that is read token by token: the calls of
   merged_cache behind plain functions. Functions that return int return 0, or else were refused and changed
   nothing. */
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

/* Entries that a head keeps: `entries` of them, or where `entries` is 0 the share `ratio` of the tokens read.
 */
typedef struct {
  uint32_t entries;
  double ratio;
} kvmeld_bridge_budget;

/* Over the engine's own tensors [layer][slot][kv_head][channel] of binary16 bits, which it frees after the
   bridge. NULL where it cannot be; kvmeld_bridge_problem() then says why. `policy` is "recommended",
   "chelsea", "kvmerger", "h2o", "snapkv" or "streaming_llm". `when_full`: what a cache without room for
   another token shrinks to; {0, 0}: the token is refused. */
kvmeld_bridge* kvmeld_bridge_create(kvmeld_bridge_shape shape, uint16_t* keys, uint16_t* values,
                                    char const* policy, kvmeld_bridge_budget when_full);
void kvmeld_bridge_destroy(kvmeld_bridge* b);

/* The token at `position` is about to be read: its rows go to slot kvmeld_bridge_length(..) - 1 of every
   head, and its key is rotated for `position`. Position 0 begins a new text. An earlier position than the
   next one goes back to it, and is refused where tokens behind it have been merged. */
int kvmeld_bridge_begin(kvmeld_bridge* b, uint32_t position);
/* After the attention of a layer: its `queries` [head][channel] and `log_sum_exps` [head], natural
   logarithms. May be left out where kvmeld_bridge_observes is 0. */
int kvmeld_bridge_observe(kvmeld_bridge* b, uint32_t layer, float const* queries, float const* log_sum_exps);
int kvmeld_bridge_observes(kvmeld_bridge const* b);
/* Between two tokens: merges every head down to the budget. */
int kvmeld_bridge_compress(kvmeld_bridge* b, kvmeld_bridge_budget budget);

/* Entries of a head. */
uint32_t kvmeld_bridge_length(kvmeld_bridge const* b, uint32_t layer, uint32_t kv_head);
/* What is added to the logits of a head's entries, [length]; NULL before the first compression of a text:
 * nothing. */
float const* kvmeld_bridge_bias(kvmeld_bridge const* b, uint32_t layer, uint32_t kv_head);
/* Tokens read: the position of the next one. */
uint32_t kvmeld_bridge_tokens(kvmeld_bridge const* b);
/* Why the last call of this thread was refused. */
char const* kvmeld_bridge_problem(void);

#ifdef __cplusplus
}
#endif

#endif
