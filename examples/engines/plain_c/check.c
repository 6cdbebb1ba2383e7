/* merging.h without an engine: a text of a few tokens whose rows are numbers that can be found again, and
 * calls that are refused. */
#include "merging.h"

#include "../../all_printed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { layers = 2, heads = 4, kv_heads = 2, d = 8, capacity = 16, slots = layers * capacity * kv_heads };

#define EXPECT(condition) expect(condition, #condition, __LINE__)
static void expect(int holds, char const* condition, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s\n", line, condition);
  exit(EXIT_FAILURE);
}

static float keys[slots * d], values[slots * d], queries[heads * d];

static float key_at(int layer, int slot, int head) {
  return keys[((layer * capacity + slot) * kv_heads + head) * d + d - 1];
}

/* A token whose rows are its number everywhere. */
static void read_token(int token, int pos) {
  EXPECT(merging_begin(pos) == 0);
  float *const key = merging_key(), *const value = merging_value();
  for (int layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < kv_heads * d; ++i) key[i] = value[i] = (float)token;
    merging_store(layer, key, value);
    for (int head = 0; head < heads; ++head) {
      int const n = merging_length(layer, head);
      float logits[capacity] = {0};
      for (int i = 0; i < n; ++i) logits[i] = 0.25f * (float)i;
      EXPECT((int)(4 * merging_logits(layer, head, logits)) == n - 1);
    }
    EXPECT(merging_observe(layer, queries) == 0);
  }
  EXPECT(merging_problem() == NULL);
}

/* A refusal says why, changes no row, and is forgotten when a text begins. */
static void refused_calls(void) {
  kvmeld_budget nothing;
  memset(&nothing, 0, sizeof nothing);
  EXPECT(merging_create(layers, heads, 3, d, capacity, KVMELD_FLOAT32, keys, values, "chelsea") == 1);
  EXPECT(!merging() && strstr(merging_problem(), "kv_heads divide heads") != NULL);
  EXPECT(merging_create(layers, heads, kv_heads, d, capacity, KVMELD_FLOAT32, keys, values, "no policy") ==
         1);
  EXPECT(!merging() && strlen(merging_problem()) > 20);
  EXPECT(merging_create(layers, heads, kv_heads, d, capacity, KVMELD_BFLOAT16, keys, values, "chelsea") == 1);
  EXPECT(merging_create(layers, heads, kv_heads, d, capacity, KVMELD_FLOAT32, keys, values, "chelsea") == 0);
  EXPECT(merging() && merging_problem() == NULL);
  merging_store(0, queries, queries); /* no token has begun: there is no slot */
  for (int i = 0; i < capacity; ++i) read_token(i, i);
  float before[slots * d];
  memcpy(before, keys, sizeof keys);
  EXPECT(merging_begin(capacity) == 1); /* the cache is full */
  EXPECT(strstr(merging_problem(), "append") != NULL);
  EXPECT(merging_begin(capacity + 5) == 1);
  EXPECT(merging_begin(-1) == 1);
  EXPECT(merging_compress(nothing) == 1);
  EXPECT(memcmp(before, keys, sizeof keys) == 0);
  read_token(0, 0);
  merging_destroy();
  EXPECT(!merging() && merging_problem() == NULL);
}

int main(void) {
  kvmeld_budget half;
  memset(&half, 0, sizeof half);
  half.ratio = 0.5;
  EXPECT(!merging());
  EXPECT(merging_create(layers, heads, kv_heads, d, capacity, KVMELD_FLOAT32, keys, values,
                        "streaming_llm sinks=2") == 0);
  EXPECT(merging());
  for (int text = 0; text < 2; ++text) { /* position 0 begins the second */
    for (int i = 0; i < 12; ++i) read_token(100 + i, i);
    EXPECT(merging_length(1, 3) == 12);
    EXPECT(merging_compress(half) == 0);
    EXPECT(merging_length(0, 0) == 6);
    read_token(200, 12);
    read_token(201, 12); /* back to position 12 */
    static int const wanted[] = {100, 101, 108, 109, 110, 111, 201};
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < kv_heads; ++head) {
        EXPECT(merging_length(layer, 2 * head) == 7);
        for (int slot = 0; slot < 7; ++slot) EXPECT((int)key_at(layer, slot, head) == wanted[slot]);
      }
    }
  }
  merging_destroy();
  refused_calls();
  puts("two texts read, halved and continued");
  return all_printed() ? 0 : 1;
}
