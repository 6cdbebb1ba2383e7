/* A program in C: a cache of 1,000 tokens shrinks to a fifth, in place. It needs kvmeld.h and libkvmeld. */
#include <kvmeld/kvmeld.h>
#include <stdio.h>
#include <stdlib.h>

enum { layers = 2, heads = 4, dim = 64, capacity = 1024, elements = layers * heads * capacity * dim };

int main(void) {
  float* k = malloc(elements * sizeof *k); /* [layer][head][token][channel], as the engine has them */
  float* v = malloc(elements * sizeof *v);
  for (int i = 0; k != NULL && v != NULL && i < elements; ++i)
    v[i] = k[i] = (float)(i * 7919LL % 1009) / 1009;
  kvmeld_tensor keys = {k, heads * capacity * dim, 0, capacity * dim, dim, 1}, values = keys;
  values.data = v;

  kvmeld_options o;
  kvmeld_options_init(&o, sizeof o);
  o.policy = "chelsea";
  o.layers = layers, o.sequences = 1, o.kv_heads = heads, o.queries_per_kv_head = 1;
  o.key_dim = o.value_dim = dim, o.capacity = capacity;

  kvmeld_cache cache = {0};
  uint32_t const sequence = 0;
  kvmeld_budget const fifth = {0, 0.2, KVMELD_HEAD, 0.0, 0};
  uint32_t entries = 0;
  float degrees[capacity];
  if (kvmeld_create(&o, &keys, &values, 1, &cache) || kvmeld_open(cache, 0, 1000, 0) ||
      kvmeld_compress(cache, &sequence, 1, fifth) || kvmeld_longest(cache, 0, &entries) ||
      kvmeld_degrees(cache, 0, 0, 0, degrees, capacity)) {
    fprintf(stderr, "%s\n", kvmeld_problem());
    return 1;
  }
  printf("1000 tokens in %u entries; entry 20 stands for %g tokens\n", (unsigned)entries, degrees[20]);
  kvmeld_destroy(cache);
  free(k);
  free(v);
  return entries == 200 && fflush(stdout) == 0 ? 0 : 1; /* a full disk is no success */
}
