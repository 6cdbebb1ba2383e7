// SPDX-License-Identifier: Apache-2.0
// Fits the values and degrees of the entries that a plan keeps to attention's outputs before the plan
// (merge::fitted).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/cholesky.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/score/reference_queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Solves (G + r I) X = -B in place. G [n][n] is symmetric and becomes a factor, B [n][d] becomes X. The sums
/// of a column of X are one lane's, in order. Collective; barrier at the end.
template <class Team>
KVMELD_HD void solve_ridge(Team const& team, float* g, std::uint32_t n, float r, float* b, std::uint32_t d) {
  auto const row = [&](std::uint32_t i) { return g + std::size_t{i} * n; };
  factor_cholesky(team, g, n, r);
  team.for_each(n, [&](std::uint32_t i) {
    for (std::uint32_t j = 0; j < i; ++j) row(j)[i] = row(i)[j];
  });
  team.sync();
  float const plus = 1.0f, minus = -1.0f;
  // b_i becomes `times` b_i plus the sum over `tokens` rows of X from `first` on, over -L_ii.
  auto const step = [&](std::uint32_t i, std::uint32_t first, std::uint32_t tokens, float const& times) {
    float* const x = b + std::size_t{i} * d;
    add_weighted_rows(team, row(i) + first, 1, n, &times, b + std::size_t{first} * d, d, tokens, d, x, d);
    team.for_each(d, [&](std::uint32_t c) { x[c] *= -row(i)[i]; });
  };
  for (std::uint32_t i = 0; i < n; ++i) step(i, 0, i, plus);
  for (std::uint32_t i = n; i-- > 0;) step(i, i + 1, n - i - 1, minus);
  team.sync();
}

