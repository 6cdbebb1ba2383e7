// Every preset on block tables, alone and beside other layouts.
#include "policies.hpp"

namespace paged_policies_cases {

using kvmeld::bfloat16;
using kvmeld::float16;
using namespace layout_test;

TEST_CASE("pages of 7, float") {
  every_preset_same_as_plain<paged_tensor<float, 7>, paged_tensor<float, 7>>();
}

TEST_CASE("keys along tokens, half values in pages of 16") {
  every_preset_same_as_plain<transposed_tensor<float>, paged_tensor<float16, 16>>();
}

TEST_CASE("bfloat16 keys in pages of 16, half values in groups of channels") {
  every_preset_same_as_plain<vllm_keys_tensor<bfloat16, 16>, vllm_values_tensor<float16, 16>>();
}

}  // namespace paged_policies_cases
