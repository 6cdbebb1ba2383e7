// SPDX-License-Identifier: Apache-2.0
// An identifier that compares keys rotated for positions of the caller's choice.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Rows of keys that are rotated as they are loaded, each for position(ledger, track, slot). `Rows` is
/// joined_rows. Read only.
template <class Rows, class Position> struct turned_rows {
  using element_type = typename Rows::element_type;
  Rows rows;
  rope_params rope;
  Position position;
  ledger_ref ledger;

  KVMELD_HD std::uint32_t channels() const { return rows.channels(); }

  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    rows.load_tile(team, where, first, tokens, channel, channels, out, ld);
    std::uint32_t const d = rows.layout.channels();
    std::uint32_t const pairs = min_of(rope.pairs(d), d / 2);
    if (pairs == 0) return;
    team.sync();
    team.for_each(tokens * (channels / d) * pairs, [&](std::uint32_t n) {
      std::uint32_t const i = n % pairs, head = n / pairs % (channels / d), t = n / pairs / (channels / d);
      rotate_pair(rope, out + std::size_t{t} * ld + std::size_t{head} * d, i, pairs, rope_turns(rope, i, d),
                  position(ledger, where, first + t));
    });
  }
};

namespace identify {

/// Does what `Identify` does, but turns each key for `position(ledger, track, slot)` before it compares keys.
/// Where keys lie unrotated, this gives EMS's similarity with positions of the caller's choice. Where keys
/// lie rotated, let `position` return minus the stored position: then the similarity is that of unrotated
/// keys. `Position` is a trivially copyable function object that answers `position_t operator()(ledger_ref
/// const&, track, slot_t) const`, KVMELD_HD for devices. Only the comparison changes: rows merge as they lie.
/// Heads that share a plan are turned back by the positions of the first of them. Every load of a row costs a
/// sine and a cosine per pair of channels, and a power without rope.frequencies. Tuned forms of devices are
/// not used. rope.positions and rope.map are not read. A rope.rotary_dim beyond the channels of a key counts
/// as all of them.
template <class Identify, class Position> struct turned : Identify {
  static_assert(
      stated_facts<identify_facts, Identify>.gives_similarity,
      "kvmeld: turned is for identifiers that give similarities: chunked_bipartite, nearest_center");
  rope_params rope;     ///< which channels turn, and how far per position
  Position position{};  ///< the position that a key is rotated for

  std::string name() const {
    return message("turned(", full_name_of(static_cast<Identify const&>(*this)), ")");
  }

  template <class Team, class Rows> KVMELD_HD void propose(proposal_tile<Team, Rows> const& tile) const {
    turned_rows<Rows, Position> const keys = turn(tile.rows(), tile.ledger());
    Identify::propose(tile.with_rows(keys));
  }
  template <class Team, class Keys, class Values>
  KVMELD_HD void propose(proposal_tile<Team, kv<Keys, Values>> const& tile) const {
    kv<turned_rows<Keys, Position>, Values> const x{turn(tile.rows().keys, tile.ledger()),
                                                    tile.rows().values};
    Identify::propose(tile.with_rows(x));
  }

private:
  template <class Rows>
  KVMELD_HD turned_rows<Rows, Position> turn(Rows const& keys, ledger_ref const& ledger) const {
    return {keys, rope, position, ledger};
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
