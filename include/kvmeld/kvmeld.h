/* SPDX-License-Identifier: Apache-2.0 */
/* kvmeld for languages that call C: caches on an engine's own tensors, with a policy and a layout that are
   chosen at run time. The library libkvmeld has these functions (docs/c.md).

   Errors: a function that can fail returns a status; KVMELD_OK is 0. After any other status, kvmeld_problem
   names the argument, its value and what must hold. A refused call changes nothing, output arguments
   included, except after KVMELD_DEVICE_ERROR. No C++ exception leaves a function.

   Order: on the host, a call has done its work when it returns. A cache on a device enqueues its work to
   options.stream, and so does each later call. "Waits" in a comment below means: waits for that stream, on a
   device. kvmeld_degrees, kvmeld_positions, kvmeld_warnings,
   kvmeld_saved_bytes, kvmeld_save, kvmeld_resume, kvmeld_shift and kvmeld_renumber wait for the stream.
   kvmeld_longest, kvmeld_lengths, kvmeld_log_degrees, kvmeld_observe and kvmeld_append wait only if the host
   does not know the lengths: after a compression by thresholds, with shared budgets, or with budget.keep, and
   after kvmeld_drop_positions among compressed tokens. kvmeld_drop_positions waits if the sequence has frozen
   entries, kvmeld_truncate if it goes back to before a gap that kvmeld_drop_positions or kvmeld_shift left.
   kvmeld_create waits for learned weights of more than 64 KB. The other calls do not wait. A call keeps no
   pointer that it was given, except those of tensors, page table, allocator and stream; but what it enqueued
   still reads and writes the memory that it was given. Output arrays must not overlap other arrays or
   tensors.

   Devices: tensors, page tables, and the arguments queries, lse, rows, scores, bias and out of a cache on a
   device lie in memory of that device. All other arguments lie in host memory. During a call options.device
   is current; afterwards the previous device is current again. Calls are refused while the stream is being
   captured.

   Results are the same bits for any number of threads.

   Versions: kvmeld_options begins with its size in bytes, as the program was compiled with it. A library that
   is newer than the program gives the fields behind that size their defaults, so a program runs with every
   later version of the same KVMELD_C_ABI. Other structures never change within a KVMELD_C_ABI.

   Threads: different threads may use different caches at the same time. One thread at a time uses a cache; a
   call during another call on the same cache is refused with KVMELD_BUSY.

   Forks: a child of fork may make caches, and use its copies of those of its parent; threads start again when
   a call needs them. A cache that a call of the parent was using at the fork stays busy in the child. */
#ifndef KVMELD_KVMELD_H
#define KVMELD_KVMELD_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. It must equal kvmeld_abi(), which is the library's. */
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
  KVMELD_UNSUPPORTED = 5, /* this build of the library lacks it: CUDA, pages, an element type */
  KVMELD_INTERNAL = 6,    /* a defect of kvmeld, or of an allocator that was handed in */
  KVMELD_DEVICE_ERROR = 7 /* CUDA's runtime reported an error. Outputs have no meaning. Every later call on
                             the cache returns this status, except kvmeld_destroy */
};

/* A cache; id 0: none. Handles are never used again, so a stale one is refused. */
typedef struct kvmeld_cache {
  uint64_t id;
} kvmeld_cache;

typedef int32_t kvmeld_element;
enum { KVMELD_FLOAT32 = 0, KVMELD_FLOAT16 = 1, KVMELD_BFLOAT16 = 2 };

/* Tracks (a track is one KV head of one layer of one sequence) that share a plan, or a budget. */
typedef int32_t kvmeld_scope;
enum { KVMELD_HEAD = 0, KVMELD_LAYER = 1, KVMELD_ALL_LAYERS = 2 };

/* What the engine's attention can add to the logits of merged entries: a row of log degrees per KV head; one
   row for all heads of a layer, which needs options.scope KVMELD_LAYER or KVMELD_ALL_LAYERS; or nothing, for
   policies that only evict, or with options.ignore_degree. */
