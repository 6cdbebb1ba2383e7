/* A program in C11 that goes through every function of kvmeld.h that works on a cache, and compares all that
   it can ask with what the C++ template makes of the same life: for several policies, elements and forms of
   tensors. */
#include "life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void fail(char const* what, char const* where) {
  if (++failures <= 20) fprintf(stderr, "%s: %s differs\n", where, what);
}
static void same(void const* a, void const* b, size_t bytes, char const* what, char const* where) {
  if (memcmp(a, b, bytes) != 0) fail(what, where);
}
static void ok(kvmeld_status status, char const* where) {
  if (status == KVMELD_OK && kvmeld_problem()[0] == '\0') return;
  fprintf(stderr, "%s: status %d: %s\n", where, (int)status, kvmeld_problem());
  exit(1);
}
#define OK(call) ok(call, #call) /* the text of the call names it */

static void* memory_of(size_t bytes) {
  void* const out = calloc(bytes, 1);
  if (out == NULL) exit(2);
  return out;
}

/* --- an engine
 * ------------------------------------------------------------------------------------------------ */

enum { PAGE = 16, PAGES_OF_SEQUENCE = CAPACITY / PAGE, POOL = SEQUENCES * PAGES_OF_SEQUENCE };

/* K or V in one of the forms that kvmeld.h knows. */
enum { ONE_TENSOR, PER_LAYER, ODD_STRIDES, PAGES_IN_ONE_POOL, PAGES_PER_LAYER, FORMS };

typedef struct engine {
  int form;
  kvmeld_element element;
  kvmeld_tensor tensors[2][LAYERS];
  unsigned char* memory[2][LAYERS]; /* NULL from the second on where all layers lie in one */
  size_t bytes;                     /* of each */
  int32_t table[SEQUENCES][PAGES_OF_SEQUENCE];
  kvmeld_cache cache;
} engine;

static size_t element_bytes(engine const* e) { return e->element == KVMELD_FLOAT32 ? 4 : 2; }
static uint32_t channels_of(int which) { return which == 0 ? KEY_DIM : VALUE_DIM; }
static int has_pages(engine const* e) { return e->form >= PAGES_IN_ONE_POOL; }
static uint32_t tensors_of(engine const* e) {
  return e->form == PER_LAYER || e->form == PAGES_PER_LAYER ? LAYERS : 1;
}

static kvmeld_tensor strides_of(int form, int64_t d) {
  int64_t const t = CAPACITY, s = SEQUENCES, h = KV_HEADS, page = (int64_t)PAGE * d;
  kvmeld_tensor out = {NULL, s * h * t * d, h * t * d, t * d, d,
                       1};                          /* [layer][sequence][head][token][channel] */
  if (form == PER_LAYER) out.layer_stride = -12345; /* not used */
  if (form == ODD_STRIDES) {                        /* [token][head][channel][layer][sequence] */
    out.sequence_stride = 1;
    out.layer_stride = s;
    out.channel_stride = LAYERS * s;
    out.head_stride = d * LAYERS * s;
    out.token_stride = h * d * LAYERS * s;
  }
  if (form == PAGES_IN_ONE_POOL || form == PAGES_PER_LAYER) { /* [layer][page][head][token][channel] */
    out.token_stride = d;
    out.head_stride = page;
    out.sequence_stride = h * page;
    out.layer_stride = form == PAGES_PER_LAYER ? 0 : POOL * h * page;
  }
  return out;
}

static void lay_out(engine* e) {
  for (int which = 0; which < 2; ++which) {
    size_t const layers = tensors_of(e) == 1 ? LAYERS : 1;
    e->bytes = (size_t)SEQUENCES * KV_HEADS * CAPACITY * VALUE_DIM * layers * element_bytes(e);
    for (uint32_t i = 0; i < tensors_of(e); ++i) {
      e->memory[which][i] = memory_of(e->bytes);
      e->tensors[which][i] = strides_of(e->form, channels_of(which));
      e->tensors[which][i].data = e->memory[which][i];
    }
  }
}