/// Fits one track. Runs when fates are final and nothing has moved. wave.live lists the entries that take
/// part, wave.score holds the factors of their degrees; both are free by then.
template <class Keys, class Values> struct fit_rows_phase {
  static constexpr std::uint32_t block = 32;  ///< entries at once
  fit_options fit;
  std::uint32_t references;  ///< reference queries per query head
  kv<Keys, Values> x;
  wave_ref wave;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const {
    std::size_t const r = std::size_t{references} * wave.ledger.extent.queries_per_kv_head;
    std::size_t const dv = x.values.channels();
    return scratch_size(block * row_stride(x.keys.channels()) * sizeof(float)) +
           scratch_size(block * dv * sizeof(float)) + 2 * scratch_size(r * block * sizeof(float)) +
           scratch_size(block * sizeof(float)) + scratch_size(r * dv * sizeof(float)) +
           scratch_size(r * r * sizeof(float)) + 6 * scratch_size(r * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    fate const* const fates = wave.plan.fates + wave.plan.at(t.item, 0);
    std::uint32_t goes = 0, merges = 0;
    team.for_each(n, [&](std::uint32_t s) {
      goes |= fates[s] == fate::drop ? 1u : 0u;
      merges |= fates[s] != fate::drop && fates[s] != fate::keep ? 1u : 0u;
    });
    goes = team.reduce(goes, op_max{});
    merges = team.reduce(merges, op_max{});
    reference_rows const queries(wave.ledger.table_of(t.where), wave.ledger.extent.queries_per_kv_head,
                                 references, x.keys.channels());
    std::uint32_t used = 0;
    team.for_each(queries.size(), [&](std::uint32_t q) { used += queries.holds(q) ? 1u : 0u; });
    used = team.reduce(used, op_sum{});
    if (goes == 0 || merges != 0 || used == 0) return;
    slot_t* const listed = wave.live + wave.at(t.item, 0);
    std::uint32_t const kept = compact_indices(
        team, n, [&](std::uint32_t s) { return fates[s] == fate::keep && wave.ledger.usable(t.where, s); },
        [&](std::uint32_t rank, std::uint32_t s) { listed[rank] = s; });
    if (kept == 0) return;
    bench<Team> const b(team, *this, t, queries, listed, kept);
    b.measure(n);
    if (fit.degrees && !wave.ledger.ignore_degree) {
      b.fit_degrees();
    } else {
      b.begin_factors();
      b.sum_masses();
    }
    if (fit.values) b.fit_values();
    b.store_degrees();
  }

private:
  /// What the steps share. Rows of queries are numbered q, entries of a block i, listed entries j.
  template <class Team> class bench {
  public:
    KVMELD_HD bench(Team const& team, fit_rows_phase const& phase, tile const& t,
                    reference_rows const& queries, slot_t const* listed, std::uint32_t kept)
        : team_(team),
          p_(phase),
          t_(t),
          queries_(queries),
          rows_(queries.size()),
          dk_(phase.x.keys.channels()),
          key_ld_(row_stride(dk_)),
          dv_(phase.x.values.channels()),
          listed_(listed),
          kept_(kept),
          factor_(phase.wave.score + phase.wave.at(t.item, 0)),
          keys_(team.template scratch<float>(std::size_t{block} * key_ld_)),
          values_(team.template scratch<float>(std::size_t{block} * dv_)),
          share_(team.template scratch<float>(std::size_t{rows_} * block)),
          turned_(team.template scratch<float>(std::size_t{rows_} * block)),
          bias_(team.template scratch<float>(block)),
          rest_(team.template scratch<float>(std::size_t{rows_} * dv_)),
          gram_(team.template scratch<float>(std::size_t{rows_} * rows_)),
          lse_(team.template scratch<float>(rows_)),
          sum_(team.template scratch<float>(rows_)),
          next_(team.template scratch<float>(rows_)),
          scale_(team.template scratch<float>(rows_)),
          ones_(team.template scratch<float>(rows_)),
          square_(team.template scratch<float>(rows_)) {
      team.for_each(rows_, [&](std::uint32_t q) { ones_[q] = 1.0f; });
      team.sync();
    }

    /// lse = log Z and rest = -O of every row, over all `n` entries of the track.
    KVMELD_HD void measure(std::uint32_t n) const {
      ledger_ref const& l = p_.wave.ledger;
      team_.for_each(rows_ * dv_, [&](std::uint32_t i) { rest_[i] = 0.0f; });
      team_.for_each(rows_, [&](std::uint32_t q) { sum_[q] = 0.0f; });
      team_.sync();
      for (slot_t first = 0; first < n; first += block) {
        std::uint32_t const count = min_of(block, n - first);
        p_.x.keys.load_tile(team_, t_.where, first, count, 0, dk_, keys_, key_ld_);
        p_.x.values.load_tile(team_, t_.where, first, count, 0, dv_, values_, dv_);
        team_.sync();
        // What is NaN must not be multiplied, not even by 0.
        team_.for_each(count * dk_, [&](std::uint32_t i) {
          if (!l.usable(t_.where, first + i / dk_)) keys_[i / dk_ * key_ld_ + i % dk_] = 0.0f;
        });
        team_.for_each(count * dv_, [&](std::uint32_t i) {
          if (!l.usable(t_.where, first + i / dv_)) values_[i] = 0.0f;
        });
        team_.for_each(count, [&](std::uint32_t i) {
          bias_[i] = l.usable(t_.where, first + i) ? l.log_degree(t_.where, first + i)
                                                   : element_traits<float>::lowest;
        });
        team_.sync();
        products(count);
        team_.for_each(rows_, [&](std::uint32_t q) {
          scale_[q] =
              soften(team_, share_ + std::size_t{q} * block, bias_, count, lse_ + q, sum_ + q, first != 0);
        });
        team_.sync();
        add_weighted_rows(team_, share_, rows_, block, scale_, values_, dv_, count, dv_, rest_, dv_);
        team_.sync();
      }
      team_.for_each(rows_ * dv_, [&](std::uint32_t i) {
        std::uint32_t const q = i / dv_;
        rest_[i] = queries_.holds(q) ? -rest_[i] / sum_[q] : 0.0f;
      });
      team_.sync();
      team_.for_each(rows_, [&](std::uint32_t q) { lse_[q] += std::log(sum_[q]); });
      team_.sync();
    }

    KVMELD_HD void begin_factors() const {
      team_.for_each(kept_, [&](std::uint32_t j) { factor_[j] = 1.0f; });
      team_.sync();
    }

    /// sum = sum_j a_qj u_j and square = sum_j (a_qj u_j)^2 of every row.
    KVMELD_HD void sum_masses() const {
      team_.for_each(rows_, [&](std::uint32_t q) { sum_[q] = square_[q] = 0.0f; });
      each_block([&](std::uint32_t first, std::uint32_t count) {
        team_.for_each(rows_, [&](std::uint32_t q) {
          for (std::uint32_t i = 0; i < count; ++i) {
            float const a = share_[std::size_t{q} * block + i] * factor_[first + i];
            sum_[q] += a;
            square_[q] += a * a;
          }
        });
      });
    }

    KVMELD_HD void fit_degrees() const {
      begin_factors();
      sum_masses();
      float const r = ridge(false);
      for (std::uint32_t step = 0; step < p_.fit.iterations; ++step) {
        team_.for_each(rows_, [&](std::uint32_t q) { next_[q] = 0.0f; });
        each_block([&](std::uint32_t first, std::uint32_t count) {
          team_.for_each(count, [&](std::uint32_t i) {
            if (!writable(listed_[first + i])) return;
            auto const a = [&](std::uint32_t q) { return share_[std::size_t{q} * block + i]; };
            float const up = r + ordered_sum(rows_, a);
            float& u = factor_[first + i];
            float const down = r * u + ordered_sum(rows_, [&](std::uint32_t q) { return a(q) * sum_[q]; });
            constexpr float least = merge::fitted::least_factor;
            u = min_of(max_of(u * (up / down), least), 1.0f / least);
          });
          team_.sync();
          team_.for_each(rows_, [&](std::uint32_t q) {
            for (std::uint32_t i = 0; i < count; ++i)
              next_[q] += share_[std::size_t{q} * block + i] * factor_[first + i];
          });
        });
        team_.for_each(rows_, [&](std::uint32_t q) { sum_[q] = next_[q]; });
        team_.sync();
      }
      sum_masses();
    }

    /// Writes v_j + c_j. `sum` and `square` hold those of the final factors.
    KVMELD_HD void fit_values() const {
      team_.for_each(rows_ * rows_, [&](std::uint32_t i) { gram_[i] = 0.0f; });
      each_block([&](std::uint32_t first, std::uint32_t count) {
        attend(first, count);
        load_values(first, count);
        team_.sync();
        add_weighted_rows(team_, share_, rows_, block, ones_, values_, dv_, count, dv_, rest_, dv_);
        add_weighted_rows(team_, share_, rows_, block, ones_, turned_, rows_, count, rows_, gram_, rows_);
      });
      solve_ridge(team_, gram_, rows_, ridge(true), rest_, dv_);  // rest = A v - O
      each_block([&](std::uint32_t first, std::uint32_t count) {
        attend(first, count);
        load_values(first, count);
        team_.sync();
        for (std::uint32_t from = 0; from < count; from += rows_at_once(count))
          add_weighted_rows(team_, turned_ + std::size_t{from} * rows_,
                            min_of(rows_at_once(count), count - from), rows_, ones_, rest_, dv_, rows_, dv_,
                            values_ + std::size_t{from} * dv_, dv_);
        team_.sync();
        team_.for_each(
            count, [&](std::uint32_t i) { bias_[i] = fits(values_ + std::size_t{i} * dv_) ? 1.0f : 0.0f; });
        team_.sync();
        for (std::uint32_t i = 0; i < count; ++i) {
          slot_t const s = listed_[first + i];
          if (bias_[i] == 0.0f || !writable(s)) continue;
          float const* const row = values_ + std::size_t{i} * dv_;
          p_.x.values.encode_row(team_, t_.where, s, [&](std::uint32_t c) { return row[c]; });
          if (team_.lane() != 0) continue;
          std::uint8_t& flags = p_.wave.ledger.flags[p_.wave.ledger.at(t_.where, s)];
          flags = static_cast<std::uint8_t>(flags & ~unsigned{entry_flag::value_checked});
        }
      });
    }

    KVMELD_HD void store_degrees() const {
      if (!p_.fit.degrees || p_.wave.ledger.ignore_degree) return;
      team_.for_each(kept_, [&](std::uint32_t j) {
        p_.wave.ledger.degree[p_.wave.ledger.at(t_.where, listed_[j])] *= factor_[j];
      });
    }

  private:
    /// The generic form of add_weighted_rows takes one factor per row, and `ones` holds as many as there are
    /// queries.
    KVMELD_HD std::uint32_t rows_at_once(std::uint32_t count) const { return min_of(rows_, count); }

    KVMELD_HD bool writable(slot_t s) const {
      if (s < p_.wave.ledger.frozen[t_.where.sequence]) return false;
      // An entry whose key is shared stays as it is.
      return writable_in(p_.x.keys, s) && writable_in(p_.x.values, s);
    }
    template <class Layout> KVMELD_HD bool writable_in(Layout const& rows, slot_t s) const {
      if constexpr (is_always_writable<Layout>::value) {
        return true;
      } else {
        return rows.writable(t_.where, s);
      }
    }
    /// Whether a row can be stored.
    KVMELD_HD bool fits(float const* row) const {
      using T = typename Values::element_type;
      float most = -element_traits<float>::lowest;
      if constexpr (has_plain_rows<Values>::value) most = -element_traits<T>::lowest;
      for (std::uint32_t c = 0; c < dv_; ++c) {
        if (!is_finite(row[c]) || row[c] > most || row[c] < -most) return false;
      }
      return true;
    }
    /// The pull towards what is there: fit.ridge times the sum of A_qj^2 over q and j.
    KVMELD_HD float ridge(bool normalised) const {
      float const total = ordered_sum(rows_, [&](std::uint32_t q) {
        float const z = normalised ? sum_[q] * sum_[q] : 1.0f;
        return queries_.holds(q) && z > 0.0f ? square_[q] / z : 0.0f;
      });
      team_.sync();
      return max_of(p_.fit.ridge * total, 1e-20f);
    }

    KVMELD_HD void products(std::uint32_t count) const {
      row_products(team_, queries_.data(), rows_, queries_.stride(), keys_, count, key_ld_, dk_, share_,
                   block);
    }
    /// Calls use(first, count) for blocks of listed entries, with share = a_qj. Collective; begins and ends
    /// with a barrier.
    template <class Use> KVMELD_HD void each_block(Use use) const {
      ledger_ref const& l = p_.wave.ledger;
      constexpr float most = 40.0f;  // a merged degree below 1 may make a_qj exceed 1, but not by much
      team_.sync();
      for (std::uint32_t first = 0; first < kept_; first += block) {
        std::uint32_t const count = min_of(block, kept_ - first);
        for (std::uint32_t i = 0; i < count; ++i)
          p_.x.keys.load_tile(team_, t_.where, listed_[first + i], 1, 0, dk_,
                              keys_ + std::size_t{i} * key_ld_, key_ld_);
        team_.for_each(count,
                       [&](std::uint32_t i) { bias_[i] = l.log_degree(t_.where, listed_[first + i]); });
        team_.sync();
        products(count);
        team_.for_each(rows_ * count, [&](std::uint32_t k) {
          std::uint32_t const q = k / count, i = k % count;
          float& a = share_[std::size_t{q} * block + i];
          a = queries_.holds(q) ? std::exp(min_of(a + bias_[i] - lse_[q], most)) : 0.0f;
        });
        team_.sync();
        use(first, count);
        team_.sync();
      }
    }
    /// share = A_qj of a block, and turned[i][q] = the same for entries that may be written, else 0. No
    /// barrier at the end.
    KVMELD_HD void attend(std::uint32_t first, std::uint32_t count) const {
      team_.for_each(rows_ * count, [&](std::uint32_t k) {
        std::uint32_t const q = k / count, i = k % count;
        float& a = share_[std::size_t{q} * block + i];
        a = sum_[q] > 0.0f ? a * factor_[first + i] / sum_[q] : 0.0f;
        turned_[std::size_t{i} * rows_ + q] = writable(listed_[first + i]) ? a : 0.0f;
      });
    }
    KVMELD_HD void load_values(std::uint32_t first, std::uint32_t count) const {
      for (std::uint32_t i = 0; i < count; ++i)
        p_.x.values.load_tile(team_, t_.where, listed_[first + i], 1, 0, dv_, values_ + std::size_t{i} * dv_,
                              dv_);
    }

    Team const& team_;
    fit_rows_phase const& p_;
    tile const& t_;
    reference_rows queries_;
    std::uint32_t rows_;
    std::uint32_t dk_, key_ld_, dv_;
    slot_t const* listed_;
    std::uint32_t kept_;
    float *factor_, *keys_, *values_, *share_, *turned_, *bias_, *rest_, *gram_, *lse_, *sum_, *next_,
        *scale_, *ones_, *square_;
  };
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
