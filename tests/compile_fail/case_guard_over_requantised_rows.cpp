// expect: a guard has to know what storing does to a row
// A row's scale follows from the merged row, and its rounding from the scale.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using keys = kvmeld::strided<kvmeld::float16>;
#else
using keys = kvmeld::int8_rows<kvmeld::strided<std::int8_t>, kvmeld::strided<float>>;
#endif

void use(kvmeld::kv<keys, kvmeld::strided<float>> x) {
  kvmeld::merged_cache cache{kvmeld::host_executor(1),
                             kvmeld::preset::chelsea::guarded(kvmeld::guard::probed<float>{1.0f}), x,
                             kvmeld::cache_options{}};
  cache.compress({0}, kvmeld::budget::entries(8));
}
