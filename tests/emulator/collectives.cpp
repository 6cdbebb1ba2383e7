// What lanes of a warp do together, as the PTX manual says.
#include "machine.hpp"
#include "numbers.hpp"

#include <algorithm>
#include <cmath>

namespace emulator {
namespace {

// The register that says which lanes take part; those of mma.sync are all.
std::uint32_t members(thread const& t) {
  switch (collective_of(*t.pc)) {
  case collective::warp_barrier: return get<std::uint32_t>(t, t.pc->slot[0]);
  case collective::shuffle: return get<std::uint32_t>(t, t.pc->slot[5]);
  case collective::vote: return get<std::uint32_t>(t, t.pc->slot[2]);
  default: return 0xffffffffu;
  }
}
bool of_a_warp(collective c) { return c >= collective::warp_barrier; }

}  // namespace

// Performs one collective call whose lanes have all come; false if there is none.
bool block::together(std::size_t warp) {
  std::size_t const begin = warp * 32, end = std::min(begin + 32, count_);
  for (std::size_t k = begin; k < end; ++k) {
    thread& first = threads_[k];
    if (first.now != thread::state::waiting || !of_a_warp(collective_of(*first.pc))) continue;
    instruction const& i = *first.pc;
    collective const c = collective_of(i);
    std::uint32_t const mask = members(first);
    if (!(mask >> first.lane() & 1)) stop(first, i, "a lane that its own mask leaves out");
    std::vector<thread*> lanes(32, nullptr);
    bool all = true;
    for (std::size_t j = 0; j < 32 && all; ++j) {
      if (!(mask >> j & 1)) continue;
      if (begin + j >= end) stop(first, i, "its mask names lanes that the block does not have");
      thread& t = threads_[begin + j];
      if (t.now == thread::state::done) stop(first, i, "its mask names a lane that has ended");
      all = t.now == thread::state::waiting && collective_of(*t.pc) == c && members(t) == mask;
      if (all && t.pc != first.pc) stop(t, i, "lanes of a warp are at different calls of one kind");
      lanes[j] = &t;
    }
    if (!all) continue;
    if (c == collective::shuffle)
      shuffle(lanes, i);
    else if (c == collective::vote)
      vote(lanes, i);
    else if (c == collective::multiply)
      multiply(lanes, i);
    for (thread* t : lanes) {
      if (t == nullptr) continue;
      // Only the barrier orders memory: a shuffle, a vote, a product do not.
      if (c == collective::warp_barrier) ++t->who.warp_barriers;
      ++t->pc;
      t->now = thread::state::running;
    }
    return true;
  }
  return false;
}

// shfl.sync d|p, a, b, c, mask; the modes are up, down, bfly, idx
void block::shuffle(std::vector<thread*> const& lanes, instruction const& i) {
  std::uint32_t values[32] = {}, results[32] = {};
  bool found[32] = {};
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] != nullptr) values[l] = get<std::uint32_t>(*lanes[l], i.slot[2]);
  }
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    int const b = static_cast<int>(get<std::uint32_t>(*lanes[l], i.slot[3]) & 31);
    std::uint32_t const c = get<std::uint32_t>(*lanes[l], i.slot[4]);
    int const segment = static_cast<int>(c >> 8 & 31), clamp = static_cast<int>(c & 31);
    int const last = (l & segment) | (clamp & ~segment), first = l & segment;
    int j = l;
    switch (i.number) {
    case 0: j = l - b, found[l] = j >= last; break;
    case 1: j = l + b, found[l] = j <= last; break;
    case 2: j = l ^ b, found[l] = j <= last; break;
    default: j = first | (b & ~segment), found[l] = j <= last; break;
    }
    if (!found[l]) j = l;
    if (lanes[j] == nullptr) stop(*lanes[l], i, "takes the value of a lane that does not take part");
    results[l] = values[j];
  }
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    if (i.slot[0] != instruction::none) put(*lanes[l], i.slot[0], results[l]);
    if (i.slot[1] != instruction::none) put(*lanes[l], i.slot[1], found[l]);
  }
}

// vote.sync d, p, mask; the modes are ballot, any, all, uni
void block::vote(std::vector<thread*> const& lanes, instruction const& i) {
  std::uint32_t ballot = 0, mask = 0;
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    mask |= 1u << l;
    if (get<bool>(*lanes[l], i.slot[1]) != ((i.detail & 2) != 0)) ballot |= 1u << l;
  }
  for (int l = 0; l < 32; ++l) {
    if (lanes[l] == nullptr) continue;
    switch (i.number) {
    case 0: put(*lanes[l], i.slot[0], ballot); break;
    case 1: put(*lanes[l], i.slot[0], ballot != 0); break;
    case 2: put(*lanes[l], i.slot[0], ballot == mask); break;
    default: put(*lanes[l], i.slot[0], ballot == mask || ballot == 0); break;
    }
  }
}

// mma.sync.m16n8k16, row.col: fragments as in the PTX manual. Products are exact and sums cut off, which a
// device does in steps of its own.
void block::multiply(std::vector<thread*> const& lanes, instruction const& i) {
  auto const value = [&](std::uint32_t pair, unsigned k) {
    auto const bits = static_cast<std::uint16_t>(k == 0 ? pair : pair >> 16);
    return i.number == 0 ? from_half(bits) : from_bfloat16(bits);
  };
  float a[16][16], b[16][8];
  for (unsigned l = 0; l < 32; ++l) {
    unsigned const group = l / 4, in_group = l % 4;
    for (unsigned r = 0; r < 4; ++r) {
      auto const pair = get<std::uint32_t>(*lanes[l], i.slot[4 + r]);
      for (unsigned k = 0; k < 2; ++k)
        a[group + (r % 2) * 8][in_group * 2 + k + (r / 2) * 8] = value(pair, k);
    }
    for (unsigned r = 0; r < 2; ++r) {
      auto const pair = get<std::uint32_t>(*lanes[l], i.slot[8 + r]);
      for (unsigned k = 0; k < 2; ++k) b[in_group * 2 + k + r * 8][group] = value(pair, k);
    }
  }
  for (unsigned l = 0; l < 32; ++l) {
    unsigned const group = l / 4, in_group = l % 4;
    float results[4];
    for (unsigned r = 0; r < 4; ++r) {
      unsigned const row = group + (r / 2) * 8, column = in_group * 2 + r % 2;
      double sum = get<float>(*lanes[l], i.slot[10 + r]);
      for (unsigned k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      results[r] = toward_zero(sum);
    }
    for (unsigned r = 0; r < 4; ++r) put(*lanes[l], i.slot[r], results[r]);
  }
}

}  // namespace emulator
