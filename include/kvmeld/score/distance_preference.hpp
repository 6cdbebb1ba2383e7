// SPDX-License-Identifier: Apache-2.0
// How far back queries look on average, and at which keys: TriAttention.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/standard.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// TriAttention (Mao et al., "TriAttention: Efficient Long Reasoning with Trigonometric KV Compression",
/// 2026). Channels that rotate together are a band f; a channel that does not rotate is a band of its own.
/// For every query head and band, `observe` keeps the mean query q_f before rotation, and the mean of |q_f|,
/// times the scale of logits. Let w_f be the rotation of band f per position, p the position of the last
/// token, and p_i that of entry i. For a query at the distance x, entry i gets
///
///     sum over f of |mean q_f| |k_f| cos(w_f x + phi_f) + (mean |q_f| - |mean q_f|) |k_f|,
///
/// where phi_f is the angle from k_f to the mean query before rotation. The entry's score for a query head is
/// the mean of this over the distances x = p - p_i + y with y = 1, 2, 4, ... up to `farthest`, plus the log
/// degree. The scores of each query head are moved and scaled to mean 0 and deviation 1 over the entries, and
/// the largest over the heads of the KV head counts. The paper has no degrees.
///
/// The first term is a product of the key, as it is rotated, with the mean query turned for p + x: nothing is
/// rotated back. Positions are those that keys are rotated for. Queries that hold NaN or infinity do not
/// count. An entry whose number is not finite scores the lowest. `shift` and `renumber` change nothing in the
/// table. It keeps the queries that `truncate` forgets.
///
/// The paper measures the means once: give `means`, as calibrate::query_means makes them.
///
/// Table: at most 1 + 2 d floats per query head, for d key channels; counts are exact up to 2^24 queries.
/// Cost per query observed, and per entry, of every query head: 2 d operations. Reads the keys once per query
/// head. Scratch: 34 d + 320 floats.
struct distance_preference {
  /// How the engine rotates queries, and keys likewise. `frequencies` must be finite and lie in memory that
  /// phases can read. `map` must be null, because future positions follow one another.
  rope_params rope;
  std::uint32_t farthest =
      1u << 16;  ///< the largest distance from the last token to a future query, at least 1
  /// [layers of the cache] or null: means that were measured before (calibrate::query_means), in place of
  /// those of observed queries. Then nothing is observed, and no table is kept. Each layer has floats [query
  /// heads][table_of_head(d)]. They and this array must lie in memory that phases can read.
  float const* const* means = nullptr;
  bool keys_rotated = true;  ///< false: keys lie unrotated, as where attention_params.rope is given

