// Sizes beyond the limits of docs/limits.md are refused by name before anything is allocated.
#include "refusal.hpp"

#include <cstdint>
#include <string>

namespace refused_sizes_cases {

namespace {

using kvmeld::shape;

constexpr shape extent{2, 3, 2, 2, 12, 8, 64};

// A cache of this extent over tensors that are never read.
std::string refusal_of_sizes(kvmeld::cache_options const& options) {
  static float memory[1] = {};
  shape const& s = options.extent;
  return cache_test::refusal_of([&] {
    kvmeld::merged_cache{kvmeld::host_executor(1), kvmeld::preset::ems::shared(),
                         kvmeld::kv{kvmeld::strided<float>(memory, "LSHTC", s, s.key_dim),
                                    kvmeld::strided<float>(memory, "LSHTC", s, s.value_dim)},
                         options};
  });
}

std::string refusal_of_extent(shape const& s) {
  kvmeld::cache_options options{s};
  options.members = 4;
  return refusal_of_sizes(options);
}

void refuses(shape const& s, char const* argument, char const* value, char const* condition) {
  std::string const wanted = std::string("shape: ") + argument + " is " + value + "; it must be " + condition;
  cache_test::check_text(refusal_of_extent(s), {wanted.c_str()});
}

}  // namespace

TEST_CASE("extents beyond the limits") {
  refuses({1, 1, 1, (1u << 29) + 1, 8, 8, 64}, "queries_per_kv_head", "536870913", "1 to 1024");
  refuses({1, 1, 1, 1, 0x80000000u, 8, 64}, "key_dim", "2147483648", "1 to 65536");
  refuses({1, 1, 1, 1, 8, 65537, 64}, "value_dim", "65537", "1 to 65536");
  refuses({1, 1, 1, 1, 8, 8, (1u << 30) + 1}, "capacity", "1073741825", "1 to 1073741824");
  refuses({1u << 16, 1u << 16, 1, 1, 8, 8, 64}, "layers * sequences * kv_heads", "4294967296",
          "at most 2147483647");
  refuses({1, 1, 1u << 22, 1u << 10, 8, 8, 1}, "kv_heads * queries_per_kv_head", "4294967296",
          "at most 2147483647");
  refuses({1u << 10, 1, 1u << 10, 1, 8, 8, 1u << 30}, "layers * sequences * kv_heads * capacity",
          "1125899906842624", "at most 1099511627776");
}

TEST_CASE("more members than memory can hold") {
  kvmeld::cache_options options{extent};
  options.members = 0xffffffffu;
  cache_test::check_text(refusal_of_sizes(options),
                         {"options: members is 4294967295; it must be at most 1073741824"});
  options.extent.layers = 1u << 12;
  options.members = 1u << 30;
  cache_test::check_text(refusal_of_sizes(options),
                         {"options: members of all tracks is 26388279066624; it must be at most"});
}

}  // namespace refused_sizes_cases