static void* address(engine const* e, int which, uint32_t layer, uint32_t sequence, uint32_t head,
                     uint32_t slot, uint32_t channel) {
  int const one = tensors_of(e) == 1;
  kvmeld_tensor const t = e->tensors[which][one ? 0 : layer];
  int64_t at = head * t.head_stride + channel * t.channel_stride + (one ? layer * t.layer_stride : 0);
  if (has_pages(e)) {
    at += e->table[sequence][slot / PAGE] * t.sequence_stride + slot % PAGE * t.token_stride;
  } else {
    at += sequence * t.sequence_stride + slot * t.token_stride;
  }
  return (unsigned char*)t.data + at * (int64_t)element_bytes(e);
}

static void write_rows(engine* e, uint32_t sequence, uint32_t first, uint32_t count) {
  uint32_t lengths[LAYERS][KV_HEADS];
  OK(kvmeld_lengths(e->cache, sequence, lengths[0]));
  for (uint32_t l = 0; l < LAYERS; ++l) {
    for (uint32_t h = 0; h < KV_HEADS; ++h) {
      for (uint32_t i = 0; i < count; ++i) {
        uint32_t const slot = lengths[l][h] - count + i;
        for (uint32_t c = 0; c < KEY_DIM; ++c)
          write_element(e->element, key_at(l, h, first + i, c), address(e, 0, l, sequence, h, slot, c));
        for (uint32_t c = 0; c < VALUE_DIM; ++c)
          write_element(e->element, value_at(l, h, first + i, c), address(e, 1, l, sequence, h, slot, c));
      }
    }
  }
}

static void* queries_of(engine const* e, uint32_t layer, uint32_t tokens, uint32_t n) {
  unsigned char* const out = memory_of((size_t)QUERY_HEADS * n * KEY_DIM * element_bytes(e));
  size_t at = 0;
  for (uint32_t h = 0; h < QUERY_HEADS; ++h) {
    for (uint32_t i = 0; i < n; ++i) {
      for (uint32_t c = 0; c < KEY_DIM; ++c, ++at)
        write_element(e->element, query_at(layer, h, tokens - n + i, c), out + at * element_bytes(e));
    }
  }
  return out;
}

/* --- what it shows the policy, and what it asks
 * --------------------------------------------------------------- */

/* with_lse: the program computes the log-sum-exps; else the library does. */
static void observe(engine* e, int policy, uint32_t sequence, uint32_t n, int with_lse) {
  uint32_t tokens;
  OK(kvmeld_tokens(e->cache, sequence, &tokens));
  for (uint32_t l = 0; l < LAYERS; ++l) {
    if (policy == LIFE_H2O) {
      float* const rows = memory_of(sizeof(float) * QUERY_HEADS * n * CAPACITY);
      size_t at = 0;
      for (uint32_t h = 0; h < QUERY_HEADS; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
          for (uint32_t s = 0; s < CAPACITY; ++s) rows[at++] = probability_at(l, h, i, s);
        }
      }
      OK(kvmeld_observe_rows(e->cache, l, sequence, n, rows, (int64_t)n * CAPACITY, CAPACITY));
      free(rows);
      continue;
    }
    void* const q = queries_of(e, l, tokens, n);
    float* const lse = memory_of(sizeof(float) * QUERY_HEADS * n);
    float* const out = memory_of(sizeof(float) * QUERY_HEADS * n * VALUE_DIM);
    if (with_lse) {
      OK(kvmeld_attend(e->cache, l, sequence, n, e->element, q, (int64_t)n * KEY_DIM, KEY_DIM, KVMELD_FLOAT32,
                       out, (int64_t)n * VALUE_DIM, VALUE_DIM, lse, n, 0.0f));
    }
    OK(kvmeld_observe(e->cache, l, sequence, n, e->element, q, (int64_t)n * KEY_DIM, KEY_DIM,
                      with_lse ? lse : NULL, n, 0.0f));
    free(out);
    free(lse);
    free(q);
  }
}

