// Measures exactly how merging a set changes the outputs of probes.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/guard/probed.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/tiled.hpp>
#include <kvmeld/merge/sets.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Layouts that store every element by element_traits alone, so that the stored form of a row can be computed
/// beforehand.
template <class Layout> struct rounds_elements : has_plain_rows<Layout> {};
template <class Keys> struct rounds_elements<latent<Keys>> : rounds_elements<Keys> {};
template <class Groups> struct rounds_elements<tiled<Groups>> : std::true_type {};

/// What a bench needs to know of a set: its slots, the weights of its members, and where the result lies.
template <class Slot, class Mass, class KeyWeight, class ValueWeight> struct probed_set {
  std::uint32_t count;
  slot_t pivot;
  Slot slot;          ///< slot(i) of member i
  Mass mass;          ///< its degree
  KeyWeight key;      ///< weight of its key
  ValueWeight value;  ///< weight of its value
};
template <class Slot, class Mass, class KeyWeight, class ValueWeight>
probed_set(std::uint32_t, slot_t, Slot, Mass, KeyWeight, ValueWeight)
    -> probed_set<Slot, Mass, KeyWeight, ValueWeight>;

/// The probes of one track. The room holds, per probe, the output O before the call, the sum g of what
/// admitted sets add to A* / Z, and the sum z of what they add to Z* / Z. Merging changes the output by
/// O* - O = (g - z O) / (1 + z) (docs/guarded.md).
template <class Team, class Q, class Keys, class Values> class probe_bench {
public:
  static constexpr std::uint32_t block = 16;  ///< rows held at once

  static std::size_t scratch(std::uint32_t probes, std::uint32_t dk, std::uint32_t dv) {
    std::size_t const p = probes;
    return scratch_size(p * dk * sizeof(float)) + 2 * scratch_size(p * sizeof(float)) +
           scratch_size(p * sizeof(std::uint32_t)) + scratch_size(p * dv * sizeof(float)) +
           scratch_size(p * block * sizeof(float)) + 2 * scratch_size(p * sizeof(float)) +
           scratch_size(std::size_t{block} * row_stride(dk) * sizeof(float)) +
           scratch_size(std::size_t{block} * dv * sizeof(float)) + scratch_size(dk * sizeof(float)) +
           scratch_size(dv * sizeof(float));
  }

  KVMELD_HD probe_bench(Team const& team, wave_ref const& wave, probed<Q> const& guard,
                        kv<Keys, Values> const& x, tile const& t)
      : team_(team),
        wave_(wave),
        guard_(guard),
        x_(x),
        where_(t.where),
        probes_(guard.probes.count * wave.ledger.extent.queries_per_kv_head),
        dk_(x.keys.channels()),
        key_ld_(row_stride(dk_)),
        dv_(x.values.channels()),
        query_(team.template scratch<float>(std::size_t{probes_} * dk_)),
        lse_(team.template scratch<float>(probes_)),
        mass_(team.template scratch<float>(probes_)),
        visible_(team.template scratch<std::uint32_t>(probes_)),
        change_(team.template scratch<float>(std::size_t{probes_} * dv_)),
        share_(team.template scratch<float>(std::size_t{probes_} * block)),
        one_(team.template scratch<float>(probes_)),
        norm_(team.template scratch<float>(probes_)),
        key_rows_(team.template scratch<float>(std::size_t{block} * key_ld_)),
        value_rows_(team.template scratch<float>(std::size_t{block} * dv_)),
        key_(team.template scratch<float>(dk_)),
        value_(team.template scratch<float>(dv_)),
        room_(guard.probes.room + std::size_t{t.where.index} * probes_ * (2 * std::size_t{dv_} + 1)) {
    std::uint32_t const group = wave.ledger.extent.queries_per_kv_head, count = guard.probes.count;
    float const scale = guard.params.scale_for(dk_);
    std::uint32_t const length = wave.state[t.item].length;
    team.for_each(probes_, [&](std::uint32_t p) {
      std::uint32_t const head = where_.kv_head * group + p % group, i = p / group;
      Q const* const from = guard_.probes.query_row(where_, head, i);
      for (std::uint32_t c = 0; c < dk_; ++c)
        query_[std::size_t{p} * dk_ + c] = scale * element_traits<std::remove_const_t<Q>>::to_float(from[c]);
      one_[p] = 1.0f;
      norm_[p] = row_norm(room_ + std::size_t{p} * dv_, dv_);
      lse_[p] = guard_.probes.lse_of(where_, head, i);
      // A log-sum-exp may be that of a probe that saw nothing, or not finite. Such a probe sees nothing.
      bool const usable = is_finite(lse_[p]) && lse_[p] > element_traits<float>::lowest;
      visible_[p] = usable ? guard_.params.visible(length, count, i) : 0;
    });
    team.sync();
  }

  KVMELD_HD std::uint32_t probes() const { return probes_; }

  /// Sets outputs and changes of all probes to 0.
  KVMELD_HD void clear() const {
    team_.for_each(probes_ * (2 * dv_ + 1), [&](std::uint32_t i) { room_[i] = 0.0f; });
  }
  /// Computes the outputs of all probes over the track as it is, and clears their changes.
  KVMELD_HD void begin(std::uint32_t length) const {
    clear();
    team_.sync();
    for (slot_t first = 0; first < length; first += block) {
      std::uint32_t const count = min_of(block, length - first);
      load(count, [&](std::uint32_t r) { return first + r; });
      weigh(
          count, [&](std::uint32_t r) { return first + r; },
          [&](std::uint32_t r) { return wave_.ledger.degree[wave_.ledger.at(where_, first + r)]; });
      add_values(count, room_);
    }
  }

  /// Measures how merging the set changes every probe. The calls below use the result. Cooperative.
  template <class Set> KVMELD_HD void measure(Set const& set) const {
    team_.for_each(dk_, [&](std::uint32_t c) { key_[c] = 0.0f; });
    team_.for_each(dv_, [&](std::uint32_t c) { value_[c] = 0.0f; });
    team_.for_each(probes_ * dv_, [&](std::uint32_t i) { change_[i] = 0.0f; });
    team_.for_each(probes_, [&](std::uint32_t p) { mass_[p] = 0.0f; });
    team_.sync();
    float tokens = 0.0f;
    for (std::uint32_t first = 0; first < set.count; first += block) {
      std::uint32_t const count = min_of(block, set.count - first);
      load(count, [&](std::uint32_t r) { return set.slot(first + r); });
      for (std::uint32_t r = 0; r < count; ++r) {
        float const k = set.key(first + r), v = set.value(first + r);
        tokens += set.mass(first + r);
        team_.for_each(dk_, [&](std::uint32_t c) { key_[c] += k * key_rows_[r * key_ld_ + c]; });
        team_.for_each(dv_, [&](std::uint32_t c) { value_[c] += v * value_rows_[r * dv_ + c]; });
      }
      weigh(
          count, [&](std::uint32_t r) { return set.slot(first + r); },
          [&](std::uint32_t r) { return set.mass(first + r); });
      add(count, -1.0f);
    }
    // The merged row as it will be stored, in the first row of the block.
    team_.for_each(dk_, [&](std::uint32_t c) { key_rows_[c] = stored<Keys>(key_[c]); });
    team_.for_each(dv_, [&](std::uint32_t c) { value_rows_[c] = stored<Values>(value_[c]); });
    team_.sync();
    weigh(
        1, [&](std::uint32_t) { return set.pivot; }, [&](std::uint32_t) { return tokens; });
    add(1, 1.0f);
  }

  /// Bits of the largest change of a probe, if the measured set merges alone.
  KVMELD_HD std::uint32_t alone() const {
    return largest([&](std::size_t i) { return change_[i]; }, [&](std::uint32_t p) { return mass_[p]; });
  }
  /// Bits of the largest change of a probe, if the measured set merges with all admitted sets.
  KVMELD_HD std::uint32_t together() const {
    return largest([&](std::size_t i) { return change_[i] + added()[i]; },
                   [&](std::uint32_t p) { return mass_[p] + added_mass()[p]; });
  }
  /// Bits of the largest change of a probe by the admitted sets.
  KVMELD_HD std::uint32_t so_far() const {
    return largest([&](std::size_t i) { return added()[i]; },
                   [&](std::uint32_t p) { return added_mass()[p]; });
  }
  /// Measures the merge of two entries to their mean, weighted by degree.
  KVMELD_HD void measure_pair(slot_t pivot, slot_t other) const {
    float const* const degree = wave_.ledger.degree + wave_.ledger.at(where_, 0);
    float const a = degree[pivot], b = degree[other];
    auto const share = [=](std::uint32_t i) { return (i == 0 ? a : b) / (a + b); };
    measure(probed_set{2u, pivot, [=](std::uint32_t i) { return i == 0 ? pivot : other; },
                       [=](std::uint32_t i) { return i == 0 ? a : b; }, share, share});
  }
  /// Whether the pair alone changes no probe by more than `most` (bits). A bound by attention decides for
  /// nearly all pairs; the others are measured. With shares a and b, g - z O is
  /// (e* a - e_a)(v_a - O) + (e* b - e_b)(v_b - O). The bound requires that z is at least -1/2.
  KVMELD_HD bool pair_passes(slot_t pivot, slot_t other, std::uint32_t most) const {
    float const* const degree = wave_.ledger.degree + wave_.ledger.at(where_, 0);
    float const na = degree[pivot], nb = degree[other], tokens = na + nb, a = na / tokens, b = nb / tokens;
    x_.keys.load_tile(team_, where_, pivot, 1, 0, dk_, key_rows_, key_ld_);
    x_.keys.load_tile(team_, where_, other, 1, 0, dk_, key_rows_ + key_ld_, key_ld_);
    x_.values.load_tile(team_, where_, pivot, 1, 0, dv_, value_rows_, dv_);
    x_.values.load_tile(team_, where_, other, 1, 0, dv_, value_rows_ + dv_, dv_);
    team_.sync();
    products(2);
    float const va = row_norm(value_rows_, dv_), vb = row_norm(value_rows_ + dv_, dv_);
    std::uint32_t open = 0;
    team_.for_each(probes_, [&](std::uint32_t p) {
      if (max_of(pivot, other) >= visible_[p]) {
        open |= min_of(pivot, other) < visible_[p] ? 1u : 0u;
        return;
      }
      auto const attended = [&](float n, float product) {
        return n * std::exp(guard_.params.logit(product, 0.0f) - lse_[p]);
      };
      float const x = share_[p * block], y = share_[p * block + 1];
      float const all = attended(tokens, a * x + b * y);
      float const ea = attended(na, x), eb = attended(nb, y), o = norm_[p];
      float const off = std::fabs(all * a - ea) * (va + o) + std::fabs(all * b - eb) * (vb + o);
      bool const passes =
          order_key(2.0f * off) <= order_key(bits_float(most)) && order_key(ea + eb) <= order_key(all + 0.5f);
      open |= passes ? 0u : 1u;
    });
    if (team_.reduce(open, op_max{}) == 0) return true;
    measure_pair(pivot, other);
    return alone() <= most;
  }
  KVMELD_HD void admit() const {
    team_.for_each(probes_ * dv_, [&](std::uint32_t i) { added()[i] += change_[i]; });
    team_.for_each(probes_, [&](std::uint32_t p) { added_mass()[p] += mass_[p]; });
    team_.sync();
  }

private:
  KVMELD_HD float* added() const { return room_ + std::size_t{probes_} * dv_; }
  KVMELD_HD float* added_mass() const { return room_ + 2 * std::size_t{probes_} * dv_; }

  template <class Layout> KVMELD_HD static float stored(float x) {
    using traits = element_traits<typename Layout::element_type>;
    return traits::to_float(traits::from_float(x));
  }
  template <class Slot> KVMELD_HD void load(std::uint32_t count, Slot slot) const {
    for (std::uint32_t r = 0; r < count; ++r) {
      x_.keys.load_tile(team_, where_, slot(r), 1, 0, dk_, key_rows_ + std::size_t{r} * key_ld_, key_ld_);
      x_.values.load_tile(team_, where_, slot(r), 1, 0, dv_, value_rows_ + std::size_t{r} * dv_, dv_);
    }
    team_.sync();
  }
  /// share[p][r] = product of probe p and row r of the block.
  KVMELD_HD void products(std::uint32_t count) const {
    row_products(team_, query_, probes_, dk_, key_rows_, count, key_ld_, dk_, share_, block);
  }
  /// share[p][r] = attention that probe p paid to row r of the block before the call.
  template <class Slot, class Mass> KVMELD_HD void weigh(std::uint32_t count, Slot slot, Mass mass) const {
    products(count);
    team_.for_each(probes_, [&](std::uint32_t p) {
      for (std::uint32_t r = 0; r < count; ++r) {
        float& share = share_[p * block + r];
        share = slot(r) < visible_[p] ? mass(r) * std::exp(guard_.params.logit(share, 0.0f) - lse_[p]) : 0.0f;
      }
    });
    team_.sync();
  }
  /// to[p] += sum share[p][r] v_r.
  KVMELD_HD void add_values(std::uint32_t count, float* to) const {
    add_weighted_rows(team_, share_, probes_, block, one_, value_rows_, dv_, count, dv_, to, dv_);
    team_.sync();
  }
  /// change[p] += sign * sum share[p][r] v_r; mass[p] += sign * sum share[p][r].
  KVMELD_HD void add(std::uint32_t count, float sign) const {
    team_.for_each(probes_, [&](std::uint32_t p) {
      float sum = 0.0f;
      for (std::uint32_t r = 0; r < count; ++r) sum += share_[p * block + r] *= sign;
      mass_[p] += sum;
    });
    team_.sync();
    add_values(count, change_);
  }
  /// Bits of the largest change. A change that is not finite, or that leaves no denominator of the
  /// softmax, counts as infinite.
  template <class Change, class Mass> KVMELD_HD std::uint32_t largest(Change change, Mass mass) const {
    std::uint32_t most = 0;
    team_.for_each(probes_, [&](std::uint32_t p) {
      std::size_t const first = std::size_t{p} * dv_;
      float const z = mass(p);
      float const square = ordered_sum(dv_, [&](std::uint32_t c) {
        float const x = change(first + c) - z * room_[first + c];
        return x * x;
      });
      float const left = 1.0f + z, error = std::sqrt(square) / left;
      bool const counts = order_key(left) > order_key(min_left) && is_finite(error);
      most = max_of(most, counts ? float_bits(error) : 0x7f000000u);
    });
    return team_.reduce(most, op_max{});
  }
  static constexpr float min_left = 0x1p-10f;

  Team const& team_;
  wave_ref const& wave_;
  probed<Q> const& guard_;
  kv<Keys, Values> const& x_;
  track where_;
  std::uint32_t probes_, dk_, key_ld_, dv_;
  float *query_, *lse_, *mass_;
  std::uint32_t* visible_;
  float *change_, *share_, *one_, *norm_, *key_rows_, *value_rows_, *key_, *value_, *room_;
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