typedef int32_t kvmeld_bias;
enum { KVMELD_BIAS_PER_HEAD = 0, KVMELD_BIAS_SHARED = 1, KVMELD_BIAS_NONE = 2 };

/* Where keys or values lie. Element (layer, sequence, head, token, channel) is at
   data + layer * layer_stride + sequence * sequence_stride + ... , in elements. With pages, sequence_stride
   leads from a page of the pool to the next, and token_stride from a token of a page to the next. If each
   layer has a tensor of its own, layer_stride is not used. The stride of an extent of one is not used
   either. */
typedef struct kvmeld_tensor {
  void* data;
  int64_t layer_stride, sequence_stride, head_stride, token_stride, channel_stride;
} kvmeld_tensor;

/* Memory for a cache's ledger and workspace, and for the scratch of its threads, which grows in the first
   calls. `allocate` returns `bytes` bytes at a multiple of `alignment`, or null if there are none. Both
   functions are called in the thread that calls the cache, and must not throw. `context` must outlive the
   cache. For a cache on a device they give memory of that device. Work enqueued to options.stream before
   `release` may still use the memory; reuse it only behind that work. */
typedef struct kvmeld_allocator {
  void* (*allocate)(void* context, size_t bytes, size_t alignment);
  void (*release)(void* context, void* memory, size_t bytes);
  void* context;
} kvmeld_allocator;

/* Which channels rotate together. Of d rotated channels, pair i is (i, i + d / 2) or (2 i, 2 i + 1). */
typedef int32_t kvmeld_pairing;
enum { KVMELD_ROPE_NONE = 0, KVMELD_ROPE_HALF_SPLIT = 1, KVMELD_ROPE_INTERLEAVED = 2 };

/* How keys lie rotated: pair i of a key at position p is turned by p / factor * base^(-2 i / d) radians. With
   `frequencies` it is turned by p * frequencies[i] radians instead. */
typedef struct kvmeld_rope {
  kvmeld_pairing pairing;
  uint32_t rotary_dim;      /* d, the first channels of a key; 0: all */
  double base, factor;      /* base 0 means 10000; factor 0 means 1 */
  float const* frequencies; /* d / 2 numbers, or null */
} kvmeld_rope;

/* What the score "learned" has learned of a model (kvmeld.learn in Python): 2 * key_dim + 2 floats for each
   KV head of each layer, [layers][kv_heads][2 * key_dim + 2]. */
typedef struct kvmeld_learned {
  uint32_t layers, kv_heads, key_dim; /* of the whole model */
  float const* weights;
} kvmeld_learned;

/* How the model's attention differs from softmax(scale * q.k + log degree). kvmeld_attend computes it, and
   kvmeld_observe counts by it. */
typedef struct kvmeld_attention {
  float softcap;        /* c: c * tanh(x / c) takes the place of x = scale * q.k (Gemma 2); 0: x stays */
  uint32_t window;      /* a query at position p sees entries at positions above p - window; 0: all */
  int32_t window_sinks; /* the window hides no entry at a position below this */
  float const* sinks;   /* [layers][query heads] of the cache, or null: one logit per query head that takes
                           part in the softmax and has no value (gpt-oss). It is neither scaled nor capped. The
                           log-sum-exp contains it, also that which an engine gives to kvmeld_observe. */
} kvmeld_attention;

