/* A file of the form of calm's src/run.c: it reads a prompt and goes on, and prints what each step gave. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
/*@11*/

void prepare(struct Transformer* transformer);
float* forward(struct Transformer* transformer, int token, int pos, unsigned flags);

static void generate(struct Transformer* transformer, int num_prompt_tokens, int steps) {
  int pos = 0, token = 1;
  printf("a prompt of %d tokens\n", num_prompt_tokens);
  while (pos < steps) {
    float* logits = transformer->forward(transformer, token, pos, 0);
    /*@12*/
    printf("%d %a %a\n", token, (double)logits[0], (double)logits[7]);
    token = (token * 75 + 74) % 257; /* whatever the logits are: both ways read the same text */
    pos++;
    /*@13*/
  }
}

int main(int argc, char** argv) {
  int const steps = argc > 1 ? atoi(argv[1]) : 100;
  struct Transformer transformer = {{2, 4, 2, 16, 128}, {NULL, NULL, NULL, NULL, NULL, NULL, NULL}, NULL};
  prepare(&transformer);
  transformer.forward = forward;
  transformer.forward(&transformer, 0, 0, 0); /* as calm warms up */
  generate(&transformer, 60, steps);
  return fflush(stdout) == 0 ? 0 : 1;
}
