// What scores cost that are computed from rows, and a fit of the rows that stay, beside a copy of what they
// read.
#pragma once

#include "session.hpp"
#include "tensors.hpp"
#include "workbench.hpp"

#include <kvmeld/apply/compose.hpp>
#include <kvmeld/apply/fit_rows.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/observe/absorb.hpp>
#include <kvmeld/preset/attention_matching.hpp>
#include <kvmeld/preset/compactor.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/row_scores.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/rounds/compress.hpp>
#include <kvmeld/rounds/open_wave.hpp>
#include <kvmeld/score/learned.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_phase.hpp>
#include <kvmeld/select/selector.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace kvmeld_bench {

constexpr std::uint32_t hidden_rows = 1024;  ///< rows of an output projection

/// Scores that have been shown the last `observed_rows` queries.
template <class T> class score_run {
public:
  using rows_type = kvmeld::kv<kvmeld::strided<T>, kvmeld::strided<T>>;

  score_run(session& s, tensors<T>& x)
      : s_(s), x_(x), query_(std::size_t{observed_rows} * x.extent().query_heads() * head_dim) {
    std::uint32_t state = 3;
    for (float& q : query_) q = noise(state);
  }

  /// A row of a score that reads `sides` of keys and values, its table, and `more` bytes.
  template <class Score> void operator()(char const* name, Score const& by, double sides, double more = 0) {
    std::string const row = std::string("score/") + name;
    if (!s_.wants(row, x_.of())) return;
    workbench b(x_.extent(), kvmeld::channels_of(by), s_.threads(), table_floats(by));
    begin(b, by);
    s_.measure(
        row, x_.of(),
        [&] {  // a score that is kept is computed once
          if constexpr (std::is_same_v<Score, kvmeld::score::learned>) fill_scores(b.ledger());
        },
        [&] {
          b.launch(kvmeld::detail::score_phase<Score, rows_type>{by, b.wave(), x_.rows()});
        },
        [&] { return entries() * (sides * row_bytes + 4) + table_bytes(by) + more; });
  }

  /// A row of the fit after an eviction.
  void fit(char const* name, kvmeld::preset::attention_matching::type p) {
    std::string const row = std::string("fit/") + name;
    if (!s_.wants(row, x_.of())) return;
    p.score.kept.sample = kvmeld::reference_sample::last;
    workbench b(x_.extent(), kvmeld::channels_of(p.score), s_.threads(), table_floats(p.score));
    begin(b, p.score);
    kvmeld::wave_ref const& wave = b.wave();
    b.launch(kvmeld::detail::score_phase<decltype(p.score)>{p.score, wave});
    b.launch(kvmeld::detail::select_phase_of(p, wave));
    b.launch(kvmeld::detail::round_phase{{wave}});
    b.launch(kvmeld::detail::admit_phase<decltype(p.identify)>{p.identify, wave, false});
    b.launch(kvmeld::detail::compose_phase{{wave}});
    s_.measure(
        row, x_.of(), [&] { x_.restore(); },
        [&] {
          b.launch(kvmeld::detail::fit_rows_phase<kvmeld::strided<T>, kvmeld::strided<T>>{
              p.merge.fit(), p.score.kept.count, x_.rows(), wave});
        },
        [&] { return entries() * (2 + kept_share) * row_bytes + table_bytes(p.score); });
  }

private:
  /// A track above its budget, and queries in its table.
  template <class Score> void begin(workbench& b, Score const& by) {
    x_.restore();
    b.launch(kvmeld::detail::begin_phase{{b.wave()}, kvmeld::budget::ratio(kept_share)});
    if constexpr (kvmeld::detail::has_table<Score>) {
      std::array<std::uint32_t, 1> const sequences{0}, queries{observed_rows};
      kvmeld::batch_source const source{x_.extent(), {0, sequences, queries}};
      kvmeld::detail::absorb_phase<Score, float const> const shown{
          by,
          b.ledger(),
          source,
          {},
          {},
          kvmeld::rows_by_token<float const>(query_.data(), observed_rows, x_.extent().query_heads(),
                                             head_dim)};
      b.executor().run(shown, x_.extent(), source.items(), source);
    }
  }
  template <class Score> std::uint32_t table_floats(Score const& by) const {
    return kvmeld::table_floats_of(by, x_.extent());
  }
  template <class Score> double table_bytes(Score const& by) const {
    return 1.0 * heads_of(x_.of().n) * table_floats(by) * sizeof(float);
  }
  double entries() const { return 1.0 * heads_of(x_.of().n) * x_.of().n; }

  static constexpr double row_bytes = double{head_dim} * sizeof(T);

  session& s_;
  tensors<T>& x_;
  std::vector<float> query_;
};

template <class T> void run_scores(session& s, tensors<T>& x) {
  namespace preset = kvmeld::preset;
  if (x.of().n > 16384) return;
  score_run<T> row(s, x);
  kvmeld::rope_params const rope{kvmeld::rope_pairing::half_split};
  row("key_norm", preset::knorm::for_budget().score, 1);
  row("key_difference", preset::keydiff::for_budget().score, 1);
  row("lag_relative", preset::lagkv::with_lag().score, 2);
  row("leverage", preset::leverage::for_budget().score, 1);
  row("leverage_rope", preset::leverage::with_rope(rope).score, 1);
  std::vector<float> const learned = random_weights(x.extent());
  row("learned", kvmeld::score::learned{weights_of(learned, x.extent()), rope}, 1);
  row("chunk_attention", kvmeld::score::chunk_attention{}, 1);
  row("compactor", preset::compactor::with_rope(rope).score, 2);
  row("leverage_dropkv", preset::leverage_dropkv::for_budget().score, 2);
  row("expected_attention", preset::expected_attention::with_rope(rope).score, 2);
  row("distance_preference", preset::triattention::with_rope(rope).score, 1);
  row("redundancy", preset::rkv::for_budget().score, 1);
  row("drop_error", preset::dropkv::with_window().score, 2);
  auto const critical = preset::criticalkv::over(preset::snapkv::with_window());
  row("critical", critical.score, 1);
  if (s.wants("score/critical_projected", x.of())) {
    std::uint32_t const heads = x.extent().query_heads();
    std::vector<float> weights(std::size_t{hidden_rows} * heads * head_dim);
    std::uint32_t state = 5;
    for (float& w : weights) w = noise(state);
    float const* const layer = weights.data();
    row("critical_projected",
        preset::criticalkv::over(
            preset::snapkv::with_window(),
            kvmeld::output_projection<float>{&layer, hidden_rows, std::int64_t{heads} * head_dim, head_dim})
            .score,
        1, static_cast<double>(weights.size()) * sizeof(float));
  }
  auto fitting = preset::attention_matching::for_budget();
  row.fit("values", fitting);
  fitting.merge.degrees = true;
  row.fit("values_and_degrees", fitting);
}

}  // namespace kvmeld_bench
