/* merging.h without an engine: a text of a few tokens whose rows are numbers that can be found again. */
#include "merging.h"

enum { layers = 2, heads = 4, kv_heads = 2, d = 8, capacity = 16, slots = layers * capacity * kv_heads };

#define EXPECT(condition) expect(condition, #condition, __LINE__)
static void expect(int holds, char const* condition, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s\n", line, condition);
  exit(EXIT_FAILURE);
}

static float keys[slots * d], values[slots * d], queries[heads * d];

static float key_at(size_t layer, size_t slot, size_t head) {
  return keys[((layer * capacity + slot) * kv_heads + head) * d + d - 1];
}

/* A token whose rows are its number everywhere. */
static void read_token(int token, int pos) {
  merging_begin(pos);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < kv_heads * d; ++i) m.key[i] = m.value[i] = (float)token;
    merging_store(layer, m.key, m.value);
    for (uint32_t head = 0; head < heads; ++head) {
      uint32_t const n = merging_length(layer, head);
      float logits[capacity] = {0};
      double sum = 0;
      for (uint32_t i = 0; i < n; ++i) sum += exp(logits[i] = 0.25f * (float)i);
      EXPECT((int)(4 * merging_logits(layer, head, logits)) == (int)n - 1);
      EXPECT(fabs(log(sum) - (double)m.log_sum_exps[head]) < 1e-5);
    }
    merging_observe(layer, queries);
  }
}

int main(void) {
  kvmeld_budget half;
  memset(&half, 0, sizeof half);
  half.ratio = 0.5;
  EXPECT(!merging());
  merging_create(layers, heads, kv_heads, d, capacity, keys, values, "streaming_llm sinks=2");
  EXPECT(merging());
  for (int text = 0; text < 2; ++text) { /* position 0 begins the second */
    for (int i = 0; i < 12; ++i) read_token(100 + i, i);
    EXPECT(merging_length(1, 3) == 12);
    merging_compress(half);
    EXPECT(merging_length(0, 0) == 6);
    read_token(200, 12);
    read_token(201, 12); /* back to position 12 */
    static int const wanted[] = {100, 101, 108, 109, 110, 111, 201};
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (uint32_t head = 0; head < kv_heads; ++head) {
        EXPECT(merging_length(layer, 2 * head) == 7);
        for (size_t slot = 0; slot < 7; ++slot) EXPECT((int)key_at(layer, slot, head) == wanted[slot]);
      }
    }
  }
  kvmeld_destroy(m.cache);
  free(m.lengths);
  free(m.log_sum_exps);
  free(m.bias);
  free(m.key);
  free(m.value);
  puts("two texts read, halved and continued");
  return 0;
}
