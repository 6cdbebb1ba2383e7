// Scores of rows are on a device the host's up to the rounding of exponentials, and the same bits however
// many blocks share a track.
#pragma once

#include "support/learned.hpp"
#include "twins.hpp"

namespace device_test {

/// Scores of the tracks of one sequence with a few rows that are no numbers, on both sides.
template <class Device, class Policy = kvmeld::preset::h2o::type> class scored_tracks {
public:
  using element = typename Device::bfloat16;
  static constexpr std::uint32_t queries = 37, length = 330;

  /// far: the device's policy, where it reads memory.
  explicit scored_tracks(Device const& device, Policy const& policy = kvmeld::preset::h2o::defaults(),
                         Policy const* far = nullptr)
      : pair_(device, policy, 41, kvmeld::tuning::on, usual_limits<Policy>(), far) {
    pair_.both([&](auto& c) { c.open(0, length); });
    if (kvmeld::need_of(policy).when != kvmeld::observation::none) pair_.observe(0, 4);
    for (std::uint32_t i : {0u, 77u, length - 40}) {
      std::size_t const at = pair_.host().ledger().at(kvmeld::make_track(extent, 0, 0, 1), i);
      flags_.assign(pair_.host().ledger().flags, pair_.host().ledger().flags + extent.slots());
      flags_[at] |= kvmeld::entry_flag::nonfinite;
      std::copy(flags_.begin(), flags_.end(), pair_.host().ledger().flags);
      pair_.poison(kvmeld::make_track(extent, 0, 0, 1), i);
    }
    noise n(43);
    for (std::uint32_t i = 0; i < queries * extent.query_heads() * extent.key_dim; ++i)
      shown_.push_back(2.0f * n.uniform());
  }

  template <class Score> void check(char const* name, Score const& score) { check(name, score, score); }
  /// far: the device's.
  template <class Score> void check(char const* name, Score const& score, Score const& far) {
    CAPTURE(std::string(name));
    std::uint32_t const tracks = extent.kv_heads;
    std::vector<float> const table = table_of(score);
    std::vector<kvmeld::track_state> states(tracks);
    for (kvmeld::track_state& s : states) {
      s = {};
      s.length = length;
      s.limit = length / 5;
      s.over_budget = 1;
    }
    std::vector<std::uint32_t> const sequences{0};
    std::vector<float> here(extent.slots());
    std::vector<std::uint32_t> room(extent.slots());
    auto host = pair_.host().executor();
    run(host, pair_.host(), score, table.data(), states.data(), sequences.data(), here.data(), room.data(), 0,
        tracks);

    auto& device = pair_.device().executor();
    typename Device::template array<float> const far_table(table);
    typename Device::template array<float> far_scores(here);
    typename Device::template array<kvmeld::track_state> const far_states(states);
    typename Device::template array<std::uint32_t> const far_sequences(sequences), far_room(room);
    typename Device::template array<std::uint8_t> const far_flags(flags_);
    far_flags_ = far_flags.data();
    auto const there = [&](std::uint32_t first, std::uint32_t count) {
      far_scores.put(std::vector<float>(here.size(), -77.0f));
      run(device, pair_.device(), far, far_table.data(), far_states.data(), far_sequences.data(),
          far_scores.data(), far_room.data(), first, count);
      pair_.settle();
      return far_scores.get();
    };
    std::vector<float> const alone[] = {there(0, 1), there(1, 1)};  // each gets several blocks
    std::vector<float> const all = there(0, tracks);
    float largest = 0.0f;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i % extent.capacity < length && std::abs(here[i]) < 1e30f)
        largest = std::max(largest, std::abs(here[i]));
    }
    REQUIRE(largest > 0.0f);
    std::size_t off = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i % extent.capacity >= length) continue;
      float const x = here[i], y = all[i];
      off += std::abs(x) < 1e30f ? std::abs(x - y) > 1e-4f * largest : std::memcmp(&x, &y, sizeof x) != 0;
    }
    CHECK(off == 0);
    for (std::size_t track : {0, 1}) {
      CHECK(std::memcmp(alone[track].data(), all.data() + track * extent.capacity, length * sizeof(float)) ==
            0);
    }
  }

