// Policies that compute nothing from rows: the host's bits.
#include "twins.cuh"

TEST_CASE("evictions on a device are the host's") {
  cuda_test::same_life<__half>("streaming_llm", kvmeld::preset::streaming_llm::with_sinks(3));
  cuda_test::same_life<__nv_bfloat16>("h2o", kvmeld::preset::h2o::halves());
  for (auto over : {kvmeld::split::layer, kvmeld::split::group}) {
    cuda_test::shared_over const now(over);
    cuda_test::same_life<__nv_bfloat16>("h2o", kvmeld::preset::h2o::halves());
  }
}
