// SPDX-License-Identifier: Apache-2.0
// Scores that the engine or its model brings.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// The number that merged_cache::set_scores gave the entry: from a model that predicts scores, or from an
/// engine that computes its own. It stays with the entry until it is set again. Entries that were never given
/// a score rank above all others. When entries merge, the result has the highest score of its members. Needs
/// no attention.
struct given {
  static constexpr char const* name = "given";
  static constexpr score_facts facts{observation::none, &score_facts::light};
  static constexpr float unknown = -element_traits<float>::lowest;  ///< score of an entry that was given none
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::given_score, channel_rule::max, unknown});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t rows) const {
    return {0, rows};
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t) const { return filled; }
  KVMELD_HD float importance(score_view const& view, std::uint32_t i) const { return view.channel(0, i); }
};

}  // namespace score

namespace detail {

/// Copies rows of scores into the channel of score::given.
template <class T> struct set_scores_phase {
  ledger_ref ledger;
  work_list work;
  std::uint32_t layer, channel;
  head_rows<T> rows;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD track where(std::uint32_t item) const {
    std::uint32_t const heads = ledger.extent.kv_heads;
    return make_track(ledger.extent, layer, work.sequences[item / heads], item % heads);
  }
  KVMELD_HD bool idle(std::uint32_t item) const {
    return work.sequences[item / ledger.extent.kv_heads] == idle_sequence;
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    T* const from = rows.row(t.item / ledger.extent.kv_heads, t.where.kv_head, 0);
    entry_array<float> const to{ledger.channel_data[channel], ledger.from(t.where)};
    team.for_each(ledger.length[t.where.index], [&](std::uint32_t i) {
      if (!ledger.shared(t.where, i)) to[i] = element_traits<std::remove_const_t<T>>::to_float(from[i]);
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
