// expect: kvmeld: the layout has no type `element_type`
// A bare pointer says where memory begins, not where an entry lies.
#include <kvmeld/kvmeld.hpp>

#if defined(KVMELD_CONTROL)
using values_type = kvmeld::strided<float>;
#else
using values_type = float*;
#endif

auto use(kvmeld::kv<kvmeld::strided<float>, values_type> x) {
  return kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(), x,
                              kvmeld::cache_options{}};
}
