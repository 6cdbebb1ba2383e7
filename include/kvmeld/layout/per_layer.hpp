// SPDX-License-Identifier: Apache-2.0
// A tensor per layer, each anywhere in memory: Hugging Face's caches, vLLM, SGLang, yalm.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Rows of layer l are those of `layers[l]`, a layout over a shape of one layer. The array must have a layout
/// for every layer of the group, and lie in memory that phases can read (of the device, for a CUDA executor).
/// When tensors move, the engine rewrites the array, in order with launches. Base pointers, strides and
/// tables may differ from layer to layer; the number of channels and the capacity may not. Each access to a
/// row or a run first loads the layout of the layer from memory. `Layout` must have plain rows
/// (has_plain_rows). For groups of channels: tiled(per_layer(..), width).
template <class Layout>
class per_layer : public addressed_rows<per_layer<Layout>, typename Layout::element_type> {
  static_assert(has_plain_rows<Layout>::value,
                "kvmeld::per_layer: Layout has no plain rows (addressed_rows)");

public:
  using element_type = typename Layout::element_type;
  static constexpr bool always_writable = is_always_writable<Layout>::value;
  static constexpr int channel_run = Layout::channel_run;
  static constexpr int token_run = Layout::token_run;

  /// `layers` is never read on the host, so that a fault in one of the layouts is not found here.
  per_layer(Layout const* layers, std::uint32_t channels) : layers_(layers), channels_(channels) {}

  KVMELD_HD segment<element_type> locate(track where, slot_t slot) const {
    return layers_[where.layer].locate(within(where), slot);
  }
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || layers_[where.layer].writable(within(where), slot);
  }
  /// Why there is no array of layouts; empty if there is one. The layouts themselves are not checked.
  std::string problem(shape const&) const {
    return layers_ != nullptr ? std::string()
                              : refusal("per_layer", "layers", "null", "an array with a layout per layer");
  }

private:
  /// The same track in a layout of one layer, which does not use the track's index.
  KVMELD_HD static track within(track where) { return {where.index, 0, where.sequence, where.kv_head}; }

  Layout const* layers_;
  std::uint32_t channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
