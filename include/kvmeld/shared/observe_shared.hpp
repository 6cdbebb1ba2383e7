// SPDX-License-Identifier: Apache-2.0
// Turns attention over shared entries into scores of every token: of the slots' own tokens and of members.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/observe/observe.hpp>
#include <kvmeld/observe/observe_base.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Recomputes p = exp(logit - lse) of every token, as observe_queries_phase does of entries. A tile is 64
/// slots with the members that live in them. All tokens of a slot share the product with its row, unless each
/// token has to be rotated.
template <class Score, class Keys, class Q> struct observe_shared_phase : observe_base<Score> {
  using base = observe_base<Score>;
  using base::channels;
  using base::row_block;
  using base::token_block;
  Keys keys;
  attention_params params;
  head_rows<Q> query;
  log_sums<float const> lse;

  std::size_t scratch_bytes(int) const {
    std::size_t const d = keys.channels();
    std::size_t const rows = std::size_t{row_block} * this->ledger.extent.queries_per_kv_head;
    std::size_t const tokens = std::size_t{token_block} + this->ledger.members.capacity;
    return (params.rope.active() ? 2 : 1) * scratch_size(token_block * d * sizeof(float)) +
           scratch_size(rows * d * sizeof(float)) + scratch_size(rows * sizeof(float)) +
           scratch_size(rows * token_block * sizeof(float)) +
           scratch_size(tokens * channels * sizeof(float)) + scratch_size(token_block * sizeof(position_t)) +
           rope_scratch(params.rope, keys.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = this->ledger;
    std::uint32_t const length = l.length[t.where.index];
    slot_t const begin = t.index * token_block;
    if (begin >= length) return;
    std::uint32_t const slots = min_of(token_block, length - begin);
    std::uint32_t const member = this->source.row_of(t.item);
    std::uint32_t const queries = this->source.batch.queries(member);
    std::uint32_t const rows = this->rows_of(member);
    typename base::updates const u = this->updates_of(t.where, rows);
    std::uint32_t const used = u.used;
    std::uint32_t const group = l.extent.queries_per_kv_head;
    std::uint32_t const d = keys.channels();
    std::uint32_t const known = l.seen[t.where.sequence];  // nothing is pending
    float const scale = params.scale_for(d);
    // Tokens of the tile: its slots, then the members that live in them.
    std::uint32_t const first_member = first_of(t.where, begin);
    std::uint32_t const tokens = slots + first_of(t.where, begin + slots) - first_member;

    float* const k = team.template scratch<float>(std::size_t{token_block} * d);
    float* const q = team.template scratch<float>(std::size_t{row_block} * group * d);
    float* const norm = team.template scratch<float>(std::size_t{row_block} * group);
    float* const product = team.template scratch<float>(std::size_t{row_block} * group * token_block);
    float* const sums =
        team.template scratch<float>((std::size_t{token_block} + l.members.capacity) * channels);
    position_t* const position = team.template scratch<position_t>(token_block);
    double const* const turns = rope_table(team, params.rope, d);
    float* const rotated =
        params.rope.active() ? team.template scratch<float>(std::size_t{token_block} * d) : k;
    auto const slot_of = [&](std::uint32_t i) {
      return i < slots ? begin + i : l.members.owner[l.members.at(t.where, first_member + i - slots)];
    };
    auto const position_of = [&](std::uint32_t i) {
      return i < slots ? l.position[l.at(t.where, begin + i)]
                       : l.members.position[l.members.at(t.where, first_member + i - slots)];
    };
    auto const norm_of = [&](std::uint32_t i) {
      return i < slots ? l.norm_factor(t.where, begin + i)
                       : l.members.norm[l.members.at(t.where, first_member + i - slots)];
    };
    keys.load_tile(team, t.where, begin, slots, 0, d, k, d);
    team.for_each(tokens * channels, [&](std::uint32_t i) { sums[i] = 0.0f; });
    team.sync();
    for (std::uint32_t r0 = u.first_row; r0 < rows; r0 += row_block) {
      std::uint32_t const block = min_of(row_block, rows - r0);
      std::uint32_t const last = this->sample.query_of(queries, r0 + block - 1);
      if (params.visible(length, queries, last) <= begin) continue;  // the same for every lane
      block_of_rows const block_rows{member,
                                     queries,
                                     this->sample.query_of(queries, r0),
                                     group,
                                     t.where.kv_head,
                                     block * group,
                                     this->sample.stride};
      load_scaled(team, query, block_rows, scale, d, q);
      team.for_each(block_rows.rows, [&](std::uint32_t r) {
        norm[r] = lse.read(member, block_rows.head_of(r), block_rows.query_of(r));
      });
      team.sync();
      // Without rotation, one block of products covers the slots. With it, every 64 tokens have a block.
      std::uint32_t const step = params.rope.active() ? token_block : tokens;
      for (std::uint32_t from = 0; from < tokens; from += step) {
        std::uint32_t const count = min_of(step, tokens - from);
        std::uint32_t const columns = params.rope.active() ? count : slots;
        if (params.rope.active())
          rotate(team, turns, k, rotated, begin, from, count, position, slot_of, position_of);
        team.for_each(block * group * columns, [&](std::uint32_t i) {
          product[i] = dot(q + std::size_t{i / columns} * d, rotated + std::size_t{i % columns} * d, d);
        });
        team.sync();
        team.for_each(count, [&](std::uint32_t n) {
          std::uint32_t const i = from + n;
          std::uint32_t const column = params.rope.active() ? n : slot_of(i) - begin;
          float part[channels] = {};
          for (std::uint32_t r = 0; r < block; ++r) {
            std::uint32_t const asked = this->sample.query_of(queries, r0 + r);
            std::uint32_t const visible = params.visible(length, queries, asked);
            if (slot_of(i) >= visible) continue;
            if (!params.in_window(position_of(i), params.position_of(known, queries, asked))) continue;
            float const weight = this->sample.weight(member, asked);
            this->add_heads(u, r0 + r, visible, weight, part, [&](std::uint32_t h) {
              std::uint32_t const row = r * group + h;
              if (!is_usable_lse(norm[row])) return 0.0f;
              return std::exp(params.logit(product[row * columns + column] * norm_of(i), 0.0f) - norm[row]);
            });
          }
          float* const sum = sums + std::size_t{i} * channels;
          for (std::uint32_t c = 0; c < used; ++c) sum[c] = u.fold.add_rows(sum[c], part[c]);
        });
        team.sync();
      }
    }
    team.for_each(tokens, [&](std::uint32_t i) {
      float const* const sum = sums + std::size_t{i} * channels;
      if (i < slots) {
        this->add(t.where, begin + i, u, sum);
      } else {
        base::add_to(l.members.channel_data, l.members.at(t.where, first_member + i - slots), u, sum);
      }
    });
  }

private:
  /// First member whose owner is `s` or later.
  KVMELD_HD std::uint32_t first_of(track where, slot_t s) const {
    return this->ledger.members.first_of(where, s);
  }

  template <class Team, class SlotOf, class PositionOf>
  KVMELD_HD void rotate(Team const& team, double const* turns, float const* k, float* rotated, slot_t begin,
                        std::uint32_t from, std::uint32_t count, position_t* position, SlotOf slot_of,
                        PositionOf position_of) const {
    std::uint32_t const d = keys.channels();
    rope_params by_position = params.rope;
    by_position.positions = rope_positions::stored;
    by_position.map = nullptr;
    team.for_each(count, [&](std::uint32_t n) {
      position[n] = params.rope.turned_for(slot_of(from + n), position_of(from + n));
    });
    team.for_each(count * d, [&](std::uint32_t n) {
      rotated[n] = k[std::size_t{slot_of(from + n / d) - begin} * d + n % d];
    });
    rotate_tile(team, by_position, turns, rotated, count, d, 0, position);
    team.sync();
  }
};

/// Sums probabilities that the engine has, as observe_rows_phase does. In every row the members follow the
/// slots in ledger order, as shared_ref numbers them. A tile is 64 slots and 64 members.
template <class Score, class T> struct observe_shared_rows_phase : observe_rows_phase<Score, T> {
  using slots = observe_rows_phase<Score, T>;
  using slots::token_block;

  std::uint32_t tiles(shape const& s) const {
    return ceil_div(max_of(s.capacity, this->ledger.members.capacity), token_block);
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    slots::operator()(team, t);
    ledger_ref const& l = this->ledger;
    std::uint32_t const held = l.members.held(t.where), begin = t.index * token_block;
    if (begin >= held) return;
    typename slots::base::updates const u = this->updates_of_tile(t);
    team.for_each(min_of(token_block, held - begin), [&](std::uint32_t n) {
      std::size_t const e = l.members.at(t.where, begin + n);
      this->add_column(t, u, l.length[t.where.index] + begin + n, l.members.owner[e], l.members.position[e],
                       l.members.channel_data, e);
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
