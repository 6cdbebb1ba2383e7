// Teams made of warps on a machine without any: 32 threads each, which multiply as the matrix unit's
// fragments are documented (PTX ISA, mma.m16n8k16), element by element in float.
#pragma once

#include <kvmeld/backend/warps/warps.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

// What the lanes of one warp share. Two of everything, used in turn, so that one barrier per operation is
// enough.
struct warp_board {
  warp_board() : barrier(kvmeld::warp_size, nullptr) {}
  kvmeld::detail::checking_barrier barrier;
  std::array<std::array<std::uint32_t, 6>, kvmeld::warp_size> words[2];
};

class warp_team : public kvmeld::detail::lane_team {
public:
  warp_team(kvmeld::detail::team_board& board, std::uint32_t lane, std::uint32_t lanes, warp_board& warp)
      : kvmeld::detail::lane_team(board, lane, lanes), warp_(warp), place_of_(kvmeld::place_in_warp(*this)) {}

  static constexpr bool has_warps = true;

  std::uint32_t ballot(bool yes, char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    auto const& all = exchange("ballot", {yes ? 1u : 0u}, file, line);
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < kvmeld::warp_size; ++i) bits |= all[i][0] << i;
    return bits;
  }
  std::uint32_t shuffle(std::uint32_t x, std::uint32_t from, char const* file = __builtin_FILE(),
                        int line = __builtin_LINE()) const {
    if (from >= kvmeld::warp_size)
      kvmeld::detail::report_finding(nullptr, "shuffle from lane " + std::to_string(from));
    return exchange("shuffle", {x}, file, line)[from % kvmeld::warp_size][0];
  }
  template <kvmeld::matrix_format Format>
  void multiply(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2],
                char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    auto const& all = exchange("multiply", {a[0], a[1], a[2], a[3], b[0], b[1]}, file, line);
    for (std::uint32_t i = 0; i < 4; ++i) {
      std::uint32_t const row = place_of_.group + (i >= 2 ? 8 : 0);
      std::uint32_t const column = 2 * place_of_.pair + i % 2;
      float sum = 0.0f;
      for (std::uint32_t k = 0; k < 16; ++k) {
        std::uint32_t const left = all[row % 8 * 4 + k % 8 / 2][(row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0)];
        std::uint32_t const right = all[column * 4 + k % 8 / 2][4 + (k >= 8 ? 1 : 0)];
        sum += element<Format>(left, k % 2) * element<Format>(right, k % 2);
      }
      c[i] += sum;
    }
  }
  // A team is one block here.
  kvmeld::block_place place_of_block() const { return {0, 1}; }
  warp_team const& block() const { return *this; }
  template <class T> T* block_scratch(std::size_t n) const { return scratch<T>(n); }
  template <class T> T* in_block(T* mine, std::uint32_t) const { return mine; }
  void add_up_blocks(std::uint32_t*, std::uint32_t) const {}
  // Copies really arrive only with finish_copies: what reads too early finds poison.
  void copy_ahead(void* to, void const* from) const { copies_.push_back({to, from, group_}); }
  void commit_copies() const { ++group_; }
  template <int Groups = 0> void finish_copies() const {
    std::vector<copy> later;
    for (copy const& c : copies_) {
      if (Groups != 0 && c.group + Groups >= group_) {
        later.push_back(c);
        continue;
      }
      if (!kvmeld::is_piece_aligned(c.to) || !kvmeld::is_piece_aligned(c.from))
        kvmeld::detail::report_finding(nullptr, "copy_ahead is not aligned");
      std::memcpy(c.to, c.from, 16);
    }
    copies_ = std::move(later);
  }
  void sync_warp(char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    exchange("sync_warp", {}, file, line);
  }
  void end_tile() const {
    if (!copies_.empty()) kvmeld::detail::report_finding(nullptr, "a tile ended with copies under way");
    kvmeld::detail::lane_team::end_tile();
  }

private:
  using shares = std::array<std::array<std::uint32_t, 6>, kvmeld::warp_size>;

  template <kvmeld::matrix_format Format> static float element(std::uint32_t word, std::uint32_t which) {
    auto const bits = static_cast<std::uint16_t>(word >> (16 * which));
    if constexpr (Format == kvmeld::matrix_format::f16) {
      return kvmeld::element_traits<kvmeld::float16>::to_float({bits});
    } else {
      return kvmeld::element_traits<kvmeld::bfloat16>::to_float({bits});
    }
  }
  shares const& exchange(char const* what, std::array<std::uint32_t, 6> const& mine, char const* file,
                         int line) const {
    shares& words = warp_.words[exchanges_++ % 2];
    words[place_of_.lane] = mine;
    where_.note(what, file, line, 0);
    warp_.barrier.arrive(place_of_.lane, where_);
    return words;
  }

  warp_board& warp_;
  kvmeld::warp_place place_of_;
  mutable kvmeld::detail::lane_place where_;
  mutable std::uint32_t exchanges_ = 0;
  struct copy {
    void* to;
    void const* from;
    std::uint32_t group;
  };
  mutable std::vector<copy> copies_;
  mutable std::uint32_t group_ = 0;
};

// lane_executor with teams of `warps` warps, which runs tuned forms where they accept, and counts them.
class warp_executor : public kvmeld::testing::lane_executor {
public:
  explicit warp_executor(std::uint32_t warps = 1, kvmeld::tuning tuning = kvmeld::tuning::on,
                         std::size_t max_scratch = std::size_t{220} << 10)
      : lane_executor(warps * kvmeld::warp_size), tuning_(tuning), max_scratch_(max_scratch) {
    for (std::uint32_t i = 0; i < warps; ++i) boards_of_warps_.push_back(std::make_shared<warp_board>());
  }

  std::size_t max_scratch() const { return max_scratch_; }
  kvmeld::tuning tuning_mode() const { return tuning_; }
  std::uint32_t tuned_launches() const { return *tuned_; }

  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    if constexpr (kvmeld::tuned<kvmeld::warps, Phase>::value) {
      if (tuning_ == kvmeld::tuning::on && kvmeld::tuned<kvmeld::warps, Phase>::accepts(phase, *this)) {
        if (!rehearses()) ++*tuned_;
        return kvmeld::tuned<kvmeld::warps, Phase>::enqueue(*this, phase, extent, items, source);
      }
    }
    launch(phase, extent, items, source);
  }
  template <class Phase, class Source>
  void launch(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    for (auto const& board : boards_of_warps_) board->barrier.mend();
    run_teams(phase, extent, items, source,
              [&](kvmeld::detail::team_board& board, std::uint32_t lane, std::uint32_t lanes) {
                return warp_team(board, lane, lanes, *boards_of_warps_[lane / kvmeld::warp_size]);
              });
  }

private:
  kvmeld::tuning tuning_;
  std::size_t max_scratch_;
  std::shared_ptr<std::uint32_t> tuned_ = std::make_shared<std::uint32_t>(0);
  std::vector<std::shared_ptr<warp_board>> boards_of_warps_;
};

// f(executor) for teams of several sizes: of lanes, or of warps.
template <class Executor, class F> void for_teams(F f) {
  for (std::uint32_t size : {1u, 2u, 3u, 5u, 8u}) {
    if (std::is_same_v<Executor, warp_executor> && size > 3) continue;
    Executor executor(size);
    f(executor);
  }
}

}  // namespace support