/* What a cache is built with. kvmeld_options_init sets `bytes`, the device to -1, all else to 0 or null. */
typedef struct kvmeld_options {
  size_t bytes; /* sizeof(kvmeld_options) of the program; set by kvmeld_options_init */
  /* A preset ("leverage_dropkv", "snapkv", "chelsea": kvmeld_policies lists them), or parts:
     "score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64"
     (docs/c.md has all words). */
  char const* policy;
  /* Query head h reads KV head h / queries_per_kv_head. key_dim and value_dim count the channels of a row,
     capacity the slots of a track. */
  uint32_t layers, sequences, kv_heads, queries_per_kv_head, key_dim, value_dim, capacity;
  kvmeld_element element;    /* of keys and values; default KVMELD_FLOAT32 */
  kvmeld_scope scope;        /* tracks that share a plan, and so positions and degrees; default KVMELD_HEAD */
  kvmeld_scope budgets_over; /* the widest scope of a budget; default KVMELD_HEAD */
  kvmeld_bias bias;          /* default KVMELD_BIAS_PER_HEAD */
  int32_t ignore_degree;     /* 1: every entry counts as one token, whatever its degree */
  int32_t padded;            /* 1: the tracks of a sequence have the same length after a compression; slots
                                behind a track's own end have degree 0 and rows of zeros */
  int32_t zero_emptied;      /* 1: value rows behind a shortened track become zeros; padded implies it */
  uint32_t first_layer, first_kv_head; /* the model's numbers of the cache's first layer and first KV head,
                                          if this rank holds a part of the model */
  /* Pages; page_size 0: none. page_table[sequence * page_table_stride + i] is the number of a sequence's i-th
     page in the pools. Every call that reads or writes rows reads the table, which must outlive the cache.
     The numbers in it are not checked. */
  uint32_t page_size;
  int32_t const* page_table;
  int64_t page_table_stride;
  uint32_t threads; /* 0: as many as this process may use; 1: the caller's thread alone. On a device it
                       is not read */
  int32_t device;   /* -1: host memory (default); else the number of a CUDA device */
  void* stream;     /* CUDA: the cudaStream_t that calls enqueue to, which must outlive the cache;
                       null: the legacy default stream */
  kvmeld_allocator allocator; /* null functions: the system's memory; on a device cudaMallocAsync's */
  /* How the model rotates queries, and the keys that lie in the cache; kvmeld_create copies it. Null: not
     told. Then a policy that turns keys back (kvmeld_asks) is refused, unless its text says it. Other
     policies do not read it. */
  kvmeld_rope const* rope;
  /* What was learned of the model, for policies with the score "learned", which are refused without;
     kvmeld_create copies the part of the cache's layers and KV heads. Other policies do not read it. */
  kvmeld_learned const* learned;
  /* How the model computes attention; kvmeld_create copies it. Null: softmax(scale * q.k + log degree). A
     cache has layers of one kind: where a model has several (windows in some layers), each kind that shall
     shrink is a cache of its own. */
  kvmeld_attention const* attention;
  /* With pages: how many the pools have; 0: not told. If it is told, the ledger's numbers per entry lie in
     pages as the rows do, and take bytes for the pool alone; otherwise for options.sequences *
     options.capacity. The page table must then name a page of the pool for every entry that is held and every
     token that is appended. Sequences that share a page share these numbers: its entries must be frozen in
     all of them, and scores of frozen entries stay as they were. kvmeld_copy_page copies a page's numbers. */
  uint32_t pool_pages;
} kvmeld_options;

/* How many entries a track may keep. Exactly one of `entries` and `ratio` is not 0. */
typedef struct kvmeld_budget {
  uint32_t entries;  /* entries of each track */
  double ratio;      /* share of the tokens seen (kvmeld_tokens), above 0 to 1; rounded down */
  kvmeld_scope over; /* tracks that share their budgets; at most options.budgets_over. Any but KVMELD_HEAD
                        needs options.scope KVMELD_HEAD and a policy that decides by score alone what stays */
  double floor;      /* share of its own budget, 0 to 1, that each of these tracks keeps; with KVMELD_HEAD it
                        is not read */
  int32_t keep;      /* for a track that merging does not bring to its budget. 1: it stays longer; 0: its
                        entries with the lowest scores are evicted */
} kvmeld_budget;