static void set_scores(engine* e, int policy, uint32_t sequence) {
  float scores[KV_HEADS][CAPACITY];
  if (policy != LIFE_KVZAP) return;
  for (uint32_t l = 0; l < LAYERS; ++l) {
    for (uint32_t h = 0; h < KV_HEADS; ++h) {
      for (uint32_t s = 0; s < CAPACITY; ++s) scores[h][s] = score_at(l, h, s);
    }
    OK(kvmeld_set_scores(e->cache, l, sequence, scores[0], CAPACITY));
  }
}

static checkpoint seen; /* too large for some stacks */

static void look(engine* e, uint32_t sequence, checkpoint const* expected, char const* where) {
  memset(&seen, 0, sizeof seen);
  OK(kvmeld_tokens(e->cache, sequence, &seen.tokens));
  OK(kvmeld_longest(e->cache, sequence, &seen.longest));
  OK(kvmeld_warnings(e->cache, sequence, &seen.warnings));
  OK(kvmeld_lengths(e->cache, sequence, seen.lengths[0]));
  for (uint32_t l = 0; l < LAYERS; ++l) {
    OK(kvmeld_log_degrees(e->cache, l, sequence, seen.log_degrees[l][0], CAPACITY, CAPACITY));
    for (uint32_t h = 0; h < KV_HEADS; ++h) {
      uint32_t const length = seen.lengths[l][h];
      OK(kvmeld_degrees(e->cache, l, sequence, h, seen.degrees[l][h], length));
      OK(kvmeld_positions(e->cache, l, sequence, h, seen.positions[l][h], length));
      for (uint32_t s = 0; s < length; ++s) {
        for (uint32_t c = 0; c < KEY_DIM; ++c)
          seen.keys[l][h][s][c] = bits_of_element(e->element, address(e, 0, l, sequence, h, s, c));
        for (uint32_t c = 0; c < VALUE_DIM; ++c)
          seen.values[l][h][s][c] = bits_of_element(e->element, address(e, 1, l, sequence, h, s, c));
      }
    }
    void* const q = queries_of(e, l, seen.tokens, 1);
    OK(kvmeld_attend(e->cache, l, sequence, 1, e->element, q, KEY_DIM, KEY_DIM, KVMELD_FLOAT32,
                     seen.outputs[l], QUERIES * VALUE_DIM, VALUE_DIM, seen.log_sums[l][0], QUERIES, 0.0f));
    free(q);
  }
  same(&seen.tokens, &expected->tokens, sizeof seen.tokens, "tokens", where);
  same(&seen.longest, &expected->longest, sizeof seen.longest, "longest", where);
  same(&seen.warnings, &expected->warnings, sizeof seen.warnings, "warnings", where);
  same(seen.lengths, expected->lengths, sizeof seen.lengths, "lengths", where);
  same(seen.degrees, expected->degrees, sizeof seen.degrees, "degrees", where);
  same(seen.positions, expected->positions, sizeof seen.positions, "positions", where);
  same(seen.log_degrees, expected->log_degrees, sizeof seen.log_degrees, "log degrees", where);
  same(seen.keys, expected->keys, sizeof seen.keys, "keys", where);
  same(seen.values, expected->values, sizeof seen.values, "values", where);
  same(seen.outputs, expected->outputs, sizeof seen.outputs, "outputs", where);
  same(seen.log_sums, expected->log_sums, sizeof seen.log_sums, "log-sum-exps", where);
}

/* --- the life
 * ------------------------------------------------------------------------------------------------- */

static char const* const policies[] = {"snapkv window=16 recents=16",
                                       "chelsea",
                                       "leverage_dropkv",
                                       "h2o",
                                       "kvzap threshold=0.25",
                                       ("score=key_difference select=top identify=chunked_bipartite "
                                        "merge=degree_weighted chunk=64 sinks=2 recents=25%")};
static char const* const parts[] = {
    "local x top x evict_rest x drop",
    "none x sinks_and_recents x chunked_bipartite:top_share x degree_weighted",
    "leverage+drop_error x top x evict_rest x drop",
    "global x top x evict_rest x drop",
    "given x above x evict_rest x drop",
    "key_difference x top x chunked_bipartite:top_share x degree_weighted"};