private:
  template <class Score> std::vector<float> table_of(Score const& score) const {
    std::uint32_t const floats = kvmeld::table_floats_of(score, extent);
    std::vector<float> table(std::max<std::size_t>(1, std::size_t{extent.tracks()} * floats));
    if constexpr (kvmeld::detail::has_table<Score>) {
      std::size_t const bytes = score.scratch_bytes(extent, 1) + 64;
      kvmeld::host_memory scratch(bytes);
      for (std::uint32_t head = 0; head < extent.query_heads(); ++head) {
        kvmeld::serial_team const team(scratch.data(), bytes);
        std::uint32_t const group = extent.queries_per_kv_head;
        kvmeld::observed_queries<float const> const seen(
            kvmeld::rows_by_token<float const>(shown_.data(), queries, extent.query_heads(), extent.key_dim),
            {}, 0, head, queries, length, length, 0.25f, extent.key_dim);
        score.absorb(team, table.data() + std::size_t{head / group} * floats, head % group, seen);
      }
    }
    return table;
  }
  template <class Executor, class Cache, class Score, class Words>
  void run(Executor& executor, Cache& cache, Score const& score, float const* table,
           kvmeld::track_state const* states, std::uint32_t const* sequences, float* scores, Words* room,
           std::uint32_t first, std::uint32_t count) {
    kvmeld::wave_ref wave{};
    wave.ledger = cache.ledger();
    wave.ledger.table = const_cast<float*>(table);
    wave.ledger.table_floats = kvmeld::table_floats_of(score, extent);
    if (static_cast<void const*>(&cache) == &pair_.device()) wave.ledger.flags = far_flags_;
    wave.work = {sequences, 1, false};
    wave.first = first;
    wave.tracks = count;
    wave.stride = extent.capacity;
    wave.state = const_cast<kvmeld::track_state*>(states);
    wave.score = scores;
    wave.set_end = room;
    auto const x = cache.ref();
    using layouts = kvmeld::kv<std::decay_t<decltype(x.keys)>, std::decay_t<decltype(x.values)>>;
    executor.run(kvmeld::detail::score_phase<Score, layouts>{score, wave, {x.keys, x.values}}, extent, count,
                 wave);
  }

  twins<Device, element, Policy> pair_;
  std::vector<std::uint8_t> flags_;
  std::uint8_t* far_flags_ = nullptr;
  std::vector<float> shown_;
};

/// The scores that combine the rows of a track.
template <class Device> void row_scores(Device const& device) {
  made_for const now({1, 1, 8, 2, 16, 8, 4200});
  scored_tracks<Device> tracks(device);
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  kvmeld::score::leverage unrotated;
  unrotated.rope = rope;
  kvmeld::score::drop_error rotated;
  rotated.rope = rope;
  kvmeld::score::critical<kvmeld::score::global> critical;
  critical.sinks = kvmeld::quantity::entries(5);
  tracks.check("keydiff", kvmeld::score::key_difference{});
  tracks.check("leverage", kvmeld::score::leverage{});
  tracks.check("leverage before rotation", unrotated);
  tracks.check("lagkv", kvmeld::score::lag_relative{});
  tracks.check("expected attention", kvmeld::score::expected_attention{rope});
  tracks.check("triattention", kvmeld::score::distance_preference{rope});
  tracks.check("r-kv", kvmeld::score::redundancy{});
  tracks.check("dropkv", kvmeld::score::drop_error{});
  tracks.check("dropkv, keys unrotated", rotated);
  tracks.check("criticalkv", critical);
  tracks.check("leverage_dropkv", kvmeld::preset::leverage_dropkv::for_budget().score);

  kvmeld::learned_weights const near = support::some_weights(extent);
  typename Device::template array<float> const weights(
      std::vector<float>(near.data, near.data + near.size()));
  kvmeld::learned_weights there = near;
  there.data = weights.data();
  auto const here = kvmeld::preset::learned::with_weights(near, rope),
             far = kvmeld::preset::learned::with_weights(there, rope);
  scored_tracks<Device, kvmeld::preset::learned::type>(device, here, &far)
      .check("learned", here.score, far.score);
}

}  // namespace device_test