/* --- the library --------------------------------------------------------------------------------------- */

/* These four can be called by any thread at any time, and do not wait. The texts must not be freed. */
KVMELD_API uint32_t kvmeld_abi(void);
/* The version of kvmeld, such as "1.2.3". */
KVMELD_API char const* kvmeld_version(void);
/* Why this thread's last call that returns a status was refused; empty after KVMELD_OK. Valid until this
   thread's next such call. */
KVMELD_API char const* kvmeld_problem(void);
/* The presets' names, one per line, each followed by a tab and a sentence. */
KVMELD_API char const* kvmeld_policies(void);

/* --- caches -------------------------------------------------------------------------------------------- */

/* Sets `options` to the defaults. `bytes` is sizeof *options: the library may know more fields than the
   program. Any thread may call it at any time; does not wait. Refuses a null pointer, and `bytes` too few for
   the field `bytes`. */
KVMELD_API kvmeld_status kvmeld_options_init(kvmeld_options* options, size_t bytes);
/* The bytes of ledger and workspace that kvmeld_create would allocate for these options; on a device also
   those of staged lists and of a layout per layer. Scratch is not included. Asks options.allocator for
   nothing. On a device it takes some 256 KiB from cudaMallocAsync, and gives them back. Any thread may call
   it at any time; does not wait. Refuses what kvmeld_create refuses of options. */
KVMELD_API kvmeld_status kvmeld_bytes(kvmeld_options const* options, size_t* bytes);
/* Checks whether kvmeld_create would take these options, and whether kvmeld_compress would take this budget
   for a sequence of `tokens` tokens that was never compressed, with nothing frozen. Returns their status, and
   leaves their text in kvmeld_problem. Does not look at tensors, nor at what a policy has to be shown. Makes
   nothing. With a null `budget` it checks the options alone. `least` gets the fewest entries that the policy
   can leave such a track, because of what it pins; it may be null. Any thread may call it at any time; does
   not wait. */
KVMELD_API kvmeld_status kvmeld_check(kvmeld_options const* options, kvmeld_budget const* budget,
                                      uint32_t tokens, uint32_t* least);
/* What a policy asks of the model. `rope` gets 1 if the policy turns keys back, and its text lacks words such
   as "rope=half_split rope_base=500000": then options.rope must be given. `learned` gets 1 if the policy's
   score is learned: then options.learned must be given. Otherwise they get 0. Either may be null. Any thread
   may call it at any time; does not wait. Refuses a text that is no policy. */
KVMELD_API kvmeld_status kvmeld_asks(char const* policy, int32_t* rope, int32_t* learned);
/* Makes a cache on the engine's tensors, which stay the engine's and must outlive the cache. `keys` and
   `values` are arrays of `tensors` descriptions: 1 if one tensor holds all layers, or options.layers. They
   are copied, and so are the options. `made` gets the handle. Only kvmeld_fork, kvmeld_drop_positions,
   kvmeld_shift, kvmeld_renumber, kvmeld_observe, kvmeld_compress and kvmeld_attend touch rows. Allocates what
   kvmeld_bytes says. Any thread may call it at any time. Waits only for learned weights of more than 64 KB.
   Refuses options and tensors that do not fit together. */
KVMELD_API kvmeld_status kvmeld_create(kvmeld_options const* options, kvmeld_tensor const* keys,
                                       kvmeld_tensor const* values, uint32_t tensors, kvmeld_cache* made);
/* Tells the cache that its tensors lie elsewhere from now on, with the same rows in them. The arguments are
   those of kvmeld_create. Does not wait: on a device, work that was enqueued before still uses the old
   tensors. */
KVMELD_API kvmeld_status kvmeld_rebind(kvmeld_cache cache, kvmeld_tensor const* keys,
                                       kvmeld_tensor const* values, uint32_t tensors);
