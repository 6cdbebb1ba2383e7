// Rows through a layout's own operations, and everything a cache consists of as bytes: for "bitwise the
// same".
#pragma once

#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace support {

using byte_list = std::vector<std::byte>;

template <class T> byte_list bytes_of(std::vector<T> const& x) {
  byte_list out(x.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), x.data(), out.size());
  return out;
}

// All arrays of the ledger: they lie in one block that begins with the lengths.
template <class Cache> byte_list ledger_bytes(Cache const& cache) {
  byte_list out(cache.ledger_bytes());
  std::memcpy(out.data(), cache.ledger().length, out.size());
  return out;
}

template <class Layout>
void put_row(Layout const& layout, kvmeld::track where, kvmeld::slot_t slot, std::vector<float> const& row) {
  layout.encode_row(kvmeld::serial_team(nullptr, 0), where, slot, [&](std::uint32_t c) { return row[c]; });
}

template <class Layout>
std::vector<float> get_row(Layout const& layout, kvmeld::track where, kvmeld::slot_t slot) {
  std::vector<float> row(layout.channels());
  layout.load_tile(kvmeld::serial_team(nullptr, 0), where, slot, 1, 0, layout.channels(), row.data(),
                   layout.channels());
  return row;
}

inline bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace support
