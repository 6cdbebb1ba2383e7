// SPDX-License-Identifier: Apache-2.0
// Attention of few queries, as in decoding. One tile takes all query heads of a KV head, so keys and values
// are read once.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/attention/split_keys.hpp>
#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/backend/warps/slot_terms.hpp>
#include <kvmeld/backend/warps/tile_rows.hpp>
#include <kvmeld/backend/warps/warp_softmax.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

template <class Phase> using keys_of = std::decay_t<decltype(std::declval<Phase const&>().cache.keys)>;
template <class Phase> using values_of = std::decay_t<decltype(std::declval<Phase const&>().cache.values)>;
template <class Phase>
using query_of = std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<Phase const&>().query.data)>>;

/// The phases of attend for 16-bit rows and queries in the keys' format, or rows of 8-bit floats and 16-bit
/// queries; groups of up to 16 query heads, up to 256 channels, and no rotation; a window only if positions
/// ascend from slot to slot. Tiles that no query sees through the window are not read. Takes any number of
/// queries, in blocks of as many as fill 16 rows; every block reads K and V again. Values of more than 128
/// channels take two tiles, both of which read all keys. Every warp takes tiles of 16 tokens in turn and
/// keeps a softmax of its own. These are joined in the order of the warps. Products are exact and weights
/// keep 16 bits or more: outputs differ from those of the generic form by some 2^-14 of the largest value. (A
/// bfloat16 query of 8-bit keys becomes binary16, times a power of two. Channels below 2^-28 of its largest
/// are rounded.) Infinite values give NaN. Bits depend on the number of warps, and on where parts end.
template <class Phase, std::uint32_t KeyTiles> struct attend_few {
  using untuned_phase = Phase;
  using terms = slot_terms<typename Phase::ref_type>;
  using key_rows = multiplied_rows<keys_of<Phase>>;
  using value_rows = multiplied_rows<values_of<Phase>>;
  using key_type = typename key_rows::element;
  using value_type = typename value_rows::element;
  using key_tile = tile_rows<typename key_rows::layout>;
  using value_tile = tile_rows<typename value_rows::layout>;
  using softmax = warp_softmax<value_type>;
  using query_type = query_of<Phase>;
  static constexpr matrix_format key_format = matrix_format_of<key_type>;
  static constexpr bool converts_queries = matrix_format_of<query_type> != key_format;
  static constexpr bool near_scratch = true;
  /// Blocks of a multiprocessor: 16 warps with two tiles each wait for memory. Long keys that are converted
  /// need more registers than two blocks leave.
  static constexpr int min_blocks = KeyTiles == 1 || sizeof(typename key_tile::T) == 2 ? 2 : 1;
  untuned_phase untuned;

  KVMELD_HD static bool takes(untuned_phase const& p) {
    return (p.params.window == 0 || p.cache.in_order()) && !p.params.rope.active() &&
           p.cache.extent().queries_per_kv_head <= query_rows &&
           p.cache.keys.channels() <= KeyTiles * tile_channels &&
           p.cache.values.channels() <= 2 * tile_channels;
  }
  KVMELD_HD std::uint32_t queries_at_once() const {
    return query_rows / untuned.cache.extent().queries_per_kv_head;
  }
  KVMELD_HD std::uint32_t blocks() const {
    return ceil_div(untuned.source.batch.max_queries(), queries_at_once());
  }
  /// For each part. Tiles of the same block have other channels of the values.
  std::uint32_t tiles(shape const&) const {
    return blocks() * ceil_div(untuned.cache.values.channels(), tile_channels);
  }
  std::size_t scratch_bytes(int lanes) const {
    return scratch_size(sizeof(few_rows)) + scratch_size(query_pieces * sizeof(piece_words)) +
           softmax_scratch(query_rows, min_of(tile_channels, untuned.cache.values.channels())) +
           untuned.parts.find_scratch() +
           scratch_size(static_cast<std::uint32_t>(lanes) / warp_size * warp_bytes);
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const first = t.index / blocks() * tile_channels;  // of the values
    std::uint32_t const dv = min_of(tile_channels, untuned.cache.values.channels() - first);
    few_rows* const rows = team.template scratch<few_rows>(1);
    piece_words* const queries = team.template scratch<piece_words>(query_pieces);
    std::byte* const of_warps = team.template scratch<std::byte>(warps_of(team) * warp_bytes);
    softmax_state const state(team, query_rows, dv);
    if (!prepare(team, t, first, rows, queries, reinterpret_cast<std::uint32_t*>(of_warps))) return;
    softmax mine;
    attend(team, *rows, queries, of_warps + warp_of(team) * warp_bytes, mine);
    join(team, rows->block, dv, mine, of_warps, state);
    if (rows->part.count == 1) return untuned.finish(team, rows->block, dv, state, rows->first_value);
    untuned.parts.write(team, rows->part, rows->block, dv, state, rows->first_value);
  }

private:
  /// What the lanes of a tile have in common. It lies in scratch, because registers are short.
  struct few_rows {
    attention::key_part part;
    block_of_rows block;
    slot_t end;                         ///< of the slots of the part that are seen
    std::uint32_t first_value;          ///< first channel of the values
    float factor[query_rows];           ///< of the queries of a row, if they are converted
    float scale[query_rows];            ///< of the products of a row
    float* kept[query_rows];            ///< where the logits of a row go; null: nowhere
    std::uint32_t visible[query_rows];  ///< end of the slots that a row sees in this part; 0: no such row
    /// A row does not see the slots from `sinks` to the beginning of its window. Windows of later rows begin
    /// later; without a window it begins at slot 0.
    slot_t sinks, window[query_rows];

    /// Which slots of the tile at `first` a row sees, as bits.
    KVMELD_HD std::uint32_t seen(std::uint32_t row, slot_t first) const {
      return below(visible[row], first) & ~(below(window[row], first) & ~below(sinks, first));
    }
    /// Whether all rows see all slots of the tile that the part has.
    KVMELD_HD bool all_see(slot_t first) const {  // the earliest query sees the fewest
      bool const hides = first < window[block.rows - 1] && first + tile_tokens > sinks;
      return visible[0] >= min_of(end, first + tile_tokens) && !hides;
    }
    /// `first`, or of the tiles that follow at distances of `step` the first that a row may see.
    KVMELD_HD slot_t next_seen(slot_t first, std::uint32_t step) const {
      if (first < sinks || first + tile_tokens > window[0]) return first;
      return first + ceil_div(window[0] - first - (tile_tokens - 1), step) * step;
    }

  private:
    /// Which slots of the tile are below `slot`.
    KVMELD_HD static std::uint32_t below(slot_t slot, slot_t first) {
      return (1u << min_of(slot > first ? slot - first : 0, tile_tokens)) - 1u;
    }
  };

  /// Matrix steps of a tile of keys.
  static constexpr std::uint32_t tile_steps = tile_channels / matrix_step;
  /// The left factors of the products with keys: a piece for each matrix step and lane.
  static constexpr std::uint32_t query_pieces = KeyTiles * tile_steps * warp_size;
  /// Scratch of a warp: the keys, values and log degrees of 16 tokens, and in the end the warp's softmax.
  static constexpr std::uint32_t key_bytes = KeyTiles * key_tile::bytes;
  static constexpr std::uint32_t warp_bytes =
      max_of(key_bytes + value_tile::bytes + terms::bytes,
             query_rows*(tile_channels + 2) * std::uint32_t{sizeof(float)});

  KVMELD_HD block_of_rows rows_of(attention::key_part const& part, std::uint32_t index) const {
    std::uint32_t const group = untuned.cache.extent().queries_per_kv_head;
    std::uint32_t const member = untuned.source.row_of(part.item);
    std::uint32_t const queries = untuned.source.batch.queries(member);
    std::uint32_t const first = index * queries_at_once();
    std::uint32_t const rows = first < queries ? min_of(queries_at_once(), queries - first) * group : 0;
    return {member, queries, first, group, part.where.kv_head, rows};
  }

  /// Writes what attend() needs; returns whether the tile has rows. `room` has a word for each piece of each
  /// row. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD bool prepare(Team const& team, tile const& t, std::uint32_t first_value, few_rows* rows,
                         piece_words* queries, [[maybe_unused]] std::uint32_t* room) const {
    auto const& parts = untuned.parts;
    attention::key_part const part = parts.find(team, untuned.source, untuned.cache.ledger, t);
    if (part.count == 0) return false;
    block_of_rows const b = rows_of(part, t.index % blocks());
    if (b.rows == 0) return false;
    std::uint32_t const length = untuned.cache.length(part.where);
    auto const visible = [&](std::uint32_t r) {
      return untuned.params.visible(length, b.queries, b.query_of(r));
    };
    slot_t const end = part.end(visible(b.rows - 1));
    team.for_each(query_rows, [&](std::uint32_t r) {
      if (r == 0) {
        rows->part = part;
        rows->block = b;
        rows->end = end;
        rows->first_value = first_value;
        parts.note(part, t.index);
      }
      rows->scale[r] =
          key_rows::scale(untuned.cache.keys) * untuned.params.scale_for(untuned.cache.keys.channels());
      rows->kept[r] = r < b.rows && first_value == 0 ? untuned.kept.row(b, r) : nullptr;
      rows->visible[r] = r < b.rows ? min_of(end, visible(r)) : 0;
    });
    find_windows(team, b, part.where, length, rows);
    if constexpr (converts_queries) find_factors(team, b, rows, room);
    load_queries(team, b, *rows, queries);
    team.sync();
    return true;
  }

  /// Finds where the window of each query begins, and the end of the sinks of windows; a warp takes one of
  /// them at a time. Rows that there are not have the window of the last query.
  template <class Team>
  KVMELD_HD void find_windows(Team const& team, block_of_rows const& b, track where, std::uint32_t length,
                              few_rows* rows) const {
    auto const& params = untuned.params;
    std::uint32_t const lane = team.lane() % warp_size, queries = b.rows / b.group;
    std::uint32_t const known = untuned.cache.ledger.tokens(where.sequence);
    auto const first_slot = [&](std::int64_t position) {
      if (params.window == 0) return 0u;
      return first_not(team, length,  // positions ascend
                       [&](slot_t s) { return untuned.cache.position(where, s) < position; });
    };
    for (std::uint32_t i = warp_of(team); i <= queries; i += warps_of(team)) {
      if (i == queries) {
        slot_t const end = first_slot(params.window_sinks);
        if (lane == 0) rows->sinks = end;
      } else {
        slot_t const begin =
            first_slot(params.position_of(known, b.queries, b.query_of(i * b.group)) - params.window + 1);
        std::uint32_t const end = i + 1 == queries ? query_rows : (i + 1) * b.group;
        for (std::uint32_t r = i * b.group + lane; r < end; r += warp_size) rows->window[r] = begin;
      }
    }
  }

  /// A piece of a query row as it is given; zeros where there is no row.
  KVMELD_HD piece_words query_piece(block_of_rows const& b, std::uint32_t r, std::uint32_t piece) const {
    if (r >= b.rows) return {};
    return row_words(untuned.query.row(b.member, b.head_of(r), b.query_of(r)), piece,
                     untuned.cache.keys.channels());
  }

  /// Finds the power of two that brings the largest channel of each query row to the range of binary16.
  /// Collective; barrier at the end.
  template <class Team>
  KVMELD_HD void find_factors(Team const& team, block_of_rows const& b, few_rows* rows,
                              std::uint32_t* largest) const {
    static_assert(!converts_queries || matrix_format_of<query_type> == matrix_format::bf16);
    constexpr std::uint32_t pieces = KeyTiles * key_tile::pieces, infinity = 0x7f80;
    team.for_each(query_rows * pieces, [&](std::uint32_t i) {
      piece_words const piece = query_piece(b, i / pieces, i % pieces);
      std::uint32_t most = 0;
      unrolled<8>([&](auto channel) {
        constexpr std::uint32_t c = decltype(channel)::value;
        std::uint32_t const magnitude = piece.w[c / 2] >> 16 * (c % 2) & 0x7fffu;
        if (magnitude < infinity) most = max_of(most, magnitude);
      });
      largest[i] = most;
    });
    team.sync();
    team.for_each(query_rows, [&](std::uint32_t r) {
      std::uint32_t most = 0;
      for (std::uint32_t p = 0; p < pieces; ++p) most = max_of(most, largest[r * pieces + p]);
      std::uint32_t const power = min_of(253u, 127u + 141u - (most >> 7));  // to 2^14 and above
      rows->factor[r] = bits_float(power << 23);
      rows->scale[r] *= bits_float((254u - power) << 23);
    });
    team.sync();
  }

  /// Copies query rows as matrix steps take them. Steps may take channels in any order that keys and queries
  /// share: lane (group, pair) has pieces pair, pair + 4 ... of rows group and group + 8, two steps for each.
  /// Missing channels and rows become zeros. Collective.
  template <class Team>
  KVMELD_HD void load_queries(Team const& team, block_of_rows const& b, few_rows const& of_tile,
                              piece_words* to) const {
    team.for_each(query_pieces / 2, [&](std::uint32_t i) {
      std::uint32_t const j = i / warp_size, lane = i % warp_size;
      piece_words rows[2];
      unrolled<2>([&](auto which) {
        constexpr std::uint32_t half = decltype(which)::value;
        std::uint32_t const r = lane / 4 + 8 * half;
        rows[half] = query_piece(b, r, 4 * j + lane % 4);
        if constexpr (converts_queries) rows[half] = scaled_halves(rows[half], of_tile.factor[r]);
      });
      for (std::uint32_t s = 0; s < 2; ++s) {
        piece_words const left = {
            {rows[0].w[2 * s], rows[1].w[2 * s], rows[0].w[2 * s + 1], rows[1].w[2 * s + 1]}};
        copy_piece(to + (2 * j + s) * warp_size + lane, &left);
      }
    });
  }
  /// The channels of a piece of a query as binary16, times `factor`.
  KVMELD_HD static piece_words scaled_halves(piece_words const& piece, float factor) {
    piece_words halves = {};
    unrolled<8>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      float16 const x = element_traits<float16>::from_float(factor * element_of<query_type, c>(piece));
      halves.w[c / 2] |= std::uint32_t{x.bits} << 16 * (c % 2);
    });
    return halves;
  }

  /// Runs this warp's tiles of the part. The next keys are copied as soon as the products with the current
  /// ones are there, and the next values as soon as the current ones are added.
  template <class Team>
  KVMELD_HD void attend(Team const& team, few_rows const& rows, piece_words const* queries, std::byte* memory,
                        softmax& mine) const {
    auto const& cache = untuned.cache;
    warp_place const place = place_in_warp(team);
    auto const keys = [&](std::uint32_t h) {
      return key_tile(key_rows::stored(cache.keys), rows.part.where, memory + h * key_tile::bytes,
                      h * tile_channels);
    };
    auto const values = [&] {
      return value_tile(value_rows::stored(cache.values), rows.part.where, memory + key_bytes,
                        rows.first_value);
    };
    auto const dv = [&] { return cache.values.channels() - rows.first_value; };
    terms of_slots(memory + key_bytes + value_tile::bytes);
    std::uint32_t const step = tile_tokens * warps_of(team);
    auto const fetch_keys = [&](slot_t from) {
      if (from < rows.end) {
        for (std::uint32_t h = 0; h < KeyTiles; ++h) keys(h).copy(team, from, rows.end - 1);
        of_slots.fetch(team, cache, rows.part.where, from, rows.end - 1);
      }
      team.commit_copies();
    };
    auto const fetch_values = [&](slot_t from) {
      if (from < rows.end) values().copy(team, from, rows.end - 1);
      team.commit_copies();
    };
    slot_t first = rows.next_seen(rows.part.begin() + tile_tokens * warp_of(team), step);
    fetch_keys(first);
    fetch_values(first);
    while (first < rows.end) {
      slot_t const next = rows.next_seen(first + step, step);
      of_slots.settle(team, cache, rows.part.where, first, rows.end - 1);
      team.template finish_copies<1>();
      team.sync_warp();
      float logit[2][4] = {};
      for (std::uint32_t h = 0; h < KeyTiles; ++h)
        multiply(team, place, queries + h * tile_steps * warp_size, keys(h), h * tile_channels, logit);
      of_slots.finish(place, cache, rows.part.where, untuned.params,
                      {rows.scale[place.group], rows.scale[place.group + 8]}, logit);
      team.sync_warp();
      fetch_keys(next);
      if (untuned.kept.wanted()) keep(place, rows, logit, first);
      mine.soften(team, logit, {rows.seen(place.group, first), rows.seen(place.group + 8, first)});
      split_weights<value_type> const w(logit);
      team.template finish_copies<1>();
      team.sync_warp();
      if (!rows.all_see(first)) {
        mine.hide_unseen(team, values(), dv(),
                         {rows.seen(place.group, first), rows.seen(place.group + 8, first)});
      }
      mine.add(team, w, values(), dv());
      team.sync_warp();
      fetch_values(next);
      first = next;
    }
  }

  /// Writes the logits of the tile at `first` that are to be kept.
  KVMELD_HD static void keep(warp_place place, few_rows const& rows, float const (&logit)[2][4],
                             slot_t first) {
    unrolled<2>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value;
      std::uint32_t const row = place.group + 8 * half;
      float* const to = rows.kept[row];
      if (to == nullptr) return;
      unrolled<4>([&](auto number) {
        constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
        std::uint32_t const slot = first + token_of(place, n, i);
        if (slot < rows.visible[row]) to[slot] = logit[n][2 * half + i];
      });
    });
  }

  /// logit += queries x keys, for the keys' channels from `first` on. Collective in a warp.
  template <class Team>
  KVMELD_HD void multiply(Team const& team, warp_place place, piece_words const* queries,
                          key_tile const& keys, std::uint32_t first, float (&logit)[2][4]) const {
    unrolled<tile_steps / 2>([&](auto number) {
      constexpr std::uint32_t j = decltype(number)::value;
      if (first + 32 * j >= untuned.cache.keys.channels()) return;
      piece_words const tokens[2] = {keys.words(place.group, 4 * j + place.pair),
                                     keys.words(place.group + 8, 4 * j + place.pair)};
      for (std::uint32_t s = 0; s < 2; ++s) {
        piece_words left;
        copy_piece(&left, queries + (2 * j + s) * warp_size + place.lane);
        for (std::uint32_t n = 0; n < 2; ++n) {
          std::uint32_t const right[2] = {tokens[n].w[2 * s], tokens[n].w[2 * s + 1]};
          team.template multiply<key_format>(logit[n], left.w, right);
        }
      }
    });
  }

  /// Joins the softmaxes of the warps in the order of the warps. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD void join(Team const& team, block_of_rows const& b, std::uint32_t dv, softmax const& mine,
                      std::byte* of_warps, softmax_state const& state) const {
    std::uint32_t const warps = warps_of(team);
    warp_place const place = place_in_warp(team);
    auto const of_warp = [&](std::uint32_t w) { return reinterpret_cast<float*>(of_warps + w * warp_bytes); };
    auto const highest = [&](std::uint32_t w, std::uint32_t r) -> float& { return of_warp(w)[r]; };
    auto const sum = [&](std::uint32_t w, std::uint32_t r) -> float& { return of_warp(w)[query_rows + r]; };
    auto const total = [&](std::uint32_t w) { return of_warp(w) + 2 * query_rows; };
    std::uint32_t const own = warp_of(team);
    float const unit = value_rows::scale(untuned.cache.values) / split_weights<value_type>::scale;
    unrolled<2>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value;
      std::uint32_t const row = place.group + 8 * half;
      if (place.pair == 0) {
        highest(own, row) = mine.highest[half];
        sum(own, row) = mine.sum[half];
      }
      unrolled<2 * softmax::results>([&](auto number) {
        constexpr std::uint32_t r = decltype(number)::value / 2, i = decltype(number)::value % 2;
        std::uint32_t const c = r / 8 * 64 + 8 * (2 * place.pair + i) + r % 8;
        if (c < dv) total(own)[row * dv + c] = mine.total[r][2 * half + i] * unit;
      });
    });
    team.sync();
    auto const scale = [&](std::uint32_t w, std::uint32_t r) {
      return exponential(highest(w, r) - state.highest[r]);
    };
    team.for_each(b.rows, [&](std::uint32_t r) {
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum(w, r) == 0.0f) continue;
        float const high = highest(w, r);
        state.highest[r] = state.seen[r] != 0 ? max_of(state.highest[r], high) : high;
        state.seen[r] = 1;
      }
      float all = 0.0f;
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum(w, r) != 0.0f) all += sum(w, r) * scale(w, r);
      }
      state.sum[r] = all;
    });
    team.sync();
    team.for_each(b.rows * dv, [&](std::uint32_t i) {
      std::uint32_t const r = i / dv;
      float all = 0.0f;
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum(w, r) != 0.0f) all += total(w)[i] * scale(w, r);
      }
      state.total[i] = all;
    });
    team.sync();
  }
};

