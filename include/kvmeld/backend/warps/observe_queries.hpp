// SPDX-License-Identifier: Apache-2.0
// Scores from queries on matrix units: the loop of FlashAttention without values, with column sums in
// registers.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/backend/warps/warp_softmax.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/observe/observe.hpp>
#include <kvmeld/observe/observe_base.hpp>
#include <kvmeld/queries/load_bias.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// observe_queries_phase for 16-bit keys and queries of one format, up to 128 channels, groups of 1, 2, 4, 8
/// or 16 query heads, neither window nor rotation, and scores that sum means over heads, of up to two
/// channels. One block takes 64 tokens. Its warps take query rows in turn, 16 at a time, and sums are joined
/// in the order of the warps. A logit differs from the generic form's by at most 2^-22 * (d + 8) of scale *
/// |q| * |k|.
template <class Score, class Keys, class Q> struct observe_queries {
  using untuned_phase = detail::observe_queries_phase<Score, Keys, Q>;
  using key_type = typename Keys::element_type;
  using key_store = row_store<Keys, true>;
  static constexpr std::uint32_t channels = untuned_phase::channels, max_channels = 2;
  static constexpr std::uint32_t token_block = untuned_phase::token_block, results = token_block / 8;
  static constexpr std::uint32_t pieces = tile_channels / 32;
  static_assert(token_block % 8 == 0);
  static constexpr bool near_scratch = true;
  /// Blocks of a multiprocessor: one loads while another multiplies. Contributions other than p need more
  /// registers.
  static constexpr int min_blocks = detail::has_contribution<Score> ? 1 : 2;
  untuned_phase untuned;

  KVMELD_HD static bool takes(untuned_phase const& p) {
    std::uint32_t const group = p.ledger.extent.queries_per_kv_head;
    return p.params.window == 0 && !p.params.rope.active() && group <= query_rows &&
           (group & (group - 1)) == 0 && p.keys.channels() <= tile_channels &&
           detail::fold_of(p.score).is_sum_of_means();
  }
  std::uint32_t tiles(shape const& s) const { return untuned.tiles(s); }
  std::size_t scratch_bytes(int lanes) const {
    return key_store::bytes(token_block, untuned.keys.channels()) +
           scratch_size(token_block * sizeof(float)) +
           scratch_size(static_cast<std::uint32_t>(lanes) / warp_size * token_block * channels *
                        sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = untuned.ledger;
    query_sample const& sample = untuned.sample;
    detail::observed_tile const s = untuned.slots_of(t);
    std::uint32_t const tokens = s.tokens;
    if (tokens == 0) return;
    auto const u = untuned.updates_of(t.where, s.rows);
    key_store const store(team, token_block, untuned.keys.channels());
    float* const bias = team.template scratch<float>(token_block);
    float* const parts = team.template scratch<float>(std::size_t{warps_of(team)} * token_block * channels);
    store.load(team, untuned.keys, t.where, tokens, [&](std::uint32_t i) { return s.begin + i; });
    detail::load_bias(team, l, t.where, s.begin, tokens, bias);
    team.finish_copies();
    team.sync();

    // The earliest row that sees any of these tokens. Each query sees one token more than the query before.
    std::uint32_t first = u.first_row;
    if (untuned.params.causal && s.begin + s.queries > s.length && s.rows != 0) {
      std::uint32_t const query = s.begin + s.queries - s.length, oldest = sample.query_of(s.queries, 0);
      if (query > oldest) first = max_of(first, ceil_div(query - oldest, sample.stride));
    }
    sums mine;
    std::uint32_t const at_once = query_rows / l.extent.queries_per_kv_head;
    for (std::uint32_t r = first + at_once * warp_of(team); r < s.rows; r += at_once * warps_of(team)) {
      strip(team, s, r, store, bias, u, mine);
    }
    gather(team, mine, parts);
    team.sync();
    team.for_each(tokens, [&](std::uint32_t j) {
      float total[channels] = {};
      for (std::uint32_t w = 0; w < warps_of(team); ++w) {
        for (std::uint32_t c = 0; c < channels; ++c) total[c] += parts[(w * token_block + j) * channels + c];
      }
      untuned.add(t.where, s.begin + j, u, total);
    });
  }

private:
  /// The sums of one lane, for the tokens of its results.
  struct sums {
    float of[channels][results][2] = {};
  };

  /// Adds observed rows from `first` on, as many as fill 16 rows with their heads. Rows behind the last
  /// observed one have query numbers behind the last query and are skipped.
  template <class Team, class Updates>
  KVMELD_HD void strip(Team const& team, detail::observed_tile const& s, std::uint32_t first,
                       key_store const& store, float const* bias, Updates const& u, sums& mine) const {
    block_of_rows const b{s.member,
                          s.queries,
                          untuned.sample.query_of(s.queries, first),
                          untuned.ledger.extent.queries_per_kv_head,
                          s.where.kv_head,
                          0,
                          untuned.sample.stride};
    std::uint32_t const tokens = s.tokens;
    slot_t const begin = s.begin;
    warp_place const place = place_in_warp(team);
    float const scale = untuned.params.scale_for(untuned.keys.channels());
    float const share = 1.0f / static_cast<float>(b.group);  // exact: a power of two
    float p[results][4] = {};
    multiply(team, place, b, store, p);
    unrolled<2>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value;
      std::uint32_t const row = place.group + 8 * half;
      std::uint32_t const query = b.query_of(row);
      std::uint32_t const visible =
          query < b.queries ? untuned.params.visible(s.length, b.queries, query) : 0;
      float const norm = query < b.queries ? untuned.lse.read(b.member, b.head_of(row), query)
                                           : element_traits<float>::lowest;
      bool const usable = is_usable_lse(norm);
      unrolled<2 * results>([&](auto number) {
        constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
        std::uint32_t const token = 8 * n + 2 * place.pair + i;
        float& x = p[n][2 * half + i];
        bool const seen = usable && token < tokens && begin + token < visible;
        x = seen ? exponential(untuned.params.logit(scale * x, bias[token]) - norm) : 0.0f;
      });
    });
    add_heads(team, b.group, p);
    unrolled<2>([&](auto which) {
      constexpr std::uint32_t half = decltype(which)::value;
      std::uint32_t const row = place.group + 8 * half;
      std::uint32_t const query = b.query_of(row);
      if (row % b.group != 0 || query >= b.queries) return;
      std::uint32_t const visible = untuned.params.visible(s.length, b.queries, query);
      float const times = share * untuned.sample.weight(b.member, query);
      bool counts[channels];
      unrolled<channels>([&](auto channel) {
        constexpr std::uint32_t c = decltype(channel)::value;
        counts[c] = c < u.used && first + row / b.group >= u.at[c].first_row;
      });
      unrolled<2 * results>([&](auto number) {
        constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
        std::uint32_t const token = 8 * n + 2 * place.pair + i;
        if (token >= tokens || begin + token >= visible) return;
        float const mean = p[n][2 * half + i] * times;
        unrolled<channels>([&](auto channel) {
          constexpr std::uint32_t c = decltype(channel)::value;
          if (counts[c]) mine.of[c][n][i] += contribution_of(untuned.score, c, mean, visible - s.empty);
        });
      });
    });
  }

  /// p = query rows x keys. Collective in a warp. Channels are multiplied in the order of key_pieces.
  template <class Team>
  KVMELD_HD void multiply(Team const& team, warp_place place, block_of_rows const& b, key_store const& store,
                          float (&p)[results][4]) const {
    std::uint32_t const d = untuned.keys.channels();
    unrolled<pieces>([&](auto number) {
      constexpr std::uint32_t j = decltype(number)::value;
      if (32 * j >= d) return;
      piece_words rows[2] = {};
      unrolled<2>([&](auto which) {
        constexpr std::uint32_t half = decltype(which)::value;
        std::uint32_t const row = place.group + 8 * half, query = b.query_of(row);
        if (query >= b.queries) return;
        rows[half] = row_words(untuned.query.row(b.member, b.head_of(row), query), 4 * j + place.pair, d);
      });
      unrolled<results>([&](auto result) {
        constexpr std::uint32_t n = decltype(result)::value;
        piece_words const key = store.words(8 * n + place.group, 4 * j + place.pair);
        unrolled<2>([&](auto step) {
          constexpr std::uint32_t s = decltype(step)::value;
          std::uint32_t const a[4] = {rows[0].w[2 * s], rows[1].w[2 * s], rows[0].w[2 * s + 1],
                                      rows[1].w[2 * s + 1]};
          std::uint32_t const right[2] = {key.w[2 * s], key.w[2 * s + 1]};
          team.template multiply<matrix_format_of<key_type>>(p[n], a, right);
        });
      });
    });
  }

  /// Replaces every row by the sum over the heads of its query. Collective in a warp.
  template <class Team>
  KVMELD_HD static void add_heads(Team const& team, std::uint32_t group, float (&p)[results][4]) {
    std::uint32_t const lane = team.lane() % warp_size;
    for (std::uint32_t step = 1; step < min_of(group, 8u); step *= 2) {
      unrolled<4 * results>([&](auto number) {
        constexpr std::uint32_t n = decltype(number)::value / 4, i = decltype(number)::value % 4;
        p[n][i] += bits_float(team.shuffle(float_bits(p[n][i]), lane ^ (4 * step)));
      });
    }
    if (group < 16) return;
    unrolled<2 * results>([&](auto number) {
      constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
      p[n][i] += p[n][2 + i];
    });
  }

  /// Writes the warp's sums per token to the warp's part of `parts`. Collective in a warp.
  template <class Team> KVMELD_HD static void gather(Team const& team, sums& mine, float* parts) {
    warp_place const place = place_in_warp(team);
    unrolled<2 * results * channels>([&](auto number) {
      constexpr std::uint32_t c = decltype(number)::value % channels,
                              n = decltype(number)::value / channels / 2,
                              i = decltype(number)::value / channels % 2;
      float x = mine.of[c][n][i];
      for (std::uint32_t step = 4; step < warp_size; step *= 2) {
        x += bits_float(team.shuffle(float_bits(x), place.lane ^ step));
      }
      std::uint32_t const token = 8 * n + 2 * place.pair + i;
      if (place.group == 0) parts[(warp_of(team) * token_block + token) * channels + c] = x;
    });
  }
};

}  // namespace tuned_form

template <class Score, class Keys, class Q>
struct tuned<warps, detail::observe_queries_phase<Score, Keys, Q>,
             std::enable_if_t<tuned_form::has_matrix_rows<Keys>::value &&
                              matrix_format_of<std::remove_const_t<Q>> ==
                                  matrix_format_of<typename Keys::element_type> &&
                              tuned_form::observe_queries<Score, Keys, Q>::channels <=
                                  tuned_form::observe_queries<Score, Keys, Q>::max_channels>>
    : detail::tuned_by_form<detail::observe_queries_phase<Score, Keys, Q>,
                            tuned_form::observe_queries<Score, Keys, Q>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
