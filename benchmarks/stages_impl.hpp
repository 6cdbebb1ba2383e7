// Included by one source file per element type.
#pragma once

#include "layouts.hpp"
#include "observing_impl.hpp"
#include "scores_impl.hpp"
#include "stages.hpp"
#include "workbench.hpp"

#include <kvmeld/apply/compact.hpp>
#include <kvmeld/apply/compose.hpp>
#include <kvmeld/apply/merge_ledger.hpp>
#include <kvmeld/apply/merge_rows.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/transposed.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/observe/observe.hpp>
#include <kvmeld/preset/chelsea.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/kvmerger.hpp>
#include <kvmeld/rounds/inspect.hpp>
#include <kvmeld/rounds/open_wave.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_phase.hpp>
#include <kvmeld/select/selector.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace kvmeld_bench {

constexpr double candidate_bytes = sizeof(kvmeld::candidate);
constexpr double step_bytes = 21;  ///< one entry of a plan as keep_entry writes it

/// One tile per track and nothing to do in it: what a launch costs.
struct empty_phase {
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const&, kvmeld::tile const&) const {}
};

/// A launch, finiteness of the keys, and attention becoming scores: `observed_rows` queries, four query heads
/// per KV head.
template <class T> void run_observation(session& s, tensors<T>& x) {
  using keys_type = kvmeld::strided<T>;
  input const& of = x.of();
  if (!s.wants_any({"launch", "inspect", "observe_queries", "observe_rows", "observe_queries/max_attention",
                    "observe_queries/root_mean_square"},
                   "", of))
    return;
  x.restore();
  workbench b(x.extent(), kvmeld::score::global::channels(), s.threads());
  auto const none = [] {};
  double const entries = 1.0 * heads_of(of.n) * of.n;
  double const key_bytes = double{head_dim} * sizeof(T);

  s.measure(
      "launch", of, none, [&] { b.launch(empty_phase{}); }, [] { return 0.0; });
  s.measure(
      "inspect", of,
      [&] {
        b.launch(kvmeld::detail::begin_phase{{b.wave()}, kvmeld::budget::entries(1)});
        b.forget_checks();
      },
      [&] {
        b.launch(kvmeld::detail::inspect_phase<keys_type>{
            x.rows().keys, b.wave(), kvmeld::entry_flag::key_checked, kvmeld::detail::looked_at::everything});
      },
      [&] { return entries * (key_bytes + 2); });

  std::array<std::uint32_t, 1> const sequences{0};
  std::array<std::uint32_t, 1> const queries{observed_rows};
  kvmeld::batch_source const source{x.extent(), {0, sequences, queries}};
  std::uint32_t const heads = heads_of(of.n) * group;
  std::vector<float> query(std::size_t{observed_rows} * heads * head_dim);
  std::uint32_t state = 3;
  for (float& q : query) q = noise(state);
  std::vector<float> const lse(std::size_t{observed_rows} * heads, std::log(static_cast<float>(of.n)) + 0.5f);
  auto const from_queries = [&](char const* name, auto const& folding) {
    kvmeld::detail::observe_queries_phase<std::decay_t<decltype(folding)>, keys_type, float const> const
        phase{{folding, b.ledger(), source},
              x.rows().keys,
              {},
              kvmeld::rows_by_token<float const>(query.data(), observed_rows, heads, head_dim),
              kvmeld::rows_by_head<float const>(lse.data(), observed_rows, heads, 1)};
    s.measure(
        name, of, none, [&] { b.executor().run(phase, x.extent(), source.items(), source); },
        [&] { return entries * (key_bytes + 12); });
  };
  from_queries("observe_queries", kvmeld::score::global{});
  from_queries("observe_queries/max_attention", kvmeld::score::max_attention{});
  from_queries("observe_queries/root_mean_square", kvmeld::score::root_mean_square{});

  // The rows borrow the memory of V, which is just as large: 32 queries x 32 heads = 8 heads x 128 channels.
  static_assert(observed_rows * group == head_dim);
  kvmeld::detail::observe_rows_phase<kvmeld::score::global, T const> const from_rows{
      {{}, b.ledger(), source}, {}, kvmeld::rows_by_head<T const>(x.values(), observed_rows, heads, of.n)};
  s.measure(
      "observe_rows", of, none, [&] { b.executor().run(from_rows, x.extent(), source.items(), source); },
      [&] { return entries * (double{observed_rows} * group * sizeof(T) + 8); });
}

