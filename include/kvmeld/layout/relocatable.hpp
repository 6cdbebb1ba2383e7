// SPDX-License-Identifier: Apache-2.0
// A layout that phases read from a stable address, so that calls captured in a graph follow the tensors when
// they move.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The layout that lies at `at`. It must lie in memory that phases can read (of the device, for a CUDA
/// executor). When the engine reallocates tensors or block tables, it rewrites the layout there, in order
/// with launches. Base pointers, strides and table pointers may change; the number of channels may not. Each
/// access to a row or a run first loads the layout from memory. `Layout` must have plain rows
/// (has_plain_rows).
template <class Layout>
class relocatable : public addressed_rows<relocatable<Layout>, typename Layout::element_type> {
  static_assert(has_plain_rows<Layout>::value,
                "kvmeld::relocatable: Layout has no plain rows (addressed_rows)");

public:
  using element_type = typename Layout::element_type;
  static constexpr bool always_writable = is_always_writable<Layout>::value;
  static constexpr int channel_run = Layout::channel_run;
  static constexpr int token_run = Layout::token_run;

  /// The layout at `at` is never read on the host.
  relocatable(Layout const* at, std::uint32_t channels) : at_(at), channels_(channels) {}

  KVMELD_HD segment<element_type> locate(track where, slot_t slot) const { return at_->locate(where, slot); }
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || at_->writable(where, slot);
  }
  /// Why `at` is no address of a layout; empty if it may be one. The layout itself is not checked.
  std::string problem(shape const&) const {
    return at_ != nullptr ? std::string() : refusal("relocatable", "at", "null", "the address of a layout");
  }

private:
  Layout const* at_;
  std::uint32_t channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
