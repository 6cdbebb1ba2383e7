// kvmeld for languages that call C: caches on tensors of an engine, in host memory, one tensor per layer.
// Functions return 0, or -1 after a refusal, which kvmeld_problem then tells. A cache is used by one thread
// at a time.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvmeld_c_cache kvmeld_c_cache;

enum kvmeld_c_element { kvmeld_c_float = 0, kvmeld_c_half = 1, kvmeld_c_bfloat16 = 2 };
/* Which tracks share a plan: none, the heads of a layer, all heads of all layers. */
enum kvmeld_c_scope { kvmeld_c_head = 0, kvmeld_c_layer = 1, kvmeld_c_group = 2 };

typedef struct {
  uint32_t layers, sequences, kv_heads, group, head_dim, capacity; /* group: query heads per KV head */
  uint32_t element, scope;
  uint32_t ignore_degree; /* 1: attention adds no bias, merged entries count as one token */
  uint32_t first_layer, first_kv_head;
} kvmeld_c_sizes;

/* What the last call of this thread refused, by name, value and what is allowed. */
char const* kvmeld_problem(void);

/* method: chelsea, kvmerger, d2o, keepkv, h2o, snapkv or streaming_llm. Null after a refusal. */
kvmeld_c_cache* kvmeld_create(char const* method, kvmeld_c_sizes const* sizes);
void kvmeld_destroy(kvmeld_c_cache* cache);

/* Where a layer's K and V lie now; before the first call that reads them, and whenever they moved. Element
   (sequence, head, slot, channel) at sequence * strides[0] + head * strides[1] + slot * strides[2] + channel,
   in elements; slots from the length on are not touched. */
int kvmeld_bind(kvmeld_c_cache* cache, uint32_t layer, void* keys, void* values, int64_t const key_strides[3],
                int64_t const value_strides[3]);

int kvmeld_open(kvmeld_c_cache* cache, uint32_t slot, uint32_t tokens);
int kvmeld_close(kvmeld_c_cache* cache, uint32_t slot);
int kvmeld_append(kvmeld_c_cache* cache, uint32_t slot, uint32_t tokens);
int kvmeld_commit(kvmeld_c_cache* cache, uint32_t slot, uint32_t accepted);
/* rows[query_head * head_stride + query * row_stride + entry]: attention of the last `queries` tokens, as
 * probabilities. */
int kvmeld_observe_rows(kvmeld_c_cache* cache, uint32_t layer, uint32_t slot, uint32_t queries,
                        float const* rows, int64_t head_stride, int64_t row_stride);
/* Down to `share` of the tokens seen, the same number of entries for all heads. */
int kvmeld_compress(kvmeld_c_cache* cache, uint32_t slot, double share);

int kvmeld_needs_attention(kvmeld_c_cache const* cache);
uint32_t kvmeld_tokens(kvmeld_c_cache const* cache, uint32_t slot);
uint32_t kvmeld_longest(kvmeld_c_cache const* cache, uint32_t slot);
uint32_t kvmeld_length(kvmeld_c_cache const* cache, uint32_t layer, uint32_t slot, uint32_t kv_head);
/* out[query_head][capacity]: log degree, and the lowest float behind the head's length. */
int kvmeld_log_degree(kvmeld_c_cache* cache, uint32_t layer, uint32_t slot, float* out);

#ifdef __cplusplus
}
#endif