/* Frees what kvmeld_create allocated. The tensors stay as they are. Refuses a cache of id 0. Does not wait:
   on a device, work that was enqueued before still uses tensors and page table. */
KVMELD_API kvmeld_status kvmeld_destroy(kvmeld_cache cache);
/* The policy by its parts: "local x top x evict_rest x drop". Valid until the cache is destroyed. Does not
   wait. */
KVMELD_API kvmeld_status kvmeld_policy(kvmeld_cache cache, char const** name);

/* --- sequences ----------------------------------------------------------------------------------------- */

/* Sequences have the numbers 0 to options.sequences - 1. Calls that change a sequence refuse one that is not
   open; kvmeld_open, kvmeld_resume and the copy of kvmeld_fork need a closed one. Calls that take several are
   given n numbers in each of their arrays, and refuse a sequence that is listed twice. Tokens are pending
   from kvmeld_append to kvmeld_commit: attention sees them, nothing merges them. */

/* Begins a sequence that is not open. `tokens` tokens lie in K and V already; each becomes an entry of degree
   1, with its slot as position. The first `frozen` entries are never written or moved. `tokens` is at most
   the capacity, and `frozen` at most `tokens`. Takes time in proportion to `tokens`. Does
   not wait. */
KVMELD_API kvmeld_status kvmeld_open(kvmeld_cache cache, uint32_t sequence, uint32_t tokens, uint32_t frozen);
/* Ends a sequence; its number can be opened again. Does not wait. */
KVMELD_API kvmeld_status kvmeld_close(kvmeld_cache cache, uint32_t sequence);
/* Adds counts[i] pending tokens to sequences[i]. Each track becomes counts[i] slots longer at its end, and
   the engine writes the rows of these slots. Waits only if a bound of the lengths leaves too little room.
   Refused if a track has too little room. Example: a track has 4 entries, and 6 tokens were seen. 3 pending
   tokens get the slots 4 to 6 and the positions 6 to 8. kvmeld_commit of 2 of them leaves 6 entries, and 8
   tokens seen. */
KVMELD_API kvmeld_status kvmeld_append(kvmeld_cache cache, uint32_t const* sequences, uint32_t const* counts,
                                       uint32_t n);
/* Keeps the first accepted[i] pending tokens of sequences[i], and drops the others. Does not wait. Refused if
   fewer are pending. */
KVMELD_API kvmeld_status kvmeld_commit(kvmeld_cache cache, uint32_t const* sequences,
                                       uint32_t const* accepted, uint32_t n);
/* Copies sequence `from`, which has nothing pending, into the closed sequence `into`: rows, degrees,
   positions, scores. Takes time in proportion to the entries, and copies their rows. Does not
   wait. */
KVMELD_API kvmeld_status kvmeld_fork(kvmeld_cache cache, uint32_t from, uint32_t into);
/* Copies what the ledger holds of page `from` to page `into`, if options.pool_pages was told: for a page that
   an engine copies or moves, in order with other calls, before the page table names `into`. Takes time in
   proportion to a page. Does not wait. Refuses a page that is none of the pool. */
KVMELD_API kvmeld_status kvmeld_copy_page(kvmeld_cache cache, uint32_t from, uint32_t into);
/* Goes back to the first `tokens` tokens: forgets the entries at positions from `tokens` on. Waits only if it
   goes back to before a gap that kvmeld_drop_positions or kvmeld_shift left. Refused while tokens are
   pending, if a token to forget came before a compression that changed the sequence, and if frozen entries
   are among those to forget. Scores keep what forgotten queries added. Example: of 8 tokens, 6 were there at
   the last compression. Then `tokens` is 6 to 8; 7 forgets one entry of every track. */
