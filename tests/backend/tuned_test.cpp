// A tuned form replaces a phase where it accepts, and nowhere else.
#include <doctest/doctest.h>

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace {

struct counting_phase {
  std::uint32_t* hits;
  bool refused;
  std::uint32_t tiles(kvmeld::shape const&) const { return 3; }
  std::size_t scratch_bytes(int) const { return 64; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const& t) const {
    *team.template scratch<std::uint32_t>(1) = 0;
    hits[t.item * 3 + t.index] += 1;
  }
};

}  // namespace

template <> struct kvmeld::tuned<kvmeld::host_executor, counting_phase> {
  static constexpr bool value = true;
  static bool accepts(counting_phase const& p, host_executor const&) { return !p.refused; }
  template <class Source>
  static void enqueue(host_executor&, counting_phase const& p, shape const&, std::uint32_t items,
                      Source const&) {
    for (std::uint32_t i = 0; i < items * 3; ++i) p.hits[i] += 100;
  }
};

TEST_CASE("a tuned form replaces its phase only where tuning is on and it accepts") {
  kvmeld::shape const extent{1, 4, 1, 1, 8, 8, 16};
  std::uint32_t const sequences[] = {0, 1, 2, 3};
  kvmeld::track_source const source{extent, {sequences, 4}};
  for (auto [mode, refused, each] : {std::tuple{kvmeld::tuning::on, false, 100u},
                                     {kvmeld::tuning::on, true, 1u},
                                     {kvmeld::tuning::off, false, 1u}}) {
    for (std::uint32_t threads : {1u, 3u}) {
      std::vector<std::uint32_t> hits(12, 0);
      kvmeld::host_executor executor(threads, mode);
      CHECK(executor.tuning_mode() == mode);
      executor.run(counting_phase{hits.data(), refused}, extent, 4, source);
      CHECK(hits == std::vector<std::uint32_t>(12, each));
    }
  }
}

TEST_CASE("every tile runs once, with the track the source names") {
  kvmeld::shape const extent{2, 3, 2, 1, 8, 8, 16};
  std::uint32_t const sequences[] = {2, 0};
  kvmeld::track_source const source{extent, {sequences, 2}};
  CHECK(source.work.tracks(extent) == 8);
  std::vector<std::uint32_t> seen;
  for (std::uint32_t item = 0; item < 8; ++item) {
    kvmeld::track const t = source.where(item);
    CHECK(t.index == (t.layer * 3 + t.sequence) * 2 + t.kv_head);
    CHECK(t.sequence != 1);
    seen.push_back(t.index);
  }
  CHECK(seen == std::vector<std::uint32_t>{4, 5, 0, 1, 10, 11, 6, 7});
}
