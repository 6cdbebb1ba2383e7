// SPDX-License-Identifier: Apache-2.0
// Which facts the numbers depend on that a score keeps of a sequence. A saved sequence tells them, and a
// cache of other facts refuses it.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Collects facts as a text. A score that keeps channels or a table may declare
/// `void tell_kept(kept_facts& to) const`, which adds each of its numbers that they depend on: the window
/// that a channel sums over, the rotation that a table's queries were turned back by. Numbers that only
/// matter when a score is computed or a plan is made (a pooling, a threshold) are no such facts, and may
/// change while a sequence is saved.
class kept_facts {
public:
  /// Copies floats that phases can read to where the host can read them.
  using reader = std::function<std::vector<float>(float const*, std::size_t)>;

  /// Begins without facts. `extent` is that of the cache. The facts call `read` for floats that lie where
  /// phases read them.
  kept_facts(shape const& extent, reader read) : extent_(extent), read_(std::move(read)) {}

  /// Adds a number by its name.
  template <class Number> void add(char const* name, Number const& value) {
    text_ += (text_.empty() ? "" : ", ") + message(name, " ", value);
  }
  /// Adds a digest of `count` floats that phases can read; they count by their bits.
  void add(char const* name, float const* data, std::size_t count) {
    std::uint32_t digest = 0;
    for (float f : read_(data, count)) digest = digest * 0x01000193u ^ float_bits(f);
    add(name, digest);
  }
  /// Adds how the model rotates, if it does. Frequencies count by their bits. The table of positions
  /// (rope_params::map) is the cache's own, and does not count.
  void add(rope_params const& rope) {
    if (!rope.active()) return add("rope", "none");
    add("rope", rope.pairing == rope_pairing::half_split ? "half_split" : "interleaved");
    std::uint32_t const pairs = rope.pairs(extent_.key_dim);
    add("pairs", pairs);
    if (rope.frequencies == nullptr) {
      add("base", rope.base);
      add("factor", rope.factor);
    } else {
      add("digest of frequencies", rope.frequencies, pairs);
    }
    if (rope.positions == rope_positions::slot) add("positions", "slot");
  }

  /// The facts so far, with commas between them; empty if there are none.
  std::string const& text() const { return text_; }

private:
  shape extent_;
  reader read_;
  std::string text_;
};

namespace detail {

template <class Score>
using tells_kept = decltype(contract::some<Score>().tell_kept(std::declval<kept_facts&>()));

/// Adds the facts of a score, if it has any.
template <class Score>
void tell_kept_of([[maybe_unused]] Score const& score, [[maybe_unused]] kept_facts& to) {
  if constexpr (contract::allows<tells_kept, Score>) score.tell_kept(to);
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
