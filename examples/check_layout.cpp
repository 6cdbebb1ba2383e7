// A layout of one's own, put through the conformance check: heads innermost, as some engines interleave them.
#include "all_printed.h"

#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <iostream>
#include <vector>

// Element (slot, channel) of a head at [layer][sequence][slot][channel][head].
struct my_layout : kvmeld::addressed_rows<my_layout, float> {
  static constexpr int channel_run = 1, token_run = 1;
  float* base;
  kvmeld::shape s;

  my_layout(float* memory, kvmeld::shape const& extent) : base(memory), s(extent) {}
  kvmeld::segment<float> locate(kvmeld::track t, kvmeld::slot_t slot) const {
    std::int64_t const row = std::int64_t{s.kv_heads} * s.key_dim;
    std::int64_t const first = (std::int64_t{t.layer} * s.sequences + t.sequence) * s.capacity + slot;
    return {base + first * row + t.kv_head, row, s.kv_heads, s.capacity - slot};
  }
  std::uint32_t channels() const { return s.key_dim; }
  bool writable(kvmeld::track, kvmeld::slot_t) const { return true; }
};

int main() {
  kvmeld::shape const small{2, 2, 3, 1, 16, 16, 20};  // a small cache of your engine's making
  std::vector<float> memory(small.slots() * small.key_dim);
  kvmeld::testing::layout_options bounds;
  bounds.memory = memory.data();
  bounds.bytes = memory.size() * sizeof(float);
  std::string const problem =
      kvmeld::testing::layout_problem(my_layout(memory.data(), small), small, small.key_dim, bounds);
  std::cout << (problem.empty() ? "the layout conforms" : problem) << "\n";
  return problem.empty() && all_printed() ? 0 : 1;
}
