// Every preset on layouts of the library and on those of the tests: K and V typed and laid out apart.
#include "policies.hpp"

namespace policies_cases {

using kvmeld::bfloat16;
using kvmeld::float16;
using namespace layout_test;

TEST_CASE("float keys by token, bfloat16 values along tokens") {
  every_preset_same_as_plain<token_major_tensor<float>, transposed_tensor<bfloat16>>();
}

TEST_CASE("half keys in groups of channels, values in int8") {
  every_preset_same_as_plain<interleaved_tensor<float16>, int8_tensor>();
}

TEST_CASE("keys in int8, half values along tokens") {
  every_preset_same_as_plain<int8_tensor, transposed_tensor<float16>>();
}

}  // namespace policies_cases
