// The engine with tiles of channels and values along tokens, built with -ffast-math.
#include "fast.hpp"

#include <engines/conversation.hpp>

int main(int argc, char** argv) {
  return engines::conversation_main("kvmeld_tiled", argc, argv,
                                    [](tiny_llama::model& m, engines::conversation_options const& o) {
                                      return tiled_engine::make_fast(m, o.capacity(), o.policy);
                                    });
}