KVMELD_API kvmeld_status kvmeld_truncate(kvmeld_cache cache, uint32_t sequence, uint32_t tokens);
/* Drops the entries at positions `first` to `last` - 1 from every track, in place: a document or a tool's
   output leaves the middle of a context. The other entries move to the beginning of their track and keep
   their order, degrees, positions and scores. An entry goes or stays by its own position, with all the tokens
   it stands for: an entry outside the range stays as it is, even if it merged tokens of the range. What a
   policy pins (sinks, recents) goes too. kvmeld_tokens stays, and positions do not close up:
   kvmeld_shift(cache, sequence, first - last, rope, last) or kvmeld_renumber closes the gap. kvmeld_truncate
   can still go back to every token that came after the last compression (with options.padded: only to the
   tokens seen, if tracks get empty slots). Queries that are observed together afterwards are of tokens from
   `last` on. Waits only if the sequence has frozen entries. Refused while tokens are pending, if the range is
   not within the tokens seen, and if it holds a frozen entry. Example: of the positions 0, 2, 4, 5, 6, 7,
   first 1 and last 5 drop 2 and 4. */
KVMELD_API kvmeld_status kvmeld_drop_positions(kvmeld_cache cache, uint32_t sequence, int32_t first,
                                               int32_t last);
/* Moves the entries at positions from `first` on, and the next token, by `offset` positions; 0 changes
   nothing. Keys turn in place by the same offset; with `rope` null they stay as they lie. Rotations are
   linear, so logits stay the same, up to rounding, for queries that are rotated likewise, merged keys
   included. Entries below `first` (sinks) stay. kvmeld_tokens, budgets by ratio and kvmeld_truncate count by
   the new positions. The fewest tokens that kvmeld_truncate can go back to move by `offset`, too. Waits.
   Refused while tokens are pending, if `first` is above the tokens seen, if an entry would come to a position
   below 0 or not above one that stays, and if a key that would turn is frozen. Example: of the positions 0,
   5, 6, 7 and the next token 8, offset -4 and first 5 make 0, 1, 2, 3 and 4. */
KVMELD_API kvmeld_status kvmeld_shift(kvmeld_cache cache, uint32_t sequence, int32_t offset,
                                      kvmeld_rope const* rope, int32_t first);
/* Gives entries positions without gaps, as if they were all that was read: the newest entry of every track
   comes to `longest` - 1, the one before it to `longest` - 2, and so on, where `longest` is the length of the
   longest track. The next token has position `longest`, and later budgets by ratio count from it. Keys turn
   in place by as much as their positions change; with `rope` null they stay as they lie. Logits change,
   because entries come closer to each other and to later queries. Queries that a policy keeps do not turn:
   show the last ones again before the next compression. Waits. Refused while tokens are pending, if a key
   that would turn is frozen, and if padded tracks have empty slots. */
KVMELD_API kvmeld_status kvmeld_renumber(kvmeld_cache cache, uint32_t sequence, kvmeld_rope const* rope);

/* --- compression --------------------------------------------------------------------------------------- */

/* When the policy has to be shown queries or attention. */
typedef int32_t kvmeld_observation;
enum {
  KVMELD_OBSERVE_NOTHING = 0,
  KVMELD_OBSERVE_LAST_QUERIES = 1, /* the last `rows` queries before a compression */
  KVMELD_OBSERVE_EVERY_STEP = 2,   /* the queries of prompts and of every generated token */
  KVMELD_OBSERVE_REPLAY = 3        /* the queries of a second reading of the prompt, and no others */
};

/* What the policy has to be shown before it compresses. `rows` becomes the number of last queries that count
   (0: all). `queries` becomes 1 if only kvmeld_observe can show it, and kvmeld_observe_rows is refused. An
   argument that is null is not written. Does not wait. */
KVMELD_API kvmeld_status kvmeld_needs(kvmeld_cache cache, kvmeld_observation* when, uint32_t* rows,
                                      int32_t* queries);
