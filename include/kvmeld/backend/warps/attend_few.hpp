// Attention of few queries, as in decoding. One tile takes all query heads of a KV head, so keys and values
// are read once.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/attention/split_keys.hpp>
#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/backend/warps/warp_softmax.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// attend_phase for 16-bit rows and queries in the keys' format, groups of up to 16 query heads, up to 128
/// channels, and neither window nor rotation. Takes any number of queries, in blocks of as many as fill 16
/// rows; every block reads K and V again. Every warp takes tiles of 16 tokens in turn and keeps a softmax of
/// its own. These are joined in the order of the warps. Products are exact and weights keep 16 bits or more:
/// outputs differ from those of the generic form by some 2^-14 of the largest value. Infinite values give
/// NaN. Bits depend on the number of warps and of parts.
template <class Keys, class Values, class Q, class Out> struct attend_few {
  using untuned_phase = attention::attend_phase<Keys, Values, Q, Out>;
  using key_type = typename Keys::element_type;
  using value_type = typename Values::element_type;
  using softmax = warp_softmax<value_type>;
  static constexpr matrix_format key_format = matrix_format_of<key_type>;
  static constexpr bool near_scratch = true;
  untuned_phase untuned;

  KVMELD_HD static bool takes(untuned_phase const& p) {
    return p.params.window == 0 && !p.params.rope.active() &&
           p.cache.extent().queries_per_kv_head <= query_rows &&
           p.cache.keys.channels() <= max_attended_channels &&
           p.cache.values.channels() <= max_attended_channels;
  }
  KVMELD_HD std::uint32_t queries_at_once() const {
    return query_rows / untuned.cache.extent().queries_per_kv_head;
  }
  KVMELD_HD std::uint32_t blocks() const {
    return ceil_div(untuned.source.batch.max_queries(), queries_at_once());
  }
  std::uint32_t tiles(shape const&) const { return blocks() * untuned.parts.count; }
  std::size_t scratch_bytes(int lanes) const {
    std::uint32_t const dv = untuned.cache.values.channels();
    return scratch_size(query_rows * query_pitch * sizeof(std::uint32_t)) + attention_scratch(dv) +
           static_cast<std::uint32_t>(lanes) / warp_size * (attention_scratch(dv));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    auto const& cache = untuned.cache;
    block_of_rows const b = rows_of(t);
    if (b.rows == 0) return;
    std::uint32_t const dv = cache.values.channels();
    std::uint32_t const length = cache.length(t.where);
    std::uint32_t* const queries = team.template scratch<std::uint32_t>(query_rows * query_pitch);
    softmax_state const state(team, query_rows, dv);
    load_queries(team, b, queries);
    team.sync();
    std::uint32_t const part = t.index / blocks();
    std::uint32_t const most = untuned.params.visible(length, b.queries, b.query_of(b.rows - 1));
    std::uint32_t const share = untuned.parts.share_of(most, attention::attend_rows<Q, Out>::token_block);
    std::uint32_t const end = min_of(most, (part + 1) * share);

    softmax mine;
    attend(team, t, b, queries, length, part * share, end, mine);
    join(team, b, mine, state);
    if (untuned.parts.count == 1) return untuned.finish(team, b, dv, state);
    untuned.parts.write(team, part, b, state);
  }

private:
  /// Words of a query row: 64 bytes more than a multiple of 128, as in row_store with `Whole`.
  static constexpr std::uint32_t query_pitch = max_attended_channels / 2 + 16;
  static_assert(query_pitch % 32 == 16);
  static constexpr std::size_t attention_scratch(std::uint32_t value_dim) {
    return softmax_scratch(query_rows, value_dim);
  }

  KVMELD_HD block_of_rows rows_of(tile const& t) const {
    std::uint32_t const group = untuned.cache.extent().queries_per_kv_head;
    std::uint32_t const member = untuned.source.row_of(t.item);
    std::uint32_t const queries = untuned.source.batch.queries(member);
    std::uint32_t const first = t.index % blocks() * queries_at_once();
    std::uint32_t const rows = first < queries ? min_of(queries_at_once(), queries - first) * group : 0;
    return {member, queries, first, group, t.where.kv_head, rows};
  }

  /// Copies query rows as they are stored, two channels per word. Missing channels and rows become zeros.
  /// Cooperative.
  template <class Team>
  KVMELD_HD void load_queries(Team const& team, block_of_rows const& b, std::uint32_t* to) const {
    std::uint32_t const channels = untuned.cache.keys.channels();
    constexpr std::uint32_t pieces = query_pitch / 4;
    team.for_each(query_rows * pieces, [&](std::uint32_t i) {
      std::uint32_t const r = i / pieces, piece = i % pieces;
      piece_words words = {};
      if (r < b.rows) {
        words = row_words(untuned.query.row(b.member, b.head_of(r), b.query_of(r)), piece, channels);
      }
      copy_piece(to + r * query_pitch + 4 * piece, words.w);
    });
  }

  KVMELD_HD float* kept_row(block_of_rows const& b, std::uint32_t r) const {
    return r < b.rows ? untuned.kept.row(b, r) : nullptr;
  }

  /// Runs this warp's tiles of slots begin .. end - 1.
  template <class Team>
  KVMELD_HD void attend(Team const& team, tile const& t, block_of_rows const& b, std::uint32_t const* queries,
                        std::uint32_t length, slot_t begin, slot_t end, softmax& mine) const {
    auto const& cache = untuned.cache;
    warp_place const place = place_in_warp(team);
    row_pieces<Keys> const keys(cache.keys, t.where);
    row_pieces<Values> const values(cache.values, t.where);
    std::uint32_t const dv = cache.values.channels();
    float const scale = untuned.params.scale_for(cache.keys.channels());
    auto const visible = [&](std::uint32_t r) {
      return r < b.rows ? untuned.params.visible(length, b.queries, b.query_of(r)) : 0u;
    };
    std::uint32_t const visible_here[2] = {min_of(end, visible(place.group)),
                                           min_of(end, visible(place.group + 8))};
    std::uint32_t const all_see = visible(0);  // the earliest query sees the fewest
    float* const kept[2] = {kept_row(b, place.group), kept_row(b, place.group + 8)};
    std::uint32_t const step = tile_tokens * warps_of(team);
    key_pieces k;
    slot_t first = begin + tile_tokens * warp_of(team);
    if (first < end) k.load(keys, place, first, end - 1);
    for (; first < end; first += step) {
      value_pieces v;
      v.load(values, place, first, end - 1);
      float const bias =
          place.lane < tile_tokens ? cache.log_degree(t.where, min_of(first + place.lane, end - 1)) : 0.0f;
      float logit[2][4] = {};
      multiply(team, place, queries, k, logit);
      for (std::uint32_t n = 0; n < 2; ++n) {
        for (std::uint32_t i = 0; i < 2; ++i) {
          float const own = bits_float(team.shuffle(float_bits(bias), 8 * n + 2 * place.pair + i));
          for (std::uint32_t half = 0; half < 2; ++half) {
            float& x = logit[n][2 * half + i];
            x = untuned.params.logit(scale * x, own);
            std::uint32_t const slot = first + 8 * n + 2 * place.pair + i;
            if (kept[half] != nullptr && slot < visible_here[half]) kept[half][slot] = x;
          }
        }
      }
      if (first + step < end) k.load(keys, place, first + step, end - 1);
      mine.soften(team, logit, [&](std::uint32_t half, std::uint32_t n, std::uint32_t i) {
        return first + 8 * n + 2 * place.pair + i < visible_here[half];
      });
      split_weights<value_type> const w(logit);
      if (min_of(end, first + tile_tokens) <= all_see) {
        mine.add(team, w, v, dv, [](std::uint32_t) { return true; });
      } else {
        add_apart(team, place, b, w, v, first, end, visible, mine);
      }
    }
  }

  /// For a tile of which queries see different tokens. Adds one query after the other, with the tokens
  /// cleared that the query does not see: 0 times such a value could be NaN.
  template <class Team, class Visible>
  KVMELD_HD void add_apart(Team const& team, warp_place place, block_of_rows const& b,
                           split_weights<value_type> const& w, value_pieces const& v, slot_t first,
                           slot_t end, Visible visible, softmax& mine) const {
    for (std::uint32_t r = 0; r < b.rows; r += b.group) {
      std::uint32_t const seen = min_of(end, visible(r));
      if (seen <= first) continue;
      mine.add(team, w, v.seen(place, seen - first), untuned.cache.values.channels(),
               [&](std::uint32_t half) {
                 std::uint32_t const row = place.group + 8 * half;
                 return row >= r && row < r + b.group;
               });
    }
  }

  /// logit = queries x keys. Collective in a warp.
  template <class Team>
  KVMELD_HD static void multiply(Team const& team, warp_place place, std::uint32_t const* queries,
                                 key_pieces const& k, float (&logit)[2][4]) {
    for (std::uint32_t j = 0; j < key_pieces::pieces; ++j) {
      piece_words rows[2];
      for (std::uint32_t half = 0; half < 2; ++half) {
        copy_piece(rows[half].w, queries + (place.group + 8 * half) * query_pitch + 4 * (4 * j + place.pair));
      }
      for (std::uint32_t s = 0; s < 2; ++s) {
        std::uint32_t const a[4] = {rows[0].w[2 * s], rows[1].w[2 * s], rows[0].w[2 * s + 1],
                                    rows[1].w[2 * s + 1]};
        for (std::uint32_t n = 0; n < 2; ++n) {
          std::uint32_t const right[2] = {k.of[n][j].w[2 * s], k.of[n][j].w[2 * s + 1]};
          team.template multiply<key_format>(logit[n], a, right);
        }
      }
    }
  }

  /// Joins the softmaxes of the warps in the order of the warps. Cooperative; barrier at the end.
  template <class Team>
  KVMELD_HD void join(Team const& team, block_of_rows const& b, softmax const& mine,
                      softmax_state const& state) const {
    std::uint32_t const dv = untuned.cache.values.channels();
    std::uint32_t const warps = warps_of(team);
    warp_place const place = place_in_warp(team);
    float* const highest = team.template scratch<float>(warps * query_rows);
    float* const sum = team.template scratch<float>(warps * query_rows);
    float* const total = team.template scratch<float>(std::size_t{warps} * query_rows * dv);
    std::uint32_t const first_row = warp_of(team) * query_rows;
    unrolled<2>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value;
      std::uint32_t const row = first_row + place.group + 8 * half;
      if (place.pair == 0) {
        highest[row] = mine.highest[half];
        sum[row] = mine.any[half] ? mine.sum[half] : 0.0f;
      }
      unrolled<2 * softmax::results>([&](auto number) {
        constexpr std::uint32_t r = decltype(number)::value / 2, i = decltype(number)::value % 2;
        std::uint32_t const c = r / 8 * 64 + 8 * (2 * place.pair + i) + r % 8;
        if (c < dv)
          total[std::size_t{row} * dv + c] =
              mine.total[r][2 * half + i] * (1.0f / split_weights<value_type>::scale);
      });
    });
    team.sync();
    auto const scale = [&](std::uint32_t w, std::uint32_t r) {
      return exponential(highest[w * query_rows + r] - state.highest[r]);
    };
    team.for_each(b.rows, [&](std::uint32_t r) {
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum[w * query_rows + r] == 0.0f) continue;
        float const high = highest[w * query_rows + r];
        state.highest[r] = state.seen[r] != 0 ? max_of(state.highest[r], high) : high;
        state.seen[r] = 1;
      }
      float all = 0.0f;
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum[w * query_rows + r] != 0.0f) all += sum[w * query_rows + r] * scale(w, r);
      }
      state.sum[r] = all;
    });
    team.sync();
    team.for_each(b.rows * dv, [&](std::uint32_t i) {
      std::uint32_t const r = i / dv;
      float all = 0.0f;
      for (std::uint32_t w = 0; w < warps; ++w) {
        if (sum[w * query_rows + r] == 0.0f) continue;
        all += total[std::size_t{w} * query_rows * dv + i] * scale(w, r);
      }
      state.total[i] = all;
    });
    team.sync();
  }
};

}  // namespace tuned_form

template <class Keys, class Values, class Q, class Out>
struct tuned<warps, attention::attend_phase<Keys, Values, Q, Out>,
             std::enable_if_t<
                 tuned_form::has_matrix_rows<Keys>::value && tuned_form::has_matrix_rows<Values>::value &&
                 matrix_format_of<std::remove_const_t<Q>> == matrix_format_of<typename Keys::element_type>>>
    : detail::tuned_by_form<attention::attend_phase<Keys, Values, Q, Out>,
                            tuned_form::attend_few<Keys, Values, Q, Out>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
