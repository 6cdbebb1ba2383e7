// The engine in C, with and without kvmeld.
#include "reader.hpp"

#include <engines/conversation.hpp>

#include <memory>

int main(int argc, char** argv) {
  return engines::conversation_main("kvmeld_token_major", argc, argv,
                                    [](tiny_llama::model& m, engines::conversation_options const& o) {
                                      char const* const policy = o.budget == 0 ? nullptr : o.policy.c_str();
                                      return std::make_unique<token_major::reader>(m, o.capacity(), policy);
                                    });
}
