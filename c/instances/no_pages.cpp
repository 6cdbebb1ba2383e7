// In place of the pages: what a library without them says.
#include "../engine_cache.hpp"
#include "../failure.hpp"

#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>

#include <memory>

namespace kvmeld_library {

template <class T>
std::unique_ptr<engine_cache> make_on_pages(char const* call, ingredients const& of, tensor_list const*) {
  throw failure(KVMELD_UNSUPPORTED, kvmeld::refusal(call, "options.page_size", of.pages.size,
                                                    "0, because this library was built without pages"));
}

template std::unique_ptr<engine_cache> make_on_pages<float>(char const*, ingredients const&,
                                                            tensor_list const*);
template std::unique_ptr<engine_cache> make_on_pages<kvmeld::float16>(char const*, ingredients const&,
                                                                      tensor_list const*);
template std::unique_ptr<engine_cache> make_on_pages<kvmeld::bfloat16>(char const*, ingredients const&,
                                                                       tensor_list const*);

}  // namespace kvmeld_library
