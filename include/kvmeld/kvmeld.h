/* kvmeld for languages that call C: caches on an engine's own tensors, with a policy and a layout that are
   chosen at run time. The functions are those of the library libkvmeld (docs/c.md).

   A function that can fail returns a status; KVMELD_OK is 0. After another status, kvmeld_problem tells what
   was wrong, by argument, value and what must hold. A call that is refused has changed nothing, its output
   arguments included. No C++ exception leaves a function.

   kvmeld_options begins with its size in bytes, as the program was compiled with it. A library that is newer
   than the program gives the fields behind that size their defaults, so a program runs with every later
   version of the same KVMELD_C_ABI. Other structures never change within a KVMELD_C_ABI.

   Threads: different caches may be used by different threads at the same time. One cache is used by one
   thread at a time; a call that meets another one on the same cache is refused with KVMELD_BUSY. */
#ifndef KVMELD_KVMELD_H
#define KVMELD_KVMELD_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. kvmeld_abi() is that of the library. They must be equal. */
#define KVMELD_C_ABI 1

#if defined(_WIN32)
#define KVMELD_API
#elif defined(__GNUC__)
#define KVMELD_API __attribute__((visibility("default")))
#else
#define KVMELD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Enumerations are 32-bit numbers, whatever the compiler makes of enum. */
typedef int32_t kvmeld_status;
enum {
  KVMELD_OK = 0,
  KVMELD_INVALID_ARGUMENT = 1, /* an argument, or a combination of arguments */
  KVMELD_INVALID_HANDLE = 2,   /* a cache that was destroyed, or that this library has not made */
  KVMELD_BUSY = 3, /* another call on this cache is under way, in another thread or an allocator */
  KVMELD_NO_MEMORY = 4,
  KVMELD_UNSUPPORTED = 5, /* what this build of the library has not: CUDA, an element type */
  KVMELD_INTERNAL = 6     /* a defect of kvmeld, or of an allocator that was handed in */
};

/* A cache. A value of 0 is none. Handles are not used again, so that a stale one is refused. */
typedef struct kvmeld_cache {
  uint64_t id;
} kvmeld_cache;

typedef int32_t kvmeld_element;
enum { KVMELD_FLOAT32 = 0, KVMELD_FLOAT16 = 1, KVMELD_BFLOAT16 = 2 };

/* Tracks (a track is one KV head of one layer of one sequence) that share a plan, or a budget. */
typedef int32_t kvmeld_scope;
enum { KVMELD_HEAD = 0, KVMELD_LAYER = 1, KVMELD_ALL_LAYERS = 2 };

/* What the engine's attention can add to the logits of merged entries: a row of log degrees per KV head, one
   row for all heads of a layer, or nothing. */
typedef int32_t kvmeld_bias;
enum { KVMELD_BIAS_PER_HEAD = 0, KVMELD_BIAS_SHARED = 1, KVMELD_BIAS_NONE = 2 };

/* Where keys or values lie. Element (layer, sequence, head, token, channel) is at
   data + layer * layer_stride + sequence * sequence_stride + ... , in elements. With pages, sequence_stride
   is the stride from a page of the pool to the next, and token_stride that of the tokens of a page. Where a
   layer has a tensor of its own, its layer_stride is not used. A stride of an extent of one is not used
   either. */
typedef struct kvmeld_tensor {
  void* data;
  int64_t layer_stride, sequence_stride, head_stride, token_stride, channel_stride;
} kvmeld_tensor;

/* Memory for a cache's ledger and workspace, and for the scratch of its threads, which grows in the first
   calls. `allocate` returns `bytes` bytes at a multiple of `alignment`, or null where there is none. Both
   functions are called in the thread that calls the cache, and must not throw. `context` must outlive it. */
typedef struct kvmeld_allocator {
  void* (*allocate)(void* context, size_t bytes, size_t alignment);
  void (*release)(void* context, void* memory, size_t bytes);
  void* context;
} kvmeld_allocator;

/* What a cache is built with. kvmeld_options_init sets all fields: the policy to null, the extents to 0. */
typedef struct kvmeld_options {
  size_t bytes; /* sizeof(kvmeld_options) of the program; set by kvmeld_options_init */
  /* A preset ("recommended", "snapkv", "chelsea": kvmeld_policies lists them), or parts:
     "score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64". */
  char const* policy;
  uint32_t layers, sequences, kv_heads, queries_per_kv_head, key_dim, value_dim, capacity;
  kvmeld_element element;
  kvmeld_scope scope;        /* tracks that share a plan, and so positions and degrees; default KVMELD_HEAD */
  kvmeld_scope budgets_over; /* the widest scope of a budget; default KVMELD_HEAD */
  kvmeld_bias bias;          /* default KVMELD_BIAS_PER_HEAD */
  int32_t ignore_degree;     /* 1: every entry counts as one token, whatever its degree */
  int32_t padded;            /* 1: the tracks of a sequence have the same length after a compression */
  int32_t zero_emptied;      /* 1: value rows behind a shortened track become zeros */
  uint32_t first_layer, first_kv_head; /* of a rank that holds a part of the model */
  /* Pages; page_size 0: none. page_table[sequence * page_table_stride + i] is the number of a sequence's i-th
     page in the pools. The table is read by every call that reads or writes rows, and must outlive the cache.
     The numbers in it are not checked. */
  uint32_t page_size;
  int32_t const* page_table;
  int64_t page_table_stride;
  uint32_t threads;           /* 0: as many as this process may use; 1: the caller's thread alone */
  int32_t device;             /* -1: host memory (default); else the number of a CUDA device */
  void* stream;               /* CUDA: the stream that calls enqueue to; null: the default stream */
  kvmeld_allocator allocator; /* null functions: the system's memory */
} kvmeld_options;