/// Whether attend_few multiplies such rows and queries. Queries have the keys' format, or keys are of 8 bits.
template <class Keys, class Values, class Q,
          bool = multiplied_rows<Keys>::there&& multiplied_rows<Values>::there>
inline constexpr bool multiplies = false;
template <class Keys, class Values, class Q>
inline constexpr bool multiplies<Keys, Values, Q, true> =
    matrix_format_of<Q> == matrix_format_of<typename multiplied_rows<Keys>::element> ||
    (is_fp8<typename Keys::element_type> && matrix_format_of<Q> != matrix_format::none);

/// Keys of up to 128 channels have one tile, of up to 256 channels two.
template <class Phase> struct attends_few {
  using narrow = detail::tuned_by_form<Phase, attend_few<Phase, 1>>;
  using wide = detail::tuned_by_form<Phase, attend_few<Phase, 2>>;
  static constexpr bool value = true;
  template <class Executor> static bool accepts(Phase const& p, Executor const& executor) {
    return narrow::takes(p) ? narrow::accepts(p, executor) : wide::accepts(p, executor);
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, Phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    if (narrow::takes(p))
      narrow::enqueue(executor, p, extent, items, source);
    else
      wide::enqueue(executor, p, extent, items, source);
  }
};

}  // namespace tuned_form

template <class Keys, class Values, class Q, class Out>
struct tuned<warps, attention::attend_phase<Keys, Values, Q, Out>,
             std::enable_if_t<tuned_form::multiplies<Keys, Values, std::remove_const_t<Q>>>>
    : tuned_form::attends_few<attention::attend_phase<Keys, Values, Q, Out>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
