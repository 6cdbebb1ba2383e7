// The arena: what it sizes is what it carves, and a whole compression stays within exactly that memory.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

constexpr unsigned char guard_byte = 0xC3;
constexpr std::size_t guard = 256;

// A block of exactly `bytes`, aligned, between guard bytes.
class guarded {
public:
  explicit guarded(std::size_t bytes) : memory_(bytes + 2 * guard), bytes_(bytes) {
    std::memset(memory_.data(), guard_byte, memory_.size());
  }
  void* data() const { return static_cast<std::byte*>(memory_.data()) + guard; }
  std::size_t size() const { return bytes_; }
  bool intact() const {
    auto const* const p = static_cast<unsigned char const*>(memory_.data());
    for (std::size_t i = 0; i < guard; ++i) {
      if (p[i] != guard_byte || p[guard + bytes_ + i] != guard_byte) return false;
    }
    return true;
  }

private:
  kvmeld::host_memory memory_;
  std::size_t bytes_;
};

struct parts {
  kvmeld::ledger_ref ledger;
  kvmeld::wave_ref wave;
  kvmeld::plan_ref plan;
};

parts carve(kvmeld::arena& a, kvmeld::shape const& s, std::uint32_t wave_tracks, std::uint32_t plan_tracks,
            kvmeld::channel_list const& channels, std::uint32_t members) {
  parts p;
  p.ledger = kvmeld::carve_ledger(a, s, channels, members);
  p.wave = kvmeld::carve_wave(a, s, wave_tracks);
  p.wave.tracks = wave_tracks;
  p.plan = kvmeld::carve_plan(a, plan_tracks, s.capacity);
  return p;
}

// Opens sequence 0 by hand, compresses it through the free function, and says what is left.
template <class Policy>
std::vector<std::uint32_t> compress_in(guarded const& block, Policy const& policy, kvmeld::shape const& s,
                                       std::uint32_t wave_tracks, std::uint32_t plan_tracks,
                                       std::uint32_t budget) {
  kvmeld::arena a(block.data(), block.size());
  parts const p =
      carve(a, s, wave_tracks, plan_tracks, kvmeld::channels_of(typename Policy::score_type{}), 5);
  CHECK_FALSE(a.overflowed());
  CHECK(a.bytes() == block.size());
  std::memset(block.data(), 0, block.size());
  support::engine_memory<float> memory(s);
  support::dice d(9);
  memory.fill_sequence(d, 0, 0, s.capacity, support::texture::walk);
  kvmeld::host_executor executor(1);
  std::vector<std::uint32_t> const sequences{0}, counts{s.capacity};
  kvmeld::work_list const work{sequences.data(), 1};
  executor.run(
      kvmeld::sequences::tracks_phase<kvmeld::sequences::open>{{p.ledger, work, counts.data()}, {0, 0}}, s,
      work.tracks(s), kvmeld::track_source{s, work});
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    if (p.ledger.channels.count != 0) support::set_scores(p.ledger, t, support::random_scores(d, s.capacity));
  });
  kvmeld::workspace_ref const workspace{p.wave, p.plan, plan_tracks, nullptr};
  kvmeld::compress(executor, policy, memory.tensors(), p.ledger, work, kvmeld::budget::entries(budget),
                   kvmeld::shortfall::evict_lowest, workspace);
  std::vector<std::uint32_t> lengths;
  support::for_tracks(s, 0, [&](kvmeld::track t) { lengths.push_back(p.ledger.length[t.index]); });
  return lengths;
}

template <class Policy> void exact_memory(Policy const& policy, bool meets_budget) {
  kvmeld::shape const s{2, 2, 3, 1, 17, 12, 83};
  for (std::uint32_t wave_tracks : {1u, 4u, 6u}) {
    for (std::uint32_t plan_tracks : {wave_tracks, s.layers * s.kv_heads}) {
      kvmeld::arena sizing;
      carve(sizing, s, wave_tracks, plan_tracks, kvmeld::channels_of(typename Policy::score_type{}), 5);
      guarded const block(sizing.bytes());
      auto const lengths = compress_in(block, policy, s, wave_tracks, plan_tracks, 40);
      CHECK(block.intact());
      for (std::uint32_t n : lengths) CHECK((meets_budget ? n == 40 : n <= 83));

      guarded const less(sizing.bytes() - 1);
      kvmeld::arena tight(less.data(), less.size());
      carve(tight, s, wave_tracks, plan_tracks, kvmeld::channels_of(typename Policy::score_type{}), 5);
      CHECK(tight.overflowed());
    }
  }
}

}  // namespace

TEST_CASE("an arena hands out aligned pieces, and counts alike with and without memory") {
  kvmeld::arena sizing;
  CHECK(sizing.take<float>(3) == nullptr);
  CHECK(sizing.take<std::uint8_t>(65) == nullptr);
  CHECK(sizing.take<double>(0) == nullptr);
  CHECK(sizing.take<double>(2) == nullptr);
  CHECK(sizing.bytes() == 64 + 128 + 16);
  CHECK_FALSE(sizing.overflowed());

  guarded const block(sizing.bytes());
  kvmeld::arena a(block.data(), block.size());
  auto* const base = static_cast<std::byte*>(block.data());
  CHECK(reinterpret_cast<std::byte*>(a.take<float>(3)) == base);
  CHECK(reinterpret_cast<std::byte*>(a.take<std::uint8_t>(65)) == base + 64);
  CHECK(a.take<double>(0) != nullptr);
  CHECK(reinterpret_cast<std::byte*>(a.take<double>(2)) == base + 192);
  CHECK_FALSE(a.overflowed());
  CHECK(a.bytes() == sizing.bytes());
  CHECK(a.take<char>(1) == nullptr);
  CHECK(a.overflowed());
  CHECK(block.intact());
}

TEST_CASE("a compression stays within exactly the memory that was sized") {
  exact_memory(kvmeld::preset::streaming_llm::with_sinks(4), true);
  exact_memory(kvmeld::preset::h2o::defaults(), true);
  exact_memory(kvmeld::preset::kvmerger::for_budget(), true);
  exact_memory(kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, kvmeld::quantity::entries(4),
                                                      kvmeld::quantity::entries(8)),
               true);
}

TEST_CASE("workspace_bytes is what carve_workspace takes") {
  kvmeld::shape const s{2, 3, 2, 1, 16, 16, 100};
  for (std::uint32_t tracks : {1u, 5u, 12u}) {
    guarded const block(kvmeld::workspace_bytes(s, tracks));
    kvmeld::arena a(block.data(), block.size());
    auto const w = kvmeld::carve_workspace(a, s, tracks, tracks);
    CHECK_FALSE(a.overflowed());
    CHECK(a.bytes() == block.size());
    CHECK(w.wave.tracks == tracks);
    CHECK(w.plan_tracks == tracks);
    CHECK(w.plan.stride == 100);
  }
}