/* Shows a policy the last n queries of a sequence in one layer, rotated as for attention: query (head, i,
   channel) is at queries + head * head_stride + i * row_stride + channel, for each query head; strides are in
   elements. The last query is that of the last token. lse[head * lse_stride + i] is the natural log-sum-exp
   of its logits, log degrees included. If lse is null and the policy needs it, kvmeld computes the attention
   first, which takes about as long again, and n * query heads * (value_dim + 1) floats of the heap, or of the
   allocator's memory on a device. Logits are scale * q.k; scale 0 means 1 / sqrt(key_dim). Takes time in
   proportion to n times the entries of a track. Waits only if the host does not know the lengths. Refused
   while tokens are pending, and if n exceeds the entries of a track or, with options.padded, the tokens since
   the last compression. Does nothing if the policy needs nothing. Example: the last query has the logits 0, 0
   and ln 2 on the three entries of a track, so lse is ln 4. The scores of "h2o" grow by 1/4, 1/4 and 1/2. */
KVMELD_API kvmeld_status kvmeld_observe(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                                        kvmeld_element element, void const* queries, int64_t head_stride,
                                        int64_t row_stride, float const* lse, int64_t lse_stride,
                                        float scale);
/* Shows a policy probabilities instead of queries: that of query i of a query head on entry j is at rows +
   head * head_stride + i * row_stride + j, for each entry of the head's track. They are added as they are:
   NaN and negative numbers are not refused. Does not wait. Refuses what kvmeld_observe refuses, and policies
   that need queries. */
KVMELD_API kvmeld_status kvmeld_observe_rows(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                             uint32_t n, float const* rows, int64_t head_stride,
                                             int64_t row_stride);
/* Sets scores of the engine's own, for policies with score=given: that of entry j of a KV head is at scores +
   head * head_stride + j, pending entries included. NaN ranks lowest. Does not wait. Refuses policies with
   other scores. */
KVMELD_API kvmeld_status kvmeld_set_scores(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                           float const* scores, int64_t head_stride);
/* Shrinks each listed sequence to its budget, in place, in every layer and head. What stays moves to the
   beginning of its track and keeps its order. Does not wait. Refused while tokens are pending, if the budget
   is smaller than what the policy pins, and if the policy ranks by attention and was shown none of a layer.
   The time depends on the policy (docs/performance.md). Example: "chelsea", and a track of 6 entries with the
   keys (9, 0), (1, 0), (1, 0.1), (1, 0.2), (0, 1), (0, 9). With 4 entries, slots 1, 2 and 3 become one entry:
   degree 3, position 2, key (1, 0.1), their mean. The first and the last entry are pinned. Slots 0 to 3 then
   have the positions 0, 2, 4 and 5. */
KVMELD_API kvmeld_status kvmeld_compress(kvmeld_cache cache, uint32_t const* sequences, uint32_t n,
                                         kvmeld_budget budget);

/* --- what a cache holds -------------------------------------------------------------------------------- */

/* Of a closed sequence these functions tell what it held last. Lengths include pending entries and, with
   options.padded, empty slots, whose degree is 0. */

/* Tokens seen, pending ones included: the position of the next token. After kvmeld_shift and kvmeld_renumber
   they count by the new positions; kvmeld_drop_positions leaves them. Does not wait. */
KVMELD_API kvmeld_status kvmeld_tokens(kvmeld_cache cache, uint32_t sequence, uint32_t* tokens);
/* The length of the longest track of a sequence. Waits only if the host does not know the lengths. */
KVMELD_API kvmeld_status kvmeld_longest(kvmeld_cache cache, uint32_t sequence, uint32_t* entries);
/* Writes the length of each track to lengths[layer * kv_heads + head]. Waits only if the host does not know
   the lengths. */
KVMELD_API kvmeld_status kvmeld_lengths(kvmeld_cache cache, uint32_t sequence, uint32_t* lengths);
/* Copies the degree (how many tokens the entry stands for) or the position (the one that the entry's key is
   rotated for) of each entry of a track. `capacity` is the room in the array, at least the track's length.
   Both wait. */
