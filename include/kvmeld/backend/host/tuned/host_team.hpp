// SPDX-License-Identifier: Apache-2.0
// A team of one lane that uses vector instructions.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/key_selection.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A serial_team that brings kernels. Primitives and loads use them; where they are null, the generic forms
/// run.
class host_team : public serial_team {
public:
  /// Bytes that a worker needs in addition to scratch.
  static constexpr std::size_t tuned_bytes = scratch_size(key_selection::bytes);

  /// Where there are kernels, `memory` has tuned_bytes bytes and is 64-byte aligned.
  host_team(void* scratch, std::size_t bytes, host_kernels const* kernels, void* memory)
      : serial_team(scratch, bytes), kernels_(kernels), memory_(memory) {}

  KVMELD_HD host_kernels const* kernels() const { return kernels_; }

  /// Tells the processor that these bytes will be read soon.
  void prefetch(void const* from, std::size_t bytes) const {
#if defined(__GNUC__)
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<std::byte const*>(from) + i);
#else
    (void)from;
    (void)bytes;
#endif
  }

  /// select_k with vectors. Marks the indices that the generic form would mark; `marked` is how many. Returns
  /// false and marks nothing where the generic form has to do it. Calls key(i) up to five times per index.
  template <class Key, class Mark>
  bool select(std::uint32_t n, std::uint32_t k, Key key, Mark mark, std::uint32_t& marked) const {
    constexpr std::uint32_t piece = 256;
    marked = 0;
    if (n == 0 || k == 0) return true;
    std::uint32_t keys[piece];
    auto const take = [&](std::uint32_t first, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) keys[i] = key(first + i);
    };
    auto const collect = [&](std::uint32_t low, std::uint32_t high, std::uint32_t* out, std::uint32_t room) {
      key_counts all{0, 0};
      for (std::uint32_t i = 0; i < n; i += piece) {
        std::uint32_t const count = min_of(piece, n - i);
        take(i, count);
        std::uint32_t const used = min_of(all.inside, room);
        key_counts const c = kernels_->collect_keys(keys, count, low, high, out + used, room - used);
        all.above += c.above;
        all.inside += c.inside;
      }
      return all;
    };
    key_selection const selection(*kernels_, memory_);
    key_threshold const t = selection.find(n, k, key, collect);
    if (!t.found) return false;
    bool const whole = t.ties == t.equal;
    std::uint32_t const bar = max_of(1u, t.key);
    std::uint32_t* const list = selection.list();
    for (std::uint32_t i = 0; i < n; i += piece) {
      std::uint32_t const count = min_of(piece, n - i);
      take(i, count);
      std::uint32_t const found = kernels_->list_keys(keys, count, bar, !whole, list);
      for (std::uint32_t j = 0; j < found; ++j) mark(i + list[j]);
      marked += found;
    }
    if (whole) return true;
    std::uint32_t ties = t.ties;
    for (std::uint32_t i = 0; ties != 0; ++i) {
      if (key(i) != t.key) continue;
      mark(i);
      ++marked;
      --ties;
    }
    return true;
  }

  /// mark_best with vectors. Returns false and leaves `out` undefined where the generic form has to do it.
  template <class Byte>
  bool partition(std::uint32_t n, std::uint32_t k, float const* score, Byte best, Byte rest,
                 Byte* out) const {
    k = min_of(k, n);
    if (k == 0 || k == n) {
      if (n != 0) std::memset(out, static_cast<int>(k == 0 ? rest : best), n);
      return true;
    }
    return key_selection(*kernels_, memory_)
        .partition(score, n, k, static_cast<std::uint8_t>(best), static_cast<std::uint8_t>(rest),
                   reinterpret_cast<std::uint8_t*>(out));
  }

private:
  host_kernels const* kernels_;
  void* memory_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
