// A ragged cache, a call of attention on it, and how far its results lie from the reference's.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "reference/attention.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace attention_test {

// A cache with ragged heads and degrees, as merging leaves it; sequence 2 is empty.
template <class T> struct ragged_cache {
  support::engine_memory<T> memory;
  decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) cache;

  ragged_cache(kvmeld::shape const& s, support::dice& d)
      : memory(s), cache(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) {
    for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      std::uint32_t const n = sequence == 2 ? 0 : d.between(1, s.capacity);
      memory.fill_sequence(d, sequence, 0, n, support::texture::clusters);
      cache.open(sequence, n);
      support::for_tracks(s, sequence, [&](kvmeld::track t) {
        if (n > 1) cache.ledger().length[t.index] = d.between(1, n);
        for (kvmeld::slot_t slot = 0; slot < n; ++slot)
          if (d.chance(0.4))
            cache.ledger().degree[cache.ledger().at(t, slot)] = static_cast<float>(d.between(2, 90));
      });
    }
  }
};

// Queries, outputs and log-sum-exps of one call, with rows to spare that nobody may write.
template <class Q, class Out> struct call {
  kvmeld::shape extent;
  std::vector<std::uint32_t> sequences, counts;
  std::uint32_t most = 0;
  std::vector<Q> q;
  std::vector<Out> out;
  std::vector<float> lse;

  call(kvmeld::shape const& s, support::dice& d, std::uint32_t max_queries) : extent(s) {
    for (std::uint32_t i = s.sequences; i-- > 0;) {
      sequences.push_back(i);
      counts.push_back(d.below(max_queries + 1));
      most = kvmeld::max_of(most, counts.back());
    }
    most += 1;  // a spare row
    std::size_t const rows = sequences.size() * most * s.query_heads();
    for (std::size_t i = 0; i < rows * s.key_dim; ++i)
      q.push_back(kvmeld::element_traits<Q>::from_float(static_cast<float>(d.normal())));
    out.assign(rows * s.value_dim, kvmeld::element_traits<Out>::from_float(-77.0f));
    lse.assign(rows, -77.0f);
  }
  // No more queries of a sequence than any of its tracks has entries.
  void fit(kvmeld::ledger_ref const& l) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      support::for_tracks(extent, sequences[i],
                          [&](kvmeld::track t) { counts[i] = std::min(counts[i], l.length[t.index]); });
    }
  }
  kvmeld::query_batch batch(std::uint32_t layer) const { return {layer, sequences, counts}; }
  auto queries() const {
    return kvmeld::rows_by_token<Q const>(q.data(), most, extent.query_heads(), extent.key_dim);
  }
  auto outputs() { return kvmeld::rows_by_token(out.data(), most, extent.query_heads(), extent.value_dim); }
  auto sums() { return kvmeld::rows_by_head(lse.data(), most, extent.query_heads(), 1); }
};

template <class T> double as_double(T x) {
  return static_cast<double>(kvmeld::element_traits<std::remove_const_t<T>>::to_float(x));
}

// A position map of some length: any positions, in any order.
inline std::vector<kvmeld::position_t> some_map(support::dice& d) {
  std::vector<kvmeld::position_t> map(d.pick({1u, 7u, 100u}));
  for (kvmeld::position_t& p : map) p = static_cast<kvmeld::position_t>(d.below(60)) - 10;
  return map;
}