KVMELD_API kvmeld_status kvmeld_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                        uint32_t kv_head, float* degrees, uint32_t capacity);
KVMELD_API kvmeld_status kvmeld_positions(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                          uint32_t kv_head, int32_t* positions, uint32_t capacity);
/* What attention adds to logits. For each query head, bias + head * head_stride gets `columns` numbers: the
   natural logarithm of the degree of each entry, and the lowest finite float for empty slots and behind the
   last entry. `columns` is at least the length of the layer's longest track. Waits only if the host does not
   know the lengths. */
KVMELD_API kvmeld_status kvmeld_log_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence,
                                            float* bias, int64_t head_stride, uint32_t columns);
/* What the last compression of a sequence found. */
enum {
  KVMELD_WARN_NONFINITE_ROWS = 1,   /* rows with NaN or infinity, which never merge */
  KVMELD_WARN_BUDGET_UNREACHED = 2, /* nothing was left that could merge; a track is longer than its budget */
  KVMELD_WARN_EVICTED = 4,          /* entries were evicted to reach the budget */
  KVMELD_WARN_OVERFULL = 8          /* entries beyond the capacity were dropped */
};
/* The warnings of all tracks of a sequence, as a sum of bits. Waits. */
KVMELD_API kvmeld_status kvmeld_warnings(kvmeld_cache cache, uint32_t sequence, uint32_t* warnings);

/* --- attention ----------------------------------------------------------------------------------------- */

/* kvmeld's own attention of the last n queries of a sequence in one layer, log degrees included, as
   options.attention says. It is causal. The last query is that of the last token, pending ones included. The
   n tokens must have come since the last compression, which is not checked. Each query takes time in
   proportion to its track. `queries` and `scale` are as in kvmeld_observe. `out` has the form of queries, but
   value_dim channels, and their element type or float32. `lse` gets natural log-sum-exps, lse[head *
   lse_stride + i], or is null. A query that sees no entry gets zeros, and the lowest finite float as its
   log-sum-exp. Sums are in float. Does not wait. Example: two entries have the degrees 3 and 1 and the values
   1 and 5. A query whose products with both keys are 0 gets 2, and lse ln 4. */
KVMELD_API kvmeld_status kvmeld_attend(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                                       kvmeld_element element, void const* queries, int64_t head_stride,
                                       int64_t row_stride, kvmeld_element out_element, void* out,
                                       int64_t out_head_stride, int64_t out_row_stride, float* lse,
                                       int64_t lse_stride, float scale);

/* --- saving -------------------------------------------------------------------------------------------- */

/* The number of bytes that kvmeld_save writes. Waits, and takes about as long as kvmeld_save. */
KVMELD_API kvmeld_status kvmeld_saved_bytes(kvmeld_cache cache, uint32_t sequence, size_t* bytes);
/* Writes the ledger of a sequence, pending tokens included, with a checksum. `bytes` is the room in `out`.
   The engine keeps the rows of K and V. Takes time in proportion to the entries. Waits. Refused if the room
   is too small. */
KVMELD_API kvmeld_status kvmeld_save(kvmeld_cache cache, uint32_t sequence, void* out, size_t bytes);
/* Opens a closed sequence in the state that was saved, in this cache or another one. The sequence then
   continues as it would have without the save. The policy, what its scores depend on (windows, rotation), and
   of the options layers, heads, channels, element, scope, ignore_degree, padded, first_layer and
   first_kv_head have to agree; the others may differ, but options.bias has to suit the degrees. The engine
   restores the rows. May wait. Refuses bytes of a cache that does not agree in these, bytes that were
   changed, and bytes in another version of the format. Example: a sequence was saved with 6 entries in a
   track and 8 tokens seen. The resumed one has both, and the engine copies rows 0 to 5 of the track. */
KVMELD_API kvmeld_status kvmeld_resume(kvmeld_cache cache, uint32_t sequence, void const* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
