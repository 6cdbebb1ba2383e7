/* kvmeld in an engine of plain C that has one sequence and reads one token at a time. merging.c is the other
 * half; the engine compiles it beside its own files, all of which may include this header.
 * docs/engines/llama2_c.md and calm.md say which lines call it. Rows lie as (layer, slot, KV head, channel).
 *
 * Functions that can be refused return 0, or 1 after a refusal; merging_problem has its text then, until a
 * text begins anew. Nothing here ends the program, and after a refusal nothing is written out of place. */
#ifndef MERGING_H
#define MERGING_H

#include <kvmeld/kvmeld.h>

#include <stdint.h>

extern int merging_is_on;

/* Whether the engine merges: since merging_create, until merging_destroy. */
static inline int merging(void) { return merging_is_on; }

/* Why a call was refused; NULL if none was. */
char const* merging_problem(void);

/* A cache on the engine's tensors, whose capacity is `slots`. `element`: KVMELD_FLOAT32 or KVMELD_FLOAT16,
 * the rows' type. `policy`: as kvmeld_options.policy. After a refusal merging is off. */
int merging_create(int layers, int heads, int kv_heads, int head_dim, int slots, kvmeld_element element,
                   void* keys, void* values, char const* policy);
void merging_destroy(void);

/* Adds an entry for the token at `pos`. 0 begins a new text; an earlier position than the next goes back to
 * it. After a refusal, as that of a full cache, the token must not be read. */
int merging_begin(int pos);

/* Room for the rows of a new token, (KV head, channel), if the engine has none but in its cache. */
float* merging_key(void);
float* merging_value(void);

/* Puts the rows of the new token, (KV head, channel), behind the entries of each head. */
void merging_store(int layer, float const* key, float const* value);

/* Entries of a query head. */
int merging_length(int layer, int head);

/* Adds the log degrees to a head's logits, keeps their log-sum-exp and returns the largest. Different threads
 * may ask for different heads at the same time. */
float merging_logits(int layer, int head, float* logits);

/* After the attention of a layer: scores see its queries, (head, channel), and their log-sum-exps. */
int merging_observe(int layer, float const* queries);

/* Between two tokens. */
int merging_compress(kvmeld_budget budget);

#endif
