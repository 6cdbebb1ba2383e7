// The queries of one layer and sequence, as an engine has them, and the life of a cache that observes them.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/expected_attention.hpp"
#include "reference/last_queries.hpp"
#include "support/random_cache.hpp"

namespace score_test {

template <class Q> struct query_talk {
  kvmeld::shape extent;
  std::vector<Q> rows;  // [token][head][channel]

  explicit query_talk(kvmeld::shape const& s) : extent(s) {}

  std::uint32_t tokens() const { return static_cast<std::uint32_t>(rows.size() / floats_of_token()); }
  std::size_t floats_of_token() const { return std::size_t{extent.query_heads()} * extent.key_dim; }
  void say(support::dice& d, std::uint32_t n, double spread = 1) {
    for (std::size_t i = 0; i < n * floats_of_token(); ++i)
      rows.push_back(kvmeld::element_traits<Q>::from_float(static_cast<float>(spread * d.normal())));
  }
  // The queries of `n` tokens from token `first` on.
  kvmeld::head_rows<Q const> of(std::uint32_t first, std::uint32_t n) const {
    return kvmeld::rows_by_token(rows.data() + first * floats_of_token(), n, extent.query_heads(),
                                 extent.key_dim);
  }
  // Those of the last `n` tokens.
  kvmeld::head_rows<Q const> last(std::uint32_t n) const { return of(tokens() - n, n); }
  // The queries of these tokens of the heads of a KV head, for the references.
  template <class Token>
  std::vector<reference::matrix> rows_of_heads(kvmeld::track t, std::vector<Token> const& shown,
                                               double scale = 1) const {
    std::vector<reference::matrix> out(extent.queries_per_kv_head);
    for (std::uint32_t h = 0; h < extent.queries_per_kv_head; ++h) {
      for (std::size_t token : shown) {
        std::size_t const head = std::size_t{t.kv_head} * extent.queries_per_kv_head + h;
        Q const* const q = rows.data() + token * floats_of_token() + head * extent.key_dim;
        reference::row x;
        for (std::uint32_t c = 0; c < extent.key_dim; ++c)
          x.push_back(scale * static_cast<double>(kvmeld::element_traits<Q>::to_float(q[c])));
        out[h].push_back(x);
      }
    }
    return out;
  }
  // The same, with their positions.
  std::vector<reference::shown_queries> of_heads(kvmeld::track t, std::vector<std::uint32_t> const& shown,
                                                 double scale) const {
    std::vector<reference::shown_queries> out;
    for (reference::matrix const& of_head : rows_of_heads(t, shown, scale))
      out.push_back({of_head, {shown.begin(), shown.end()}});
    return out;
  }
};

// A policy that evicts by a score alone.
template <class Score> auto evicting(Score const& score) {
  return kvmeld::policy{score,
                        kvmeld::select::top{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0),
                                            kvmeld::quantity::rest_of_budget()},
                        kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
}

inline reference::pair_rotation random_turn(support::dice& d, std::uint32_t key_dim) {
  reference::pair_rotation turn;
  if (d.chance(0.8)) turn.dim = key_dim / 2 * 2;
  if (d.chance(0.3)) turn.dim = turn.dim / 4 * 2;
  turn.interleaved = d.chance(0.5);
  turn.base = d.pick({10.0, 10000.0, 500000.0});
  turn.factor = d.chance(0.3) ? 4.0 : 1.0;
  return turn;
}

inline kvmeld::rope_params rope_of(reference::pair_rotation const& turn) {
  kvmeld::rope_params rope;
  if (turn.dim == 0) return rope;
  rope.pairing = turn.interleaved ? kvmeld::rope_pairing::interleaved : kvmeld::rope_pairing::half_split;
  rope.rotary_dim = static_cast<std::uint32_t>(turn.dim);
  rope.base = turn.base;
  rope.factor = turn.factor;
  return rope;
}

// The score's table of all tracks of a sequence, as bits.
template <class Cache> std::vector<std::uint32_t> table_bits(Cache const& cache, std::uint32_t sequence) {
  std::vector<std::uint32_t> out;
  kvmeld::ledger_ref const& l = cache.ledger();
  support::for_tracks(l.extent, sequence, [&](kvmeld::track t) {
    for (std::uint32_t i = 0; i < l.table_floats; ++i) out.push_back(kvmeld::float_bits(l.table_of(t)[i]));
  });
  return out;
}

// How far numbers are from those wanted, as a share of the largest wanted; 1e300 if one is no number.
inline double worst_of(std::vector<float> const& got, std::vector<double> const& wanted) {
  double most = 1e-300, worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!kvmeld::is_finite(got[i])) return 1e300;
    most = std::max(most, std::abs(wanted[i]));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
  }
  return got.size() == wanted.size() ? worst / most : 1e300;
}

}  // namespace score_test