/// The way of one policy to 20% of the entries, one round of it where it takes several.
template <class T, class Policy> class stage_run {
public:
  using keys_type = kvmeld::strided<T>;
  using identify_type = typename Policy::identify_type;
  static constexpr kvmeld::identify_facts identifier =
      kvmeld::stated_facts<kvmeld::identify_facts, identify_type>;
  using merge_type = typename Policy::merge_type;

  stage_run(session& s, tensors<T>& x, std::string const& policy_name, Policy const& p)
      : s_(s),
        x_(x),
        suffix_("/" + policy_name),
        policy_(p),
        b_(x.extent(), kvmeld::channels_of(p.score), s.threads()),
        channels_(kvmeld::channels_of(p.score).count) {}

  void run() {
    x_.restore();
    decide();
    if constexpr (identifier.makes_sets) {
      weigh();
      merge();
    }
    move();
  }

private:
  template <class Body, class Bytes> void measure(char const* stage, Body body, Bytes bytes) {
    measure(
        stage, [] {}, body, bytes);
  }
  template <class Setup, class Body, class Bytes>
  void measure(char const* stage, Setup setup, Body body, Bytes bytes) {
    s_.measure(stage + suffix_, x_.of(), setup, body, [&] { return bytes(b_.count()); });
  }

  void decide() {
    kvmeld::wave_ref const& wave = b_.wave();
    b_.launch(kvmeld::detail::begin_phase{{wave}, kvmeld::budget::ratio(kept_share)});
    auto const opened = b_.states();
    measure(
        "score_select",
        [&] {
          b_.launch(kvmeld::detail::score_phase<typename Policy::score_type>{policy_.score, wave});
          b_.launch(kvmeld::detail::select_phase_of(policy_, wave));
        },
        [&](counts const& c) { return c.entries * (channels_ * 4.0 + 5); });
    s_.measure(
        "select" + suffix_, x_.of(), [] {},
        [&] { b_.launch(kvmeld::detail::select_phase_of(policy_, wave)); },
        [&] { return b_.count().entries * 5; }, [&] { return pass_over_scores(); });
    measure(
        "open_round", [&] { b_.restore(opened); }, [&] { b_.launch(opens_round()); },
        [&](counts const& c) { return c.entries * (step_bytes + 3) + c.candidates * 4; });
    auto const round = b_.states();
    if constexpr (identifier.needs_keys) {
      s_.measure(
          "propose" + suffix_, x_.of(), [] {},
          [&] {
            b_.launch(
                kvmeld::detail::propose_phase<identify_type, keys_type>{policy_.identify, keys(), wave});
          },
          [&] { return b_.count().candidates * (row_bytes + 4 + candidate_bytes / 2); },
          [&] {
            return references{similarity_reference(), {}, {}, {}};
          });
    }
    s_.measure(
        "admit" + suffix_, x_.of(),
        [&] {
          b_.restore(round);
          b_.launch(opens_round());
        },
        [&] {
          b_.launch(kvmeld::detail::admit_phase<identify_type>{policy_.identify, wave, identifier.repeats});
        },
        [&] {
          counts const c = b_.count();
          return (identifier.needs_keys ? c.candidates * candidate_bytes / 2 : c.entries * 2.0) +
                 c.removed * 5;
        },
        [&] { return pass_over_candidates(); });
  }

  kvmeld::detail::round_phase opens_round() const { return {{b_.wave()}, false, identifier.reads_live}; }

  void weigh() {
    kvmeld::wave_ref const& wave = b_.wave();
    measure(
        "link",
        [&] {
          b_.launch(kvmeld::detail::link_phase{{wave}, wave.step});
        },
        [&](counts const& c) { return c.entries * 9 + c.members * 4; });
    measure(
        "weigh",
        [&] {
          b_.launch(kvmeld::detail::weigh_phase<merge_type, keys_type>{policy_.merge, keys(), wave});
        },
        [&](counts const& c) {
          return c.members *
                 ((kvmeld::stated_facts<kvmeld::merge_facts, merge_type>.cooperative ? row_bytes : 4.0) + 8);
        });
  }

  void merge() {
    kvmeld::wave_ref const& wave = b_.wave();
    measure(
        "compose", [&] { b_.clear_plan(); }, [&] { b_.launch(kvmeld::detail::compose_phase{{wave}}); },
        [&](counts const& c) { return c.entries * 38; });
    auto const rows = [&](counts const& c) { return (c.members + c.sets) * row_bytes; };
    measure(
        "merge_keys",
        [&] {
          b_.launch(kvmeld::detail::merge_rows_phase<keys_type>{keys(), wave, wave.step,
                                                                kvmeld::detail::side::key});
        },
        rows);
    measure(
        "merge_ledger",
        [&] {
          b_.launch(kvmeld::detail::merge_ledger_phase{{wave}, wave.step});
        },
        [&](counts const& c) { return c.entries * 4 + c.members * (16.0 + 4.0 * channels_) + c.sets * 8; });
    b_.launch(kvmeld::detail::link_phase{{wave}, wave.plan});
    measure(
        "merge_values",
        [&] {
          b_.launch(kvmeld::detail::merge_rows_phase<keys_type>{x_.rows().values, wave, wave.plan,
                                                                kvmeld::detail::side::value});
        },
        rows);
    measure(
        "merge_values_transposed",
        [&] {
          b_.launch(kvmeld::detail::merge_rows_phase<kvmeld::transposed<T>>{
              transposed_values(), wave, wave.plan, kvmeld::detail::side::value});
        },
        rows);
  }

  void move() {
    kvmeld::wave_ref const& wave = b_.wave();
    if constexpr (!identifier.makes_sets) {
      b_.launch(kvmeld::detail::compose_phase{{wave}});
      b_.launch(kvmeld::detail::link_phase{{wave}, wave.plan});
    }
    measure(
        "new_slots", [&] { b_.launch(kvmeld::detail::new_slots_phase{{wave}}); },
        [&](counts const& c) { return c.entries * 1 + (c.entries - c.emptied) * 4; });
    measure(
        "compact_keys",
        [&] {
          b_.launch(kvmeld::detail::compact_rows_phase<keys_type>{keys(), wave, false});
        },
        [&](counts const& c) { return 2 * c.moved * row_bytes; });
    auto const values = [&](counts const& c) { return (2 * c.moved + c.emptied) * row_bytes; };
    measure(
        "compact_values",
        [&] {
          b_.launch(kvmeld::detail::compact_rows_phase<keys_type>{x_.rows().values, wave, true});
        },
        values);
    measure(
        "compact_values_transposed",
        [&] {
          b_.launch(
              kvmeld::detail::compact_rows_phase<kvmeld::transposed<T>>{transposed_values(), wave, true});
        },
        values);
    move_in_layouts();
    measure(
        "compact_ledger", [&] { b_.launch(kvmeld::detail::compact_ledger_phase{{wave}}); },
        [&](counts const& c) { return c.moved * (2 * (9.0 + 4.0 * channels_) + 5) + c.emptied * 4; });
  }

  /// The same plan applied to keys in every layout, merged and moved in one go; "evict" where nothing merges.
  void move_in_layouts() {
    kvmeld::wave_ref const& wave = b_.wave();
    constexpr bool merges = identifier.makes_sets;
    other_layouts<T> const layouts(x_.keys(), x_.extent());
    layouts.each([&](char const* name, auto const& rows) {
      using layout = std::decay_t<decltype(rows)>;
      measure((std::string(merges ? "apply_" : "evict_") + name).c_str(),
              [&] {
                if (merges)
                  b_.launch(kvmeld::detail::merge_rows_phase<layout>{rows, wave, wave.plan,
                                                                     kvmeld::detail::side::key});
                b_.launch(kvmeld::detail::compact_rows_phase<layout>{rows, wave, false});
              },
              [&](counts const& c) { return (2 * c.moved + (merges ? c.members + c.sets : 0)) * row_bytes; });
    });
  }

  /// A sum over the scores of every track, where a selector ranks by them.
  references pass_over_scores() {
    if constexpr (!kvmeld::stated_facts<kvmeld::select_facts, typename Policy::select_type>.needs_score) {
      return {};
    } else {
      kvmeld::wave_ref const& wave = b_.wave();
      return {{},
              s_.reference().pass_seconds(wave.tracks,
                                          [&](std::uint32_t item) {
                                            float const* const score = wave.score + wave.at(item, 0);
                                            float sum[16] = {};
                                            std::uint32_t const n = wave.state[item].length / 16 * 16;
                                            for (std::uint32_t i = 0; i < n; i += 16) {
                                              for (std::uint32_t j = 0; j < 16; ++j) sum[j] += score[i + j];
                                            }
                                            float all = 0.0f;
                                            for (float s : sum) all += s;
                                            return static_cast<std::uint64_t>(all);
                                          }),
              {}};
    }
  }
  /// A sum over the keys of the candidates as they lie, where an admission ranks them.
  references pass_over_candidates() {
    if constexpr (!std::is_same_v<Policy, kvmeld::preset::chelsea::type>) {
      return {};
    } else {
      kvmeld::wave_ref const& wave = b_.wave();
      return {{},
              s_.reference().pass_seconds(wave.tracks,
                                          [&](std::uint32_t item) {
                                            kvmeld::candidate const* const list =
                                                wave.candidates + wave.at(item, 0);
                                            std::uint32_t const n =
                                                policy_.identify.edges(wave.state[item].places);
                                            std::uint64_t sum = 0;
                                            for (std::uint32_t i = 0; i < n; ++i) sum += list[i].key;
                                            return sum;
                                          }),
              {}};
    }
  }

  /// Only chunked_bipartite computes what a matrix product does.
  std::optional<double> similarity_reference() {
    if constexpr (std::is_same_v<Policy, kvmeld::preset::chelsea::type>) {
      return s_.reference().similarity_seconds(heads_of(x_.of().n), b_.wave().state[0].places,
                                               policy_.identify.chunk, head_dim);
    } else {
      return {};
    }
  }

  keys_type keys() const { return x_.rows().keys; }
  kvmeld::transposed<T> transposed_values() const { return {x_.values(), "LSHCT", x_.extent(), head_dim}; }

  static constexpr double row_bytes = double{head_dim} * sizeof(T);

  session& s_;
  tensors<T>& x_;
  std::string suffix_;
  Policy policy_;
  workbench b_;
  std::uint32_t channels_;
};

template <class T, class Policy>
void run_policy_stages(session& s, tensors<T>& x, char const* name, Policy const& p) {
  std::string const suffix = std::string("/") + name;
  bool wanted =
      s.wants_any({"score_select", "select", "open_round", "propose", "admit", "link", "weigh", "compose",
                   "merge_keys", "merge_ledger", "merge_values", "merge_values_transposed", "new_slots",
                   "compact_keys", "compact_values", "compact_values_transposed", "compact_ledger"},
                  suffix, x.of());
  for (std::string const stage : {"apply_", "evict_"}) {
    for (char const* layout : layout_names) wanted = wanted || s.wants(stage + layout + suffix, x.of());
  }
  if (!wanted) return;
  stage_run<T, Policy>(s, x, name, p).run();
}

template <class T> void run_stages(session& s, tensors<T>& x) {
  run_observation(s, x);
  run_scores(s, x);
  run_observing(s, x);
  run_policy_stages(s, x, "h2o", kvmeld::preset::h2o::defaults());
  run_policy_stages(s, x, "chelsea", kvmeld::preset::chelsea::llama3());
  run_policy_stages(s, x, "kvmerger", kvmeld::preset::kvmerger::for_budget());
}

}  // namespace kvmeld_bench
