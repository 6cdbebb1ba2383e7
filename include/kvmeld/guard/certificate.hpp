// What a merged entry knows of its tokens, and the bound on the error of attention that follows (docs/guarded.md).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// How the tokens (k_t, v_t) of an entry lie about its stored row (k, v): upper bounds, means over tokens.
struct certificate {
  float key_reach;     ///< max ||k_t - k||; 0: the entry is as it came
  float key_spread;    ///< mean of ||k_t - k||^2
  float key_bias;      ///< ||mean k_t - k||: rounding of storage, and weights other than by degree
  float value_spread;  ///< mean of ||v_t - v||^2
  float value_bias;    ///< ||mean v_t - v||
};
constexpr std::uint32_t certificate_channels = 5;  ///< channels that certificates take

/// Every derived quantity is multiplied by this: it covers the rounding of sums of up to 8192 floats in any order (n 2^-24
/// relative), of square roots and of the polynomial below.
constexpr float rounding_up = 1.0009765625f;  // 1 + 2^-10
/// Added to distances: differences below 2^-63 have squares that vanish.
constexpr float least_distance = 0x1p-56f;
/// Logits of one set that lie further apart than this are beyond any bound of use.
constexpr float widest_logits = 4.0f;
/// The bound where there is none.
constexpr float unbounded = 0x1p127f;

/// Adds the channels that hold certificates. The pivot's are written where rows merge, before the ledger does.
constexpr channel_list with_certificates(channel_list list) {
  for (std::uint32_t i = 0; i < certificate_channels; ++i) {
    list.add({channel_tag::certificates + i, channel_rule::pivot, 0.0f});
  }
  return list;
}

/// Reads and writes certificates of a track; their channels are neighbours.
struct certificate_rows {
  ledger_ref const& ledger;  ///< of the cache
  track where;               ///< whose certificates
  std::uint32_t first;       ///< channel

  /// The certificates of one track.
  KVMELD_HD certificate_rows(ledger_ref const& l, track t)
      : ledger(l), where(t), first(l.channels.find(channel_tag::certificates)) {}

  /// What is known of an entry.
  KVMELD_HD certificate at(slot_t s) const {
    return {value(0, s), value(1, s), value(2, s), value(3, s), value(4, s)};
  }
  /// Writes what is known of an entry.
  KVMELD_HD void write(slot_t s, certificate const& c) const {
    value(0, s) = c.key_reach;
    value(1, s) = c.key_spread;
    value(2, s) = c.key_bias;
    value(3, s) = c.value_spread;
    value(4, s) = c.value_bias;
  }
  /// Whether the entry stands for several tokens.
  KVMELD_HD bool merged(slot_t s) const { return value(0, s) > 0.0f; }

private:
  KVMELD_HD float& value(std::uint32_t i, slot_t s) const {
    return ledger.channel_data[first + i][ledger.at(where, s)];
  }
};

/// phi(x) = 2 (e^x - 1 - x) / x^2 for 0 <= x <= widest_logits, as its power series in Horner's form: no library function,
/// so that all machines have the same bits.
KVMELD_HD inline float second_order(float x) {
  float sum = 1.0f;
  for (int n = 26; n >= 3; --n) sum = 1.0f + x * sum / static_cast<float>(n);
  return sum;
}

/// What turns a certificate into a bound. Letters are those of docs/guarded.md.
struct attention_bound {
  float steepness;  ///< sigma: scale * norm of the queries; a key moved by x moves logits by at most sigma x
  float inverse_softcap;  ///< 0: none

  /// The least epsilon that the set passes with: if no entry's is greater, and no value is longer than `radius`, then
  /// ||O - O*|| <= epsilon for all queries (docs/guarded.md, theorem).
  KVMELD_HD float error(certificate const& x, float radius) const {
    float const widest = steepness * x.key_reach;
    if (order_key(widest) == 0 || order_key(widest) > order_key(widest_logits)) return unbounded;
    float const square = steepness * steepness * x.key_spread;  // mean of squared logit differences
    float const phi = second_order(widest);
    float const beta = steepness * x.key_bias + 0.5f * cap_curvature * inverse_softcap * square;
    float const alpha = beta + 0.5f * phi * square;
    float const c = (1.0f + 0.5f * widest * phi) * std::sqrt(square * x.value_spread) + x.value_bias;
    // alpha^2 radius^2 / epsilon + c + epsilon beta <= 3/4 epsilon, solved for epsilon.
    float const room = 0.75f - beta * rounding_up;
    if (order_key(room) < order_key(least_room)) return unbounded;
    float const a = alpha * radius;
    float const least = (c + std::sqrt(c * c + 4.0f * room * a * a)) / (2.0f * room) * rounding_up;
    return is_finite(least) ? least : unbounded;
  }

private:
  static constexpr float cap_curvature = 0.77f;  ///< max |tanh''| = 0.7698...
  static constexpr float least_room = 0.05f;
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
