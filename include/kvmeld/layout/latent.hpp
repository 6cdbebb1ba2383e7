// SPDX-License-Identifier: Apache-2.0
// Values that are channels of the keys (multi-head latent attention), and are merged and moved with them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// True for layouts that read channels of the keys, and write nothing.
template <class Layout, class = void> struct reads_keys : std::false_type {};

template <class Layout> struct reads_keys<Layout, std::enable_if_t<Layout::reads_keys>> : std::true_type {};

}  // namespace detail

/// Channels first .. first + channels - 1 of the rows of `Keys`, read only. Writing does nothing, since these
/// channels are written with the keys (512 of 576 in DeepSeek's caches, head count 1). For policies that give
/// keys and values equal weights. A cache refuses merge functions that spread values (CaM) or share entries
/// (EMS).
template <class Keys> class latent {
public:
  using element_type = typename Keys::element_type;
  static constexpr bool always_writable = is_always_writable<Keys>::value;
  static constexpr bool reads_keys = true;  ///< rows are channels of the keys
  static constexpr int channel_run = Keys::channel_run;
  static constexpr int token_run = 1;

  /// Channels first .. first + channels - 1 of the keys.
  latent(Keys keys, std::uint32_t channels, std::uint32_t first = 0)
      : keys_(keys), channels_(channels), first_(first) {}

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    keys_.load_tile(team, where, first, tokens, first_ + channel, channels, out, ld);
  }
  template <class Team, class F> KVMELD_HD void encode_row(Team const&, track, slot_t, F) const {}
  template <class Team> KVMELD_HD void copy_row(Team const&, track, slot_t, slot_t) const {}
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return always_writable || keys_.writable(where, slot);
  }
  std::string problem(shape const& s) const {
    std::uint64_t const end = std::uint64_t{first_} + channels_;
    if (end > keys_.channels()) {
      return refusal("latent", message("first + channels = ", first_, " + ", channels_), end, "at most ",
                     keys_.channels(), ", the channels of the keys");
    }
    return layout_problem("latent: keys", keys_, keys_.channels(), s);
  }
  /// The layout of the keys.
  Keys const& keys() const { return keys_; }
  /// The first of the keys' channels that the values use.
  std::uint32_t first() const { return first_; }

private:
  Keys keys_;
  std::uint32_t channels_, first_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