static kvmeld_observation const wanted[] = {KVMELD_OBSERVE_LAST_QUERIES, KVMELD_OBSERVE_NOTHING,
                                            KVMELD_OBSERVE_LAST_QUERIES, KVMELD_OBSERVE_EVERY_STEP,
                                            KVMELD_OBSERVE_NOTHING,      KVMELD_OBSERVE_NOTHING};
static uint32_t const wanted_rows[] = {16, 0, 8, 0, 0, 0};
static int32_t const wants_queries[] = {0, 0, 1, 0, 0, 0};

static void live(int policy, kvmeld_element element, int form, checkpoint const* expected) {
  char where[80];
  engine e = {0};
  e.form = form;
  e.element = element;
  lay_out(&e);
  for (int32_t s = 0; s < SEQUENCES; ++s) {
    for (int32_t i = 0; i < PAGES_OF_SEQUENCE; ++i) e.table[s][i] = (i * SEQUENCES + s) * 5 % POOL;
  }
  kvmeld_options o;
  OK(kvmeld_options_init(&o, sizeof o));
  o.policy = policies[policy];
  o.layers = LAYERS;
  o.sequences = SEQUENCES;
  o.kv_heads = KV_HEADS;
  o.queries_per_kv_head = GROUP;
  o.key_dim = KEY_DIM;
  o.value_dim = VALUE_DIM;
  o.capacity = CAPACITY;
  o.element = element;
  o.threads = 1 + (uint32_t)form % 2;
  if (has_pages(&e)) {
    o.page_size = PAGE;
    o.page_table = e.table[0];
    o.page_table_stride = PAGES_OF_SEQUENCE;
    /* The ledger in pages, or in arrays of its own. In pages, frozen entries gather no scores: a fork, in
       which they are not frozen, would go on from others. So this is for policies without scores of
       attention. */
    o.pool_pages = element == KVMELD_FLOAT32 && (policy == LIFE_CHELSEA || policy == LIFE_PARTS) ? POOL : 0;
  }
  OK(kvmeld_create(&o, e.tensors[0], e.tensors[1], tensors_of(&e), &e.cache));

  char const* name = "";
  kvmeld_observation when = -1;
  uint32_t rows = 99;
  int32_t queries = -1;
  OK(kvmeld_policy(e.cache, &name));
  if (strcmp(name, parts[policy]) != 0) fail(name, "policy");
  OK(kvmeld_needs(e.cache, &when, &rows, &queries));
  if (when != wanted[policy] || rows != wanted_rows[policy] || queries != wants_queries[policy])
    fail("what kvmeld_needs says", policies[policy]);

  uint32_t const zero = 0, one = 1, six = 6, four = 4, three = 3;
  kvmeld_budget const quarter = {0, 0.25, KVMELD_HEAD, 0.0, 0}, forty = {40, 0.0, KVMELD_HEAD, 0.0, 1},
                      few = {24, 0.0, KVMELD_HEAD, 0.0, 0};
  snprintf(where, sizeof where, "%.20s, element %d, form %d, first", policies[policy], (int)element, form);
  OK(kvmeld_open(e.cache, 0, 200, FROZEN));
  write_rows(&e, 0, 0, 200);
  observe(&e, policy, 0, QUERIES, 0);
  set_scores(&e, policy, 0);
  OK(kvmeld_compress(e.cache, &zero, 1, quarter));
  look(&e, 0, &expected[0], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, after append", policies[policy], (int)element,
           form);
  OK(kvmeld_append(e.cache, &zero, &six, 1));
  write_rows(&e, 0, 200, 6);
  OK(kvmeld_commit(e.cache, &zero, &four, 1));
  observe(&e, policy, 0, 4, 1);
  set_scores(&e, policy, 0);
  OK(kvmeld_compress(e.cache, &zero, 1, forty));
  look(&e, 0, &expected[1], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, after fork", policies[policy], (int)element,
           form);
  OK(kvmeld_fork(e.cache, 0, 1));
  OK(kvmeld_append(e.cache, &one, &three, 1));
  write_rows(&e, 1, 204, 3);
  OK(kvmeld_commit(e.cache, &one, &three, 1));
  OK(kvmeld_truncate(e.cache, 1, 205));
  look(&e, 1, &expected[2], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, resumed", policies[policy], (int)element, form);
  size_t bytes = 0;
  OK(kvmeld_saved_bytes(e.cache, 1, &bytes));
  void* const saved = memory_of(bytes);
  OK(kvmeld_save(e.cache, 1, saved, bytes));
  OK(kvmeld_resume(e.cache, 2, saved, bytes));
  free(saved);
  for (int which = 0; which < 2; ++which) {
    for (uint32_t l = 0; l < LAYERS; ++l) {
      for (uint32_t h = 0; h < KV_HEADS; ++h) {
        for (uint32_t s = 0; s < CAPACITY; ++s) {
          for (uint32_t c = 0; c < channels_of(which); ++c)
            memcpy(address(&e, which, l, 2, h, s, c), address(&e, which, l, 1, h, s, c), element_bytes(&e));
        }
      }
    }
  }
  look(&e, 2, &expected[3], where);

  /* The tensors move. What is left of the old ones must not be read or written any more. */
  snprintf(where, sizeof where, "%.20s, element %d, form %d, moved", policies[policy], (int)element, form);
  for (int which = 0; which < 2; ++which) {
    for (uint32_t i = 0; i < tensors_of(&e); ++i) {
      unsigned char* const old = e.memory[which][i];
      e.memory[which][i] = memory_of(e.bytes);
      memcpy(e.memory[which][i], old, e.bytes);
      e.tensors[which][i].data = e.memory[which][i];
      free(old);
    }
  }
  OK(kvmeld_rebind(e.cache, e.tensors[0], e.tensors[1], tensors_of(&e)));
  observe(&e, policy, 2, 1, 0);
  set_scores(&e, policy, 2);
  uint32_t const both[2] = {1, 2};
  OK(kvmeld_compress(e.cache, both, 2, few));
  look(&e, 2, &expected[4], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, renumbered", policies[policy], (int)element,
           form);
  float const frequencies[2] = {1.0f, 0.03125f};
  kvmeld_rope const rope = {KVMELD_ROPE_INTERLEAVED, 4, 0.0, 0.0, frequencies};
  OK(kvmeld_renumber(e.cache, 2, &rope));
  look(&e, 2, &expected[5], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, shifted", policies[policy], (int)element, form);
  OK(kvmeld_shift(e.cache, 2, 9, &rope, 2));
  look(&e, 2, &expected[6], where);

  snprintf(where, sizeof where, "%.20s, element %d, form %d, dropped", policies[policy], (int)element, form);
  OK(kvmeld_drop_positions(e.cache, 2, 15, 22));
  look(&e, 2, &expected[7], where);

  for (uint32_t s = 0; s < SEQUENCES; ++s) OK(kvmeld_close(e.cache, s));
  OK(kvmeld_destroy(e.cache));
  for (int which = 0; which < 2; ++which) {
    for (uint32_t i = 0; i < LAYERS; ++i) free(e.memory[which][i]);
  }
}

int main(void) {
  checkpoint* const expected = memory_of(sizeof(checkpoint) * CHECKPOINTS);
  int lives = 0;
  if (kvmeld_abi() != KVMELD_C_ABI) fail("kvmeld_abi", "the library");
  for (int policy = LIFE_SNAPKV; policy <= LIFE_PARTS; ++policy) {
    for (kvmeld_element element = KVMELD_FLOAT32; element <= KVMELD_BFLOAT16; ++element) {
      if (element != KVMELD_FLOAT32 && policy > LIFE_CHELSEA) continue;
      expected_life(policy, element, expected);
      for (int form = 0; form < FORMS; ++form, ++lives) live(policy, element, form, expected);
    }
  }
  free(expected);
  printf("%d lives, %d differences\n", lives, failures);
  return failures == 0 && lives == 50 ? 0 : 1;
}
