#include "../engine_cache_of.hpp"

#include <kvmeld/core/element.hpp>

template std::unique_ptr<kvmeld_library::engine_cache> kvmeld_library::make_on_pages<kvmeld::bfloat16>(
    char const*, ingredients const&, tensor_list const*);