/* How many entries a track may keep. Exactly one of `entries` and `ratio` is not 0. */
typedef struct kvmeld_budget {
  uint32_t entries;  /* entries of each track */
  double ratio;      /* share of the tokens seen since the sequence was opened, above 0 to 1 */
  kvmeld_scope over; /* tracks that share their budgets; at most options.budgets_over */
  double floor;      /* share of its own budget that each of these tracks keeps at least */
  int32_t keep;      /* 1: a track that merging does not bring to its budget stays longer; 0: the entries with
                        the lowest scores go */
} kvmeld_budget;

/* --- the library --------------------------------------------------------------------------------------- */

KVMELD_API uint32_t kvmeld_abi(void);
/* "1.2.3": the version of kvmeld. */
KVMELD_API char const* kvmeld_version(void);
/* What the last call of this thread refused; empty after KVMELD_OK. Valid until this thread's next call. */
KVMELD_API char const* kvmeld_problem(void);
/* The presets' names, one per line, each followed by a tab and a sentence. */
KVMELD_API char const* kvmeld_policies(void);

/* --- caches -------------------------------------------------------------------------------------------- */

/* Sets `options`, of `bytes` bytes, to the defaults. `bytes` is sizeof *options: the library may know more
   fields than the program. */
KVMELD_API kvmeld_status kvmeld_options_init(kvmeld_options* options, size_t bytes);
/* The bytes of ledger and workspace that kvmeld_create would allocate for these options. */
KVMELD_API kvmeld_status kvmeld_bytes(kvmeld_options const* options, size_t* bytes);
/* Makes a cache on the engine's tensors, which stay the engine's. `tensors` is 1 where one tensor holds all
   layers, or options.layers with a tensor for each; keys and values are arrays of that many. The arrays are
   copied. */
KVMELD_API kvmeld_status kvmeld_create(kvmeld_options const* options, kvmeld_tensor const* keys,
                                       kvmeld_tensor const* values, uint32_t tensors, kvmeld_cache* made);
/* The tensors lie elsewhere from now on, with the same rows in them. */
KVMELD_API kvmeld_status kvmeld_rebind(kvmeld_cache cache, kvmeld_tensor const* keys,
                                       kvmeld_tensor const* values, uint32_t tensors);
KVMELD_API kvmeld_status kvmeld_destroy(kvmeld_cache cache);
/* The policy by its parts: "local x top x evict_rest x drop". Valid until the cache is destroyed. */
KVMELD_API kvmeld_status kvmeld_policy(kvmeld_cache cache, char const** name);

/* --- sequences ----------------------------------------------------------------------------------------- */

/* A sequence with `tokens` tokens already in K and V. Its first `frozen` entries stay as they are. */
KVMELD_API kvmeld_status kvmeld_open(kvmeld_cache cache, uint32_t sequence, uint32_t tokens, uint32_t frozen);
KVMELD_API kvmeld_status kvmeld_close(kvmeld_cache cache, uint32_t sequence);
/* Makes room for counts[i] tokens of sequences[i] behind each track; the engine then writes their rows. */
KVMELD_API kvmeld_status kvmeld_append(kvmeld_cache cache, uint32_t const* sequences, uint32_t const* counts,
                                       uint32_t n);
/* Keeps the first accepted[i] of the appended tokens, and drops the others. */
KVMELD_API kvmeld_status kvmeld_commit(kvmeld_cache cache, uint32_t const* sequences,
                                       uint32_t const* accepted, uint32_t n);
/* Copies sequence `from` into the closed sequence `into`: rows and all. */
KVMELD_API kvmeld_status kvmeld_fork(kvmeld_cache cache, uint32_t from, uint32_t into);
/* Goes back to `tokens` tokens; refused where they were merged since. */
KVMELD_API kvmeld_status kvmeld_truncate(kvmeld_cache cache, uint32_t sequence, uint32_t tokens);

/* --- compression --------------------------------------------------------------------------------------- */

/* What the policy has to be shown before it compresses. */
typedef int32_t kvmeld_observation;
enum {
  KVMELD_OBSERVE_NOTHING = 0,
  KVMELD_OBSERVE_LAST_QUERIES = 1, /* the last `rows` queries before a compression; 0: all */
  KVMELD_OBSERVE_EVERY_STEP = 2,   /* the queries of prompts and of every generated token */
  KVMELD_OBSERVE_REPLAY = 3        /* the queries of a second reading of the prompt, and no others */
};

