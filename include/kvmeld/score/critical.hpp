// SPDX-License-Identifier: Apache-2.0
// Scores of attention, times how far a value reaches in the model's output (CriticalKV, KVzip+).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The output projections W_O of a model's layers, as a score reads them. They stay with the engine, and have
/// to lie where the cache's phases run.
template <class T> struct output_projection {
  /// [layers of the cache] W_O of each layer: element (r, h, c) adds channel c of query head h to row r of
  /// the output. Null: no projection. The array itself has to lie where the phases run, too.
  T const* const* layers = nullptr;
  std::uint32_t rows = 0;        ///< rows of the output: the model's hidden size
  std::int64_t row_stride = 0;   ///< elements from one row to the next
  std::int64_t head_stride = 0;  ///< elements from one query head to the next; channels are contiguous

  /// The part of W_O for row `r` and query head `h` of a layer.
  KVMELD_HD T const* at(std::uint32_t layer, std::uint32_t r, std::uint32_t h) const {
    return layers[layer] + std::int64_t{r} * row_stride + std::int64_t{h} * head_stride;
  }
  /// use(s, h, x) for every value s of a track and every query head h of its KV head, of which there are
  /// several: x is the sum of term(y) over the products y of the value with the rows of W_O,h, or over its
  /// channels if there is no projection. One lane calls it for all heads of a value. Collective; barrier at
  /// the end. Needs scratch_bytes.
  template <class Team, class Values, class Term, class Use>
  KVMELD_HD void for_each_output(Team const& team, score_view const& view, Values const& values,
                                 Term const& term, Use const& use) const {
    track const where = view.where();
    std::uint32_t const d = values.channels(), group = view.queries_per_kv_head();
    float* const mine = block_scratch<float>(team, std::size_t{block} * d);
    float* const product = block_scratch<float>(team, std::size_t{block} * columns);
    float* const sum = block_scratch<float>(team, block);
    values.for_each_block(
        team, 0, view.length(), [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
          copy_rows(part, row, count, d, mine);
          part.sync();
          for (std::uint32_t h = 0; h < group; ++h) {
            if (layers == nullptr && h == 0) {  // the same for every head
              part.for_each(count, [&](std::uint32_t i) {
                float const* const v = mine + std::size_t{i} * d;
                sum[i] = ordered_sum(d, [&](std::uint32_t c) { return term(v[c]); });
              });
            }
            for (std::uint32_t r = 0; layers != nullptr && r < rows; r += columns) {
              std::uint32_t const some = min_of(columns, rows - r);
              row_products(part, mine, count, d, at(where.layer, r, where.kv_head * group + h), some,
                           static_cast<std::size_t>(row_stride), d, product, columns);
              part.for_each(count, [&](std::uint32_t i) {
                float const* const y = product + i * columns;
                float const some_of_it = ordered_sum(some, [&](std::uint32_t j) { return term(y[j]); });
                sum[i] = r == 0 ? some_of_it : sum[i] + some_of_it;
              });
              part.sync();
            }
            part.for_each(count, [&](std::uint32_t i) { use(s + i, h, sum[i]); });
          }
        });
  }
  /// Bytes of scratch that for_each_output needs.
  static std::size_t scratch_bytes(shape const& s) {
    return scratch_size(std::size_t{block} * s.value_dim * sizeof(float)) +
           scratch_size(std::size_t{block} * columns * sizeof(float)) + scratch_size(block * sizeof(float));
  }
  /// Why it cannot be used; empty if it can. `whose` names it.
  std::string problem(char const* whose) const {
    if (layers == nullptr || rows != 0) return {};
    return refusal("policy", message(whose, ".projection.rows"), 0, "at least 1");
  }

private:
  static constexpr std::uint32_t block = row_scratch::block;
  static constexpr std::uint32_t columns = 64;  // rows of W_O at once
};