  static constexpr char const* name = "distance_preference";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};
  /// Every query may count, unless means are given.
  observation_need need() const { return {means != nullptr ? observation::none : facts.observes}; }

  /// Floats of a query head, for d key channels: a count, the mean query, and the mean length per band.
  KVMELD_HD std::size_t table_of_head(std::uint32_t d) const { return std::size_t{1} + d + bands(d); }
  /// Floats of the table of a track; 0 if means are given.
  std::size_t table_floats(shape const& s) const {
    return means != nullptr ? 0 : std::size_t{s.queries_per_kv_head} * table_of_head(s.key_dim);
  }
  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const d = s.key_dim;
    return scratch_size(d * block * sizeof(float)) + 2 * scratch_size(block * sizeof(float)) +
           2 * scratch_size(d * sizeof(float)) + team_sum_scratch() + rope_scratch(rope, s.key_dim);
  }

  /// Adds blocks of queries to the means.
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    std::uint32_t const d = queries.channels(), n = queries.count(), pairs = rope.pairs(d);
    float* const count = table + head * table_of_head(d);
    float* const mean = count + 1;
    float* const length = mean + d;
    float* const x = team.template scratch<float>(std::size_t{d} * block);
    float* const counts = team.template scratch<float>(block);
    double const* const turns = rope_table(team, rope, d);
    for (std::uint32_t first = 0; first < n; first += block) {
      std::uint32_t const rows = min_of(block, n - first);
      float const used = queries.load_unrotated(team, rope, turns, first, rows, 0, x, counts);
      float const share = used > 0.0f ? used / (count[0] + used) : 0.0f;
      // Moves a mean towards that of the block.
      auto const add = [&](float& to, auto const& at) {
        float sum = 0.0f;
        for (std::uint32_t i = 0; i < rows; ++i) sum += counts[i] != 0.0f ? at(x + std::size_t{i} * d) : 0.0f;
        if (used > 0.0f) to += share * (sum / used - to);
      };
      team.for_each(d, [&](std::uint32_t c) { add(mean[c], [&](float const* row) { return row[c]; }); });
      team.for_each(bands(d), [&](std::uint32_t f) {
        add(length[f], [&](float const* row) { return length_of(row, f, pairs); });
      });
      team.sync();
      if (team.lane() == 0) count[0] += used;
      team.sync();
    }
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length(), d = rows.keys.channels(), pairs = rope.pairs(d);
    float* const keys = block_scratch<float>(team, std::size_t{d} * block);
    float* const query = block_scratch<float>(team, d);
    float* const rest = block_scratch<float>(team, d);  // [bands]
    float* const partial = team.template scratch<float>(team_partials);
    double const* const turns = rope_table(team, rope, d);
    auto const& own = block_of(team);
    position_t const last = rope.turned_for(n, static_cast<position_t>(view.tokens())) - 1;
    team.sync();
    std::uint32_t const group = view.queries_per_kv_head();
    track const where = view.where();
    float const* const all = means == nullptr
                                 ? view.table().data()
                                 : means[where.layer] + std::size_t{where.kv_head} * group * table_of_head(d);
    for (std::uint32_t h = 0; h < group; ++h) {
      float const* const mean = all + h * table_of_head(d) + 1;
      float const* const length = mean + d;
      own.for_each(bands(d), [&](std::uint32_t f) {
        rest[f] = length[f] - length_of(mean, f, pairs);
        turn_mean(mean, f, pairs, turns, last, query);
      });
      own.sync();
      float* const given = view.room();
      rows.keys.for_each_block(
          team, 0, n, [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
            copy_rows(part, row, count, d, keys);
            part.sync();
            if (!keys_rotated) {
              rotate_rows(part, rope, turns, keys, count, d,
                          [&](std::uint32_t i) { return rope.turned_for(s + i, view.position(s + i)); });
            }
            part.for_each(count, [&](std::uint32_t i) {
              float const* const key = keys + std::size_t{i} * d;
              float const norms =
                  ordered_sum(bands(d), [&](std::uint32_t f) { return rest[f] * length_of(key, f, pairs); });
              given[s + i] = dot(query, key, d) + norms + log_of_degree(view.degree(s + i));
            });
          });
      standard const z = standard_of(team, view, given, partial);
      team.for_each(n, [&](std::uint32_t i) {
        float const x = is_finite(given[i]) ? z.at(given[i]) : element_traits<float>::lowest;
        out[i] = h == 0 ? x : max_of(out[i], x);
      });
      team.sync();
    }
  }

  void tell_kept(kept_facts& to) const { to.add(rope); }
  std::string problem() const {
    if (farthest == 0)
      return refusal("policy", "score::distance_preference.farthest", farthest, "at least 1");
    return detail::part_rope_problem("score::distance_preference", rope, true, keys_rotated);
  }
  std::string problem_for(shape const& s) const {
    return detail::rope_problem("policy", rope, s.key_dim, false);
  }

private:
  static constexpr std::uint32_t block = row_scratch::block;

  /// Number of bands of d channels. Each pair is a band, then each channel that does not rotate.
  KVMELD_HD std::uint32_t bands(std::uint32_t d) const { return d - rope.pairs(d); }

  struct band {
    std::uint32_t first, second;  ///< its channels; equal if there is one
  };
  KVMELD_HD band band_of(std::uint32_t f, std::uint32_t pairs) const {
    if (f >= pairs) return {f + pairs, f + pairs};
    if (rope.pairing == rope_pairing::half_split) return {f, f + pairs};
    return {2 * f, 2 * f + 1};
  }
  KVMELD_HD float length_of(float const* row, std::uint32_t f, std::uint32_t pairs) const {
    band const b = band_of(f, pairs);
    float const x = row[b.first], y = row[b.second];
    return b.first == b.second ? std::abs(x) : std::sqrt(x * x + y * y);
  }

  /// Writes the channels of band f of the mean query, turned for position last + x, averaged over the
  /// distances x = 1, 2, 4, ...
  KVMELD_HD void turn_mean(float const* mean, std::uint32_t f, std::uint32_t pairs, double const* turns,
                           position_t last, float* to) const {
    band const b = band_of(f, pairs);
    if (b.first == b.second) {
      to[b.first] = mean[b.first];
      return;
    }
    float c = 0.0f, s = 0.0f, distances = 0.0f;
    for (std::uint64_t x = 1; x <= farthest; x *= 2) {
      double const whole = (static_cast<double>(last) + static_cast<double>(x)) * turns[f];
      auto const angle = static_cast<float>((whole - std::floor(whole + 0.5)) * 6.28318530717958647693);
      c += std::cos(angle);
      s += std::sin(angle);
      distances += 1.0f;
    }
    to[b.first] = (mean[b.first] * c - mean[b.second] * s) / distances;
    to[b.second] = (mean[b.first] * s + mean[b.second] * c) / distances;
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