// The reference's options for a call of the same meaning; positions and sinks are filled in per track and
// head.
inline reference::attention_options options_for(kvmeld::attention_params const& p, kvmeld::shape const& s) {
  reference::attention_options o;
  o.scale = p.scale != 0.0f ? static_cast<double>(p.scale) : 1 / std::sqrt(double{1} * s.key_dim);
  o.softcap = static_cast<double>(p.softcap);
  o.causal = p.causal;
  o.window = p.window;
  o.always = p.window_sinks;
  using pairing = kvmeld::rope_pairing;
  o.rope = p.rope.pairing == pairing::none         ? reference::rotation::none
           : p.rope.pairing == pairing::half_split ? reference::rotation::half_split
                                                   : reference::rotation::interleaved;
  o.rope_by_slot = p.rope.positions == kvmeld::rope_positions::slot;
  o.rotary = p.rope.rotary_dim == 0 ? s.key_dim : p.rope.rotary_dim;
  o.rope_base = p.rope.base;
  o.rope_factor = p.rope.factor;
  for (std::size_t i = 0; p.rope.frequencies != nullptr && i < o.rotary / 2; ++i)
    o.frequencies.push_back(static_cast<double>(p.rope.frequencies[i]));
  if (p.rope.map != nullptr) o.map.assign(p.rope.map, p.rope.map + p.rope.mapped);
  return o;
}

// The track of one head as the reference has to see it.
template <class Ref>
reference::track_state track_for(Ref const& ref, kvmeld::track t, kvmeld::attention_params const& p,
                                 std::uint32_t head, reference::attention_options& o) {
  auto track = support::read_track(ref, t);
  if (!p.use_degree) track.degree.assign(track.size(), 1.0);
  o.position = track.position;
  o.last_position = long{ref.ledger.seen[t.sequence]} + ref.ledger.pending[t.sequence] - 1;
  o.has_sink = p.sink != nullptr;
  if (o.has_sink) o.sink = static_cast<double>(p.sink[head]);
  return track;
}

// Runs the call and compares; what no query may write has to be as it was. Returns the number of blind
// queries.
template <class Cache, class Q, class Out>
std::size_t compare(Cache& cache, kvmeld::attention_params const& params, std::uint32_t layer,
                    call<Q, Out>& c, bool wants_lse, double tolerance, std::uint32_t parts = 1) {
  kvmeld::shape const s = cache.ref().extent();
  std::vector<float> memory(
      kvmeld::attention::split_floats(s, parts, static_cast<std::uint32_t>(c.sequences.size()), c.most));
  kvmeld::attention::attend(cache.executor(), c.batch(layer), c.queries(), cache.ref(), c.outputs(),
                            wants_lse ? c.sums() : kvmeld::head_rows<float>{}, params, {parts, memory, 64});
  reference::attention_options options = options_for(params, s);
  double worst = 0, worst_lse = 0;
  std::size_t touched = 0, blind = 0;
  for (std::uint32_t i = 0; i < c.sequences.size(); ++i) {
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      kvmeld::track const t = kvmeld::make_track(s, layer, c.sequences[i], head / s.queries_per_kv_head);
      auto const track = track_for(cache.ref(), t, params, head, options);
      reference::matrix queries;
      for (std::uint32_t m = 0; m < c.counts[i]; ++m) {
        reference::row row;
        for (std::uint32_t k = 0; k < s.key_dim; ++k)
          row.push_back(as_double(c.queries().row(i, head, m)[k]));
        queries.push_back(row);
      }
      auto const expected = reference::attend(queries, track, options);
      for (std::uint32_t m = 0; m < c.most; ++m) {
        Out const* const got = c.outputs().row(i, head, m);
        float const sum = *c.sums().row(i, head, m);
        for (std::uint32_t k = 0; k < s.value_dim; ++k) {
          double const wanted = m >= c.counts[i] ? -77.0 : track.size() == 0 ? 0.0 : expected.output[m][k];
          worst = std::max(worst, std::fabs(as_double(got[k]) - wanted));
        }
        if (m >= c.counts[i] || !wants_lse) {
          touched += sum == -77.0f ? 0 : 1;
        } else if (expected.lse[m] == reference::empty_lse) {
          ++blind;
          touched += sum == kvmeld::element_traits<float>::lowest ? 0 : 1;
        } else {
          worst_lse = std::max(worst_lse, std::fabs(static_cast<double>(sum) - expected.lse[m]) /
                                              (1 + std::fabs(expected.lse[m])));
        }
      }
    }
  }
  CHECK(worst < tolerance);
  CHECK(worst_lse < 2e-5);
  CHECK(touched == 0);
  return blind;
}

}  // namespace attention_test
