#include "memory.hpp"

#include "tensors.hpp"

#include <kvmeld/rounds/compress.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvmeld_bench {

void remember_workspace(session& s) {
  std::uint32_t const wave_tracks = 2 * s.threads();
  std::uint32_t const sizing_capacity = 65536;
  double const wave_entries = double{1} * wave_tracks * sizing_capacity;
  double const workspace =
      static_cast<double>(kvmeld::workspace_bytes(extent_of(sizing_capacity), wave_tracks));
  s.remember({"workspace per entry of a wave, plan included", "bytes", workspace / wave_entries});
  for (std::uint32_t layers : {1u, 32u}) {
    for (std::uint32_t n : {4096u, 262144u}) {
      kvmeld::shape const extent = extent_of(n, layers);
      std::size_t const bytes = kvmeld::workspace_bytes(extent, std::min(wave_tracks, extent.tracks()));
      double const kv_bytes = 2.0 * static_cast<double>(extent.slots()) * head_dim * 2;
      std::string const cache = std::to_string(layers) + (layers == 1 ? " layer" : " layers") +
                                " of 8 heads, " + std::to_string(n) + " entries";
      s.remember({"default workspace, " + cache, "bytes", static_cast<double>(bytes)});
      s.remember({"default workspace against 16-bit K and V, " + cache, "percent",
                  100.0 * static_cast<double>(bytes) / kv_bytes});
    }
  }
}

}  // namespace kvmeld_bench
