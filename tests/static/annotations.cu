// Compiled, never run: every phase of a few whole pipelines as a CUDA compiler sees it. A function that a
// phase calls and that lacks the device annotation is a warning there, and warnings are errors in this test.
#include <kvmeld/kvmeld.hpp>

#include <cstdint>

namespace {

template <class Policy> void whole_pipeline(Policy const& policy, std::uint32_t members = 0) {
  kvmeld::shape const extent{1, 2, 1, 1, 4, 4, 8};
  kvmeld::cache_options options{extent};
  options.members = members;
  float k[64] = {}, v[64] = {}, q[4] = {}, out[4], lse[1];
  kvmeld::merged_cache cache{kvmeld::host_executor{1}, policy,
                             kvmeld::kv{kvmeld::strided<float>{k, "LSTHC", extent, 4},
                                        kvmeld::transposed<float>{v, "LSHCT", extent, 4}},
                             options};
  cache.open(0, 8);
  kvmeld::attention::attend(cache.executor(), {0, 0, 1}, kvmeld::rows_by_token(q, 1, 1, 4), cache.ref(),
                            kvmeld::rows_by_token(out, 1, 1, 4), kvmeld::rows_by_token(lse, 1, 1, 1));
  float const* const seen = lse;
  cache.observe({0, 0, 1}, kvmeld::rows_by_token(q, 1, 1, 4), kvmeld::rows_by_token(seen, 1, 1, 1));
  cache.compress({0}, kvmeld::budget::ratio(0.5));
  cache.fork(0, 1);
  cache.truncate(1, 8);
  cache.drop_positions(1, 2, 3);
}

}  // namespace

void every_annotation() {
  whole_pipeline(kvmeld::preset::chelsea::llama3());
  whole_pipeline(kvmeld::preset::kvmerger::for_budget());
  whole_pipeline(kvmeld::preset::snapkv::with_window());
  whole_pipeline(kvmeld::preset::scissorhands::defaults());
  whole_pipeline(kvmeld::preset::cam::over_streaming_llm());
  whole_pipeline(kvmeld::preset::ems::shared(), 8);
  whole_pipeline(kvmeld::preset::ems::collapsed());
  whole_pipeline(kvmeld::preset::keepkv::for_budget());
  whole_pipeline(kvmeld::preset::expected_attention::with_rope({}));
  whole_pipeline(kvmeld::preset::triattention::with_rope({}));
  whole_pipeline(kvmeld::preset::rkv::for_budget());
  whole_pipeline(kvmeld::preset::dropkv::with_window());
  whole_pipeline(kvmeld::preset::compactor::with_rope({}));
  whole_pipeline(kvmeld::preset::kvzap::with_threshold(0.5f));
  auto matching = kvmeld::preset::attention_matching::for_budget();
  matching.merge.degrees = true;
  whole_pipeline(matching);
}