/* `queries` is set to 1 where kvmeld_observe alone can show what the policy needs. */
KVMELD_API kvmeld_status kvmeld_needs(kvmeld_cache cache, kvmeld_observation* when, uint32_t* rows,
                                      int32_t* queries);
/* Shows a policy the last n queries of a sequence in one layer, as they met the keys: query (head, i,
   channel) is at queries + head * head_stride + i * row_stride + channel. lse[head * lse_stride + i] is the
   natural log-sum-exp of the attention, or null; where the policy needs it, kvmeld computes the attention
   then, which takes memory for its outputs. scale 0 is 1 / sqrt(key_dim). */
KVMELD_API kvmeld_status kvmeld_observe(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                                        kvmeld_element element, void const* queries, int64_t head_stride,
                                        int64_t row_stride, float const* lse, int64_t lse_stride,
                                        float scale);
/* Shows a policy probabilities instead: that of query i of a query head on entry j is at
   rows + head * head_stride + i * row_stride + j. */
KVMELD_API kvmeld_status kvmeld_observe_rows(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                             uint32_t n, float const* rows, int64_t head_stride,
                                             int64_t row_stride);
/* Scores of the engine's own, for policies with score=given: that of entry j of a KV head is at
   scores + head * head_stride + j. */
KVMELD_API kvmeld_status kvmeld_set_scores(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                           float const* scores, int64_t head_stride);
/* Shrinks each listed sequence to its budget, in place, in every layer and head. */
KVMELD_API kvmeld_status kvmeld_compress(kvmeld_cache cache, uint32_t const* sequences, uint32_t n,
                                         kvmeld_budget budget);

/* --- what a cache holds -------------------------------------------------------------------------------- */

/* Tokens seen since the sequence was opened: the position of the next token. */
KVMELD_API kvmeld_status kvmeld_tokens(kvmeld_cache cache, uint32_t sequence, uint32_t* tokens);
/* The longest track of a sequence. */
KVMELD_API kvmeld_status kvmeld_longest(kvmeld_cache cache, uint32_t sequence, uint32_t* entries);
/* lengths[layer * kv_heads + head] of a sequence. */
KVMELD_API kvmeld_status kvmeld_lengths(kvmeld_cache cache, uint32_t sequence, uint32_t* lengths);
/* Copies the degree, or the position, of each entry of a track, as many as its length. The position is that
   which the entry's key is rotated for. `capacity` is the room in the array; a smaller one than the length is
   refused. */
KVMELD_API kvmeld_status kvmeld_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                        uint32_t kv_head, float* degrees, uint32_t capacity);
KVMELD_API kvmeld_status kvmeld_positions(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                          uint32_t kv_head, int32_t* positions, uint32_t capacity);
/* What attention adds to logits: bias + head * head_stride has the natural logarithm of the degree of each
   entry of a query head, and the lowest finite float behind the last entry, `columns` numbers in all. Fewer
   columns than the longest of these tracks has entries are refused. */
KVMELD_API kvmeld_status kvmeld_log_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                            float* bias, int64_t head_stride, uint32_t columns);
/* What the last compression of a sequence found. */
enum {
  KVMELD_WARN_NONFINITE_ROWS = 1,   /* rows with NaN or infinity, which never merge */
  KVMELD_WARN_BUDGET_UNREACHED = 2, /* nothing was left that could merge; a track is longer than its budget */
  KVMELD_WARN_EVICTED = 4,          /* entries were evicted to reach the budget */
  KVMELD_WARN_OVERFULL = 8          /* entries beyond the capacity were dropped */
};
/* These warnings of a sequence, as a sum of bits. */
KVMELD_API kvmeld_status kvmeld_warnings(kvmeld_cache cache, uint32_t sequence, uint32_t* warnings);

/* --- attention ----------------------------------------------------------------------------------------- */

/* kvmeld's own attention of the last n queries of a sequence in one layer, log degrees included. Queries as
   in kvmeld_observe; out has their element type or float32, and the same form with value_dim channels. lse
   may be null, or gets natural log-sum-exps. */
KVMELD_API kvmeld_status kvmeld_attend(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                                       kvmeld_element element, void const* queries, int64_t head_stride,
                                       int64_t row_stride, kvmeld_element out_element, void* out,
                                       int64_t out_head_stride, int64_t out_row_stride, float* lse,
                                       int64_t lse_stride, float scale);

/* --- saving -------------------------------------------------------------------------------------------- */

/* The ledger of a sequence, for a later kvmeld_resume; its rows in K and V are the engine's to keep. Ask for
   the size first. */
KVMELD_API kvmeld_status kvmeld_saved_bytes(kvmeld_cache cache, uint32_t sequence, size_t* bytes);
KVMELD_API kvmeld_status kvmeld_save(kvmeld_cache cache, uint32_t sequence, void* out, size_t bytes);
KVMELD_API kvmeld_status kvmeld_resume(kvmeld_cache cache, uint32_t sequence, void const* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
