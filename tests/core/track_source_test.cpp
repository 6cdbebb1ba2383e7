// Which track an item of a launch is.
#include <doctest/doctest.h>

#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstdint>
#include <vector>

TEST_CASE("a source names the tracks of its list by layer, then by sequence, then by head") {
  kvmeld::shape const extent{2, 3, 2, 1, 8, 8, 16};
  std::uint32_t const sequences[] = {2, 0};
  kvmeld::track_source const source{extent, {sequences, 2}};
  CHECK(source.work.tracks(extent) == 8);
  std::vector<std::uint32_t> seen;
  for (std::uint32_t item = 0; item < 8; ++item) {
    kvmeld::track const t = source.where(item);
    CHECK(t.index == (t.layer * 3 + t.sequence) * 2 + t.kv_head);
    CHECK(t.sequence != 1);
    seen.push_back(t.index);
  }
  CHECK(seen == std::vector<std::uint32_t>{4, 5, 0, 1, 10, 11, 6, 7});
}
