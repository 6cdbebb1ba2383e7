// SPDX-License-Identifier: Apache-2.0
// What every source of scores shares: which rows count, how they are summed, and how sums enter the channels.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The slots of one tile and the queries that look at them. Rows are those that are observed, numbered from
/// 0.
struct observed_tile {
  track where;
  slot_t begin;
  std::uint32_t tokens;  ///< 0: nothing to do
  std::uint32_t member, queries,
      rows;                            ///< of the batch: which sequence, its queries, those that are observed
  std::uint32_t length, empty, known;  ///< of the track: slots, empty ones; tokens seen
  entry_array<position_t> position{};  ///< [tokens]
};

/// Base of phases with 64 slots per tile. `sample` is the query sample: which rows of the batch are observed.
template <class Score> struct observe_base {
  static constexpr std::uint32_t token_block = 64;
  static constexpr std::uint32_t row_block = 16;  ///< rows of a block: generic forms sum one block at a time
  static constexpr std::uint32_t channels =
      channel_bound<Score>();  ///< room for channels; ledger.channels.count of them are in use
  Score score;
  ledger_ref ledger;
  batch_source source;
  query_sample sample{};

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, token_block); }
  KVMELD_HD std::uint32_t rows_of(std::uint32_t member) const {
    return sample.count(source.batch.queries(member));
  }
  KVMELD_HD observed_tile slots_of(tile const& t) const {
    std::uint32_t const length = ledger.length[t.where.index];
    slot_t const begin = t.index * token_block;
    std::uint32_t const member = source.row_of(t.item);
    std::uint32_t const tokens = begin < length ? min_of(token_block, length - begin) : 0;
    return {t.where,
            begin,
            tokens,
            member,
            source.batch.queries(member),
            rows_of(member),
            length,
            ledger.word(t.where, track_word::empty),
            ledger.seen[t.where.sequence],  // nothing is pending
            {ledger.position, ledger.from(t.where, begin)}};
  }

  /// What a block of `rows` rows does to every channel of the score.
  struct updates {
    channel_update at[channels];
    std::uint32_t first_row;  ///< first row that any channel counts; earlier ones need not be computed
    std::uint32_t used;       ///< channels in use
    attention_fold fold;      ///< how heads and rows become one number
    bool contributes;         ///< whether the score adds up something other than attention

    KVMELD_HD updates(Score const& score, std::uint32_t count, std::uint32_t window, std::uint32_t rows)
        : first_row(rows), used(count), fold(fold_of(score)), contributes(detail::contributes(score)) {
      for (std::uint32_t c = 0; c < used; ++c) {
        at[c] = update_of(score, c, window, rows);
        first_row = min_of(first_row, at[c].first_row);
      }
    }
  };
  KVMELD_HD updates updates_of(track where, std::uint32_t rows) const {
    std::uint32_t const window = ledger.word(where, track_word::window_rows);
    if constexpr (has_max_channels<Score>) return updates(score, ledger.channels.count, window, rows);
    return updates(score, channels, window, rows);
  }

  /// Adds to sums[channel] what row `row`, which sees `visible` entries and counts `weight` times, gives an
  /// entry. Its head h gives share(h).
  template <class Share>
  KVMELD_HD void add_heads(updates const& u, std::uint32_t row, std::uint32_t visible, float weight,
                           float* sums, Share share) const {
    std::uint32_t const group = ledger.extent.queries_per_kv_head;
    if (u.fold.heads == head_fold::each) {
      for (std::uint32_t c = 0; c < u.used; ++c) add_share(u, c, row, visible, weight * share(c), sums);
      return;
    }
    float p = 0.0f;
    for (std::uint32_t h = 0; h < group; ++h) p = u.fold.add_head(p, share(h));
    p = weight * u.fold.folded(p, group);
    for (std::uint32_t c = 0; c < u.used; ++c) add_share(u, c, row, visible, p, sums);
  }
  /// Adds the contribution of a row to sums[c], from its weighted probability `p`.
  KVMELD_HD void add_share(updates const& u, std::uint32_t c, std::uint32_t row, std::uint32_t visible,
                           float p, float* sums) const {
    if (row < u.at[c].first_row) return;
    sums[c] = u.fold.add_rows(sums[c], u.contributes ? contribution_of(score, c, p, visible) : p);
  }

  /// Calls use(token, visible, weight) for the tokens of a tile that row `row` sees.
  template <class Use>
  KVMELD_HD void for_seen(observed_tile const& s, attention_params const& params, std::uint32_t row,
                          Use use) const {
    std::uint32_t const query = sample.query_of(s.queries, row);
    std::uint32_t const visible = params.visible(s.length, s.queries, query);
    std::int64_t const at = params.position_of(s.known, s.queries, query);
    float const weight = sample.weight(s.member, query);
    for (std::uint32_t j = 0; j < s.tokens && s.begin + j < visible; ++j) {
      if (params.in_window(s.position[j], at)) use(j, visible - s.empty, weight);
    }
  }

  /// Adds rows [first, first + rows) to sums[token][channels]. Head h of row first + r gives a token
  /// share(r, h, token). Collective; no barrier at the end.
  template <class Team, class Share>
  KVMELD_HD void add_rows(Team const& team, observed_tile const& s, attention_params const& params,
                          updates const& u, std::uint32_t first, std::uint32_t rows, float* sums,
                          Share share) const {
    team.for_each(s.tokens, [&](std::uint32_t j) {
      float part[channels] = {};
      for (std::uint32_t r = 0; r < rows; ++r) {
        std::uint32_t const query = sample.query_of(s.queries, first + r);
        std::uint32_t const visible = params.visible(s.length, s.queries, query);
        if (s.begin + j >= visible) continue;
        if (!params.in_window(s.position[j], params.position_of(s.known, s.queries, query))) continue;
        add_heads(u, first + r, visible - s.empty, sample.weight(s.member, query), part,
                  [&](std::uint32_t h) { return share(r, h, j); });
      }
      for (std::uint32_t c = 0; c < u.used; ++c) {
        sums[j * channels + c] = u.fold.add_rows(sums[j * channels + c], part[c]);
      }
    });
  }
  /// Adds one row. one(h, to) adds the attention of its head h to to[token]. `room` has space for 2
  /// token_block numbers. One lane.
  template <class One>
  KVMELD_HD void add_row(observed_tile const& s, attention_params const& params, updates const& u,
                         std::uint32_t row, float* room, float* sums, One one) const {
    std::uint32_t const group = ledger.extent.queries_per_kv_head;
    float* const spare = room + token_block;
    for (std::uint32_t j = 0; j < s.tokens; ++j) room[j] = 0.0f;
    for (std::uint32_t h = 0; h < group; ++h) {
      if (u.fold.heads == head_fold::mean) {
        one(h, room);
        continue;
      }
      for (std::uint32_t j = 0; j < s.tokens; ++j) spare[j] = 0.0f;
      one(h, spare);
      if (u.fold.heads == head_fold::each) {
        for_seen(s, params, row, [&](std::uint32_t j, std::uint32_t visible, float weight) {
          add_share(u, h, row, visible, weight * spare[j], sums + j * channels);
        });
        continue;
      }
      for (std::uint32_t j = 0; j < s.tokens; ++j) room[j] = u.fold.add_head(room[j], spare[j]);
    }
    if (u.fold.heads == head_fold::each) return;
    for (std::uint32_t j = 0; j < s.tokens; ++j) room[j] = u.fold.folded(room[j], group);
    bool const adds = u.fold.rows == row_fold::sum && !u.contributes;
    for (std::uint32_t c = 0; c < u.used; ++c) {
      if (row < u.at[c].first_row) continue;
      if (adds) {  // the usual case, with no decision per token
        for_seen(s, params, row, [&](std::uint32_t j, std::uint32_t, float weight) {
          sums[j * channels + c] += weight * room[j];
        });
      } else {
        for_seen(s, params, row, [&](std::uint32_t j, std::uint32_t visible, float weight) {
          add_share(u, c, row, visible, weight * room[j], sums + j * channels);
        });
      }
    }
  }

  /// new channel value of slot s = its base + sums[channel]. Every channel is read before any is written.
  KVMELD_HD void add(track where, slot_t s, updates const& u, float const* sums) const {
    if (!ledger.shared(where, s)) add_to(ledger.channel_data, ledger.at(where, s), u, sums);
  }
  KVMELD_HD static void add_to(float* const* data, std::size_t i, updates const& u, float const* sums) {
    float next[channels];
    std::uint32_t const used = u.used;
    for (std::uint32_t c = 0; c < used; ++c) {
      next[c] = u.fold.add_rows(u.at[c].base < 0 ? 0.0f : data[u.at[c].base][i], sums[c]);
    }
    for (std::uint32_t c = 0; c < used; ++c) data[c][i] = next[c];
  }
};

/// Runs after an observation: updates how many rows a track has observed, and how full its window is.
template <class Score> struct observed_phase {
  Score score;
  ledger_ref ledger;
  batch_source source;
  query_sample sample{};

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() != 0) return;
    std::uint32_t const rows = sample.count(source.batch.queries(source.row_of(t.item)));
    std::uint32_t& window = ledger.word(t.where, track_word::window_rows);
    std::uint32_t& seen = ledger.word(t.where, track_word::observed_rows);
    if (rows == 0) return;
    window = next_window_of(score, window, rows);
    count_rows(seen, rows);
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
