// Compiled, never run: every phase of two whole pipelines as a CUDA compiler sees it. A function that a phase calls and
// that lacks the device annotation is a warning there, and warnings are errors in this test.
#include <kvmeld/kvmeld.hpp>

namespace {

template <class Policy> void whole_pipeline(Policy const& policy) {
  kvmeld::shape const extent{1, 1, 1, 1, 4, 4, 8};
  float k[32] = {}, v[32] = {}, q[4] = {}, out[4], lse[1];
  kvmeld::merged_cache cache{kvmeld::host_executor{1}, policy,
                             kvmeld::kv{kvmeld::strided<float>{k, "LSTHC", extent, 4},
                                        kvmeld::transposed<float>{v, "LSHCT", extent, 4}},
                             kvmeld::limits{extent}};
  cache.open(0, 8);
  kvmeld::attention::extend(cache.executor(), {}, {0, 0, 1}, kvmeld::rows_by_token(q, 1, 1, 4), cache.ref(),
                            kvmeld::rows_by_token(out, 1, 1, 4), kvmeld::rows_by_token(lse, 1, 1, 1));
  float const* const seen = lse;
  cache.observe({0, 0, 1}, kvmeld::rows_by_token(q, 1, 1, 4), kvmeld::rows_by_token(seen, 1, 1, 1));
  cache.compress({0}, kvmeld::budget::ratio(0.5));
}

}  // namespace

void every_annotation() {
  whole_pipeline(kvmeld::preset::chelsea::llama3());
  whole_pipeline(kvmeld::preset::kvmerger::for_budget());
  whole_pipeline(kvmeld::preset::snapkv::with_window());
  whole_pipeline(kvmeld::preset::scissorhands::halves());
  whole_pipeline(kvmeld::preset::cam::over_streaming_llm());
  whole_pipeline(kvmeld::preset::keepkv::for_budget());
}