namespace score {

/// CriticalKV (Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
/// Perspective", 2025, Algorithm 1). Two kinds of entries rank above all others, as equals: the first `sinks`
/// and last `recents` entries, which the selector keeps in any case, and the entries with the highest scores
/// of `Of`. Together they are the share `first` of the budget that frozen entries leave. The others score (s
/// / rows + epsilon) times the L1 norm of W_O v, averaged over the query heads of the KV head, where `rows`
/// is the number of rows that Of observed and counts. Without a projection it is the L1 norm of v.
///
/// `Of` gives weights. This score observes the same attention as `Of`. Cost per entry: 2 *
/// queries_per_kv_head
/// * projection.rows * value_dim operations with a projection, value_dim without. Reads the values once.
/// Scratch with a projection: 32 (value_dim + 64) floats.
template <class Of, class T = float> struct critical : Of {
  static_assert(stated_facts<score_facts, Of>.gives == score_kind::weights,
                "kvmeld: score::critical refines scores that give weights, such as attention");

  quantity sinks = quantity::entries(0);    ///< as in the selector
  quantity recents = quantity::entries(0);  ///< as in the selector
  double first = 0.5;                       ///< share of the budget that Of alone decides, 0 to 1
  float epsilon = 1e-4f;                    ///< added to the mean attention of a row; at least 0
  output_projection<T> projection = {};     ///< of the model; optional

  static constexpr score_facts facts = changed_facts(
      stated_facts<score_facts, Of>, &score_facts::gives, score_kind::order, &score_facts::reads_rows, true,
      &score_facts::rows_alone, false, &score_facts::spans_blocks, true, &score_facts::light, false);

  critical() = default;
  /// `of` with the given projection.
  critical(Of const& of, output_projection<T> const& w = {}) : Of(of), projection(w) {}

  std::string name() const { return full_name_of(of()) + "*value"; }
  /// The score that is refined.
  Of const& of() const { return *this; }

  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return detail::scratch_of_score(of(), s, lanes) + select_k_scratch() +
           output_projection<T>::scratch_bytes(s);
  }
  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& kv_rows, float* out) const {
    std::uint32_t const n = view.length();
    float const rows = rows_of(view);
    detail::evaluate_score(static_cast<Of const&>(*this), team, view, kv_rows, out);
    float* const reach = view.room();
    float const group = static_cast<float>(view.queries_per_kv_head());
    projection.for_each_output(
        team, view, kv_rows.values, [](float y) { return std::abs(y); },
        [&](slot_t at, std::uint32_t h, float x) { reach[at] = (h == 0 ? 0.0f : reach[at]) + x / group; });
    auto const usable = [&](std::uint32_t i) { return view.usable(i) && is_finite(out[i]); };
    // As the selector pins them; shares are of what frozen entries leave.
    std::uint32_t const frozen = view.frozen(), free = view.limit() > frozen ? view.limit() - frozen : 0;
    pins const p = resolve_pins(sinks, recents, quantity::entries(0), n, view.limit(), frozen);
    std::uint32_t const begin = p.sinks, end = n - p.recents, apart = begin - frozen + p.recents;
    std::uint32_t const by_score = floor_share(first, free), chosen = by_score > apart ? by_score - apart : 0;
    auto const eligible = [&](std::uint32_t i) { return i >= begin && i < end && usable(i); };
    select_k(
        team, n, chosen, [&](std::uint32_t i) { return eligible(i) ? eligible_key(out[i]) : 0u; },
        [&](std::uint32_t i) { reach[i] = -1.0f; });
    team.for_each(n, [&](std::uint32_t i) {
      if (!usable(i)) return;
      bool const above = i < begin || i >= end || reach[i] < 0.0f;
      out[i] = above ? -element_traits<float>::lowest : (out[i] / rows + epsilon) * reach[i];
    });
    team.sync();
  }
  void importance() const = delete;
  void evaluate_members() const = delete;

  std::string problem() const {
    if (!is_within(first, 0.0, 1.0))
      return refusal("policy", "score::critical.first", first, "0 to 1, a share");
    std::string const share = first_problem(
        {share_problem("score::critical.sinks", sinks), share_problem("score::critical.recents", recents)});
    if (!share.empty()) return share;
    if (!(epsilon >= 0.0f) || !is_finite(epsilon)) {
      return refusal("policy", "score::critical.epsilon", epsilon, "at least 0 and finite");
    }
    return first_problem({projection.problem("score::critical"), problem_of(of())});
  }

private:
  /// Rows that Of counts, at least 1.
  KVMELD_HD float rows_of(score_view const& view) const {
    std::uint32_t n = view.observed_rows();
    if constexpr (contract::allows<score_uses::observed_rows, Of>) n = min_of(n, Of::observed_rows());
    return static_cast<float>(max_of(n, 1u));
  }
};

/// The most that an entry added to a query's output, of all observed queries and of all query heads h of the
/// KV head: the probability times |W_O,h v|_2 (KVzip+ of NVIDIA's kvpress 0.5.5). It wants to be shown the
/// queries of a second reading of the prompt, and no others, with the weights 1 / |x|_2 in their
/// query_sample: x is the hidden state of the query's token as it enters the projections to queries, keys and
/// values, that is, behind the layer's norm. Without weights, outputs are not divided by |x|. Without a
/// projection the reach is |v|_2.
///
/// It has a channel for every query head of a KV head, of which there may be max_channels. When entries
/// merge, the strongest member of each head counts. Cost per entry, once per compression: as score::critical.
/// Reads the values once. Only |W_O,h v| counts, so the factor R of W_O,h = QR, with value_dim rows, may take
/// the place of W_O,h, and costs less.
template <class T = float> struct max_output : max_attention {
  output_projection<T> projection = {};  ///< of the model; optional

  static constexpr char const* name = "max_output";
  static constexpr score_facts facts = changed_facts(
      score_facts{score_kind::peaks, observation::replay, &score_facts::reads_rows, &score_facts::rows_alone},
      &score_facts::max_channels, max_channels);

  max_output() = default;
  /// With the projection of the model.
  max_output(output_projection<T> const& w) : projection(w) {}

  /// One channel per query head.
  static channel_list channels(shape const& extent) {
    channel_list c;
    while (c.count < min_of(extent.queries_per_kv_head, max_channels))
      c.add({channel_tag::max_attention, channel_rule::max, 0.0f});
    return c;
  }

  /// Every head by itself, the largest over rows.
  KVMELD_HD static constexpr attention_fold fold() { return {head_fold::each, row_fold::max}; }
  KVMELD_HD channel_update update(std::uint32_t channel, std::uint32_t, std::uint32_t) const {
    return {static_cast<std::int32_t>(channel), 0};
  }
  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& kv_rows, float* out) const {
    projection.for_each_output(
        team, view, kv_rows.values, [](float y) { return y * y; },
        [&](slot_t s, std::uint32_t h, float x) {
          out[s] = max_of(h == 0 ? 0.0f : out[s], view.channel(h, s) * std::sqrt(x));
        });
  }
  std::size_t scratch_bytes(shape const& s, int) const { return output_projection<T>::scratch_bytes(s); }
  void importance() const = delete;

  std::string problem() const { return projection.problem("score::max_output"); }
  std::string problem_for(shape const& extent) const {
    if (extent.queries_per_kv_head <= max_channels) return {};
    return refusal("policy", "number of query heads of a KV head", extent.queries_per_kv_head, "at most ",
                   max_channels, ", because score::max_output keeps a number for each");
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
