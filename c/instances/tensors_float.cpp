#include "../engine_cache_of.hpp"

template std::unique_ptr<kvmeld_library::engine_cache> kvmeld_library::make_on_tensors<float>(
    char const*, ingredients const&, tensor_list const*);
