// What sequences live through beside compression: forks, shifts, pages, padding, bytes, and tracks of no
// length at all.
#pragma once

#include "twins.hpp"

#include <kvmeld/compose/composed.hpp>

#include <numeric>

namespace device_test {

inline constexpr kvmeld::shape two_layers{2, 3, 2, 2, 16, 8, 112};

template <class Device>
using composed_twins = twins<Device, typename Device::bfloat16, kvmeld::compose::composed>;

inline auto composed_h2o() { return kvmeld::compose::composed_of(kvmeld::preset::h2o::defaults()); }
inline auto composed_keepers() {
  return kvmeld::compose::composed_of(kvmeld::policy{
      kvmeld::score::global{},
      kvmeld::select::top{kvmeld::quantity::entries(2), kvmeld::quantity::of_budget(0.25),
                          kvmeld::quantity::of_budget(0.25)},
      kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{16, {}}, kvmeld::merge::average{}});
}

/// Beginnings that sequences share, saved bytes that go the other way, sequences that end and begin again.
template <class Device> void shared_beginnings(Device const& device) {
  made_for const now(two_layers);
  auto sizes = usual_limits<kvmeld::compose::composed>();
  sizes.wave_tracks = 3;
  composed_twins<Device> pair(device, composed_keepers(), 3, kvmeld::tuning::off, sizes);
  pair.both([](auto& c) {
    c.open(0, 90, 0, kvmeld::sequence_id{4});
    c.freeze(0, 7);
  });
  pair.observe(0, 16);
  pair.both([](auto& c) {
    c.fork(0, 1, 11, kvmeld::sequence_id{5}, kvmeld::fork_rows::shared);
    c.fork(0, 2, 7, kvmeld::sequence_id{6});
    c.compress({1}, kvmeld::budget::ratio(0.4));
  });
  for (std::uint32_t slot : {0u, 1u, 2u}) pair.check(slot);
  pair.both([](auto& c) {
    c.append({1, 2}, {9, 6});
    c.commit({1, 2}, {5, 6});
  });
  pair.observe(1, 2);
  pair.both([](auto& c) {
    c.compress({2, 1}, kvmeld::budget::entries(33));
    c.set_rounds(1, 2);
    c.append({1}, {4});
    c.commit({1}, {4});
    c.truncate(1, c.tokens(1) - 3);
    c.close(0);
  });
  for (std::uint32_t slot : {1u, 2u}) pair.check(slot);
  auto const here = pair.host().save(1), there = pair.device().save(1);
  pair.host().resume(0, there);
  pair.device().resume(0, here);
  pair.observe(0, 2);
  pair.both([](auto& c) { c.compress({0}, kvmeld::budget::entries(24)); });
  pair.check(0);
}

/// A ledger whose entries lie in pages, in waves that hold more tracks when these are short.
template <class Device> void ledgers_in_pages(Device const& device) {
  made_for const now(two_layers);
  constexpr std::uint32_t page = 16, most = two_layers.capacity / page, count = 25;
  std::vector<std::int32_t> table(extent.sequences * most);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i * 7 % count);
  using device_table = typename Device::template array<std::int32_t>;
  device_table far(table);
  auto options = usual_limits<kvmeld::compose::composed>();
  options.whole_plan = false;
  options.wave_tracks = 2;
  options.ledger_pages = {count, kvmeld::dense_places(kvmeld::table_rows(table.data(), most), page, extent)};
  for (auto how : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    composed_twins<Device> pair(device, composed_keepers(), 8, how, options);
    pair.device().rebind_pages(kvmeld::table_rows(static_cast<std::int32_t const*>(far.data()), most));
    pair.both([](auto& c) {
      c.open(0, 90, 0, kvmeld::sequence_id{4});
      c.open(1, 41, 16);
    });
    pair.observe(0, 16);
    pair.observe(1, 16);
    pair.both([](auto& c) { c.compress({0, 1}, kvmeld::budget::entries(37)); });
    for (std::uint32_t slot : {0u, 1u}) pair.check(slot);
    pair.check_attention(1);
    // Scores that travel: twice what they were, in every rank.
    std::size_t const columns = 48, numbers = extent.layers * extent.kv_heads *
                                              pair.host().ledger().channels.count * columns;
    std::vector<float> scores(numbers);
    typename Device::template array<float> far_scores(scores);
    pair.host().read_scores({0}, scores.data(), columns);
    pair.device().read_scores({0}, far_scores.data(), columns);
    pair.settle();
    CHECK(far_scores.get() == scores);
    for (float& x : scores) x *= 2.0f;
    far_scores.put(scores);
    pair.host().write_scores({0}, scores.data(), columns);
    pair.device().write_scores({0}, far_scores.data(), columns);
    pair.check(0);
    // A page that moves.
    pair.both([&](auto& c) { c.copy_page(static_cast<std::uint32_t>(table[most]), 22); });
    pair.settle();
    std::int32_t const was = table[most];
    table[most] = 22;
    far.put(table);
    pair.check(1);
    pair.check_attention(1);
    pair.both([](auto& c) {
      c.append({0, 1}, {19, 3});
      c.commit({0, 1}, {17, 3});
      c.truncate(0, c.tokens(0) - 2);
      c.fork(0, 2, 0, kvmeld::sequence_id{6});
    });
    pair.observe(2, 2);
    pair.both([](auto& c) {
      c.drop_positions(2, 20, 60);
      c.renumber(2);
      c.shift(0, 5);
      c.compress({0, 2}, kvmeld::budget::entries(22));
    });
    for (std::uint32_t slot : {0u, 1u, 2u}) pair.check(slot);
    pair.check_attention(2);
    auto const here = pair.host().save(2), there = pair.device().save(2);
    pair.both([](auto& c) { c.close(1); });
    pair.host().resume(1, there);
    pair.device().resume(1, here);
    CHECK(pair.device().save(1) == pair.host().save(1));
    pair.settle();
    table[most] = was;
    far.put(table);
  }
}

/// Scores that the engine brings, for two of three sequences, in half precision; later ones for one of them.
template <class Device> void given_scores(Device const& device) {
  made_for const now(two_layers);
  composed_twins<Device> pair(
      device,
      kvmeld::compose::composed_of(
          kvmeld::policy{kvmeld::score::given{},
                         kvmeld::select::top{kvmeld::quantity::entries(1), kvmeld::quantity::entries(2),
                                             kvmeld::quantity::rest_of_budget()},
                         kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}}),
      4);
  std::uint32_t const heads = two_layers.kv_heads, slots = two_layers.capacity;
  std::vector<kvmeld::float16> scores(std::size_t{2} * heads * slots);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = kvmeld::element_traits<kvmeld::float16>::from_float(static_cast<float>(i * 37 % 101) - 50.0f);
  typename Device::template array<kvmeld::float16> const far(scores);
  auto const rows = [&](kvmeld::float16 const* data) {
    return kvmeld::rows_by_head<kvmeld::float16 const>(data, 1, heads, slots);
  };
  pair.both([](auto& c) {
    c.open(0, 90);
    c.open(1, 60);
    c.open(2, 50);
  });
  for (std::uint32_t layer = 0; layer < two_layers.layers; ++layer) {
    pair.host().set_scores(layer, {2, 0}, rows(scores.data()));
    pair.device().set_scores(layer, {2, 0}, rows(far.data()));
  }
  pair.both([](auto& c) {
    c.compress({0, 1, 2}, kvmeld::budget::entries(40));
    c.append({0}, {6});
    c.commit({0}, {5});
  });
  for (std::uint32_t slot : {0u, 1u, 2u}) pair.check(slot);
  pair.host().set_scores(1, {0}, rows(scores.data()));
  pair.device().set_scores(1, {0}, rows(far.data()));
  pair.both([](auto& c) { c.compress({0}, kvmeld::budget::entries(20)); });
  pair.check(0);
}

/// Keys turn with their positions, merged ones too.
template <class Device> void shifts(Device const& device) {
  made_for const now(two_layers);
  for (auto pairing : {kvmeld::rope_pairing::half_split, kvmeld::rope_pairing::interleaved}) {
    composed_twins<Device> pair(device, composed_keepers(), 5);
    pair.both([](auto& c) { c.open(1, 90); });
    pair.observe(1, 8);
    pair.both([](auto& c) { c.compress({1}, kvmeld::budget::entries(40)); });
    kvmeld::rope_params rope;
    rope.pairing = pairing;
    pair.both([&](auto& c) { c.shift(1, 1000, rope, 2); });
    pair.check(1, 1);
    pair.both([&](auto& c) { c.shift(1, -30, {}, 2); });  // what turns already
    pair.check(1, 1);
    CHECK(pair.device().tokens(1) == 1060);
    pair.both([&](auto& c) { c.renumber(1, rope); });
    pair.check(1, 1);
    CHECK(pair.device().tokens(1) == 40);
  }
}

/// Ranges of positions go, and with them entries that others have merged into; back to a token before a gap.
template <class Device> void dropped_positions(Device const& device) {
  made_for const now(two_layers);
  auto sizes = usual_limits<kvmeld::compose::composed>();
  sizes.wave_tracks = 3;
  composed_twins<Device> pair(device, composed_keepers(), 6, kvmeld::tuning::off, sizes);
  pair.both([](auto& c) {
    c.open(0, 90, 2);
    c.open(1, 70);
    c.drop_positions(1, 10, 43);  // no entry has merged yet
  });
  CHECK(pair.device().lengths_known(1));
  CHECK(pair.device().length_bound(1) == 37);
  for (std::uint32_t slot : {0u, 1u}) pair.observe(slot, 8);
  pair.both([](auto& c) {
    c.compress({0}, kvmeld::budget::entries(50));
    c.append({0}, {9});
    c.commit({0}, {9});
    c.drop_positions(0, 30, 93);
    c.truncate(1, 30);
  });
  for (std::uint32_t slot : {0u, 1u}) pair.check(slot);
  pair.both([](auto& c) {
    c.shift(0, -63, {}, 93);
    c.truncate(0, 33);
    c.append({0, 1}, {4, 4});
    c.commit({0, 1}, {4, 3});
  });
  for (std::uint32_t slot : {0u, 1u}) pair.observe(slot, 2);
  pair.both([](auto& c) { c.compress({1, 0}, kvmeld::budget::entries(9)); });
  for (std::uint32_t slot : {0u, 1u}) pair.check(slot);
}

/// Heads of one length: the ledger's bytes are the host's, empty slots included.
template <class Device> void padded_tracks(Device const& device) {
  made_for const now(two_layers);
  auto sizes = usual_limits<kvmeld::compose::composed>();
  sizes.whole_plan = false;
  sizes.padded = true;
  for (auto const& policy : {composed_h2o(), composed_keepers()}) {
    composed_twins<Device> pair(device, policy, 7, kvmeld::tuning::off, sizes);
    pair.both([](auto& c) {
      c.open(0, 100, 2);
      c.open(2, 80);
    });
    for (std::uint32_t slot : {0u, 2u}) pair.observe(slot, 8);
    std::vector<std::uint32_t> table(extent.tracks());
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::size_t t = 0; t < table.size(); ++t)
        table[t] = static_cast<std::uint32_t>(26 + 9 * (t * 7 % 5) - 5 * i);
      pair.both([&](auto& c) {
        c.compress({2, 0}, kvmeld::budget::per_track(table.data()), kvmeld::shortfall::evict_lowest);
      });
      for (std::uint32_t slot : {0u, 2u}) pair.check(slot);
      pair.both([](auto& c) {
        c.append({0, 2}, {6, 3});
        c.commit({0, 2}, {4, 3});
      });
      for (std::uint32_t slot : {0u, 2u}) pair.observe(slot, 3);
      int const newer = static_cast<int>(80 + 3 * i);  // not compressed: both know how long tracks are then
      pair.both([&](auto& c) { c.drop_positions(2, newer, newer + 2); });
      pair.check(2);
    }
    for (std::uint32_t slot : {0u, 2u}) pair.check(slot);
    pair.check_attention(0);
  }
}

/// Notes beside pages, a sequence adopted from them, and the bias by page and by head.
template <class Device> void pages(Device const& device) {
  constexpr std::uint32_t page = 16, most = 7;
  made_for const now(two_layers);
  composed_twins<Device> pair(device, composed_keepers(), 9);
  // Two sequences' pages in no order; the third has those of the first.
  std::vector<std::int32_t> table(most * 3);
  for (std::uint32_t i = 0; i < 2 * most; ++i) table[i] = static_cast<std::int32_t>((i * 5 + 3) % (2 * most));
  std::copy_n(table.begin(), most, table.begin() + 2 * most);
  std::size_t const elements = std::size_t{2} * most * page * extent.layers * extent.kv_heads;
  std::vector<float> degrees(elements, -3.0f), bias(elements, 5.0f), rows(extent.slots() * 2, 5.0f);
  std::vector<kvmeld::position_t> positions(elements, -7);
  typename Device::template array<std::int32_t> const far_table(table);
  typename Device::template array<float> const far_degrees(degrees), far_bias(bias), far_rows(rows);
  typename Device::template array<kvmeld::position_t> const far_positions(positions);
  auto const notes_of = [&](std::int32_t const* entries, float* d, kvmeld::position_t* p) {
    return kvmeld::page_metadata<>{kvmeld::dense_places(kvmeld::table_rows(entries, most), page, extent), d,
                                   p};
  };
  auto const near = notes_of(table.data(), degrees.data(), positions.data());
  auto const far = notes_of(far_table.data(), far_degrees.data(), far_positions.data());
  pair.both([](auto& c) {
    c.open(0, 100);
    c.open(1, 50);
  });
  pair.observe(0, 8);
  // Both know the length then, and with it how many pages to write.
  pair.both([](auto& c) { c.compress({0}, kvmeld::budget::entries(37), kvmeld::shortfall::evict_lowest); });
  auto const write = [](auto& cache, auto const& notes, float* by_page, float* by_head) {
    cache.export_page_metadata({0, 1}, notes);
    kvmeld::attention::write_log_degree_by_page(cache.executor(), cache.ref(), {0, 1}, {37, 50}, notes.places,
                                                by_page);
    for (std::uint32_t heads : {1u, extent.queries_per_kv_head}) {
      std::size_t const first = heads == 1 ? 0 : extent.slots();
      kvmeld::attention::write_log_degree(
          cache.executor(), cache.ref(), 1, {0, 1},
          kvmeld::rows_by_head(by_head + first, 1, extent.kv_heads * heads, extent.capacity), heads);
    }
    cache.adopt(2, 37, 100, notes, kvmeld::sequence_id{8});
  };
  write(pair.host(), near, bias.data(), rows.data());
  write(pair.device(), far, far_bias.data(), far_rows.data());
  pair.check(2);
  CHECK(far_degrees.get() == degrees);
  CHECK(far_positions.get() == positions);
  auto const close = [](std::vector<float> const& got, std::vector<float> const& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  };
  close(far_bias.get(), bias);
  close(far_rows.get(), rows);
  CHECK(bias != std::vector<float>(elements, 5.0f));
}

/// Nothing held, one entry, everything full, rows that are no numbers; lengths that arrive in a report.
template <class Device> void extremes(Device const& device) {
  made_for const now(two_layers);
  composed_twins<Device> pair(device, composed_keepers(), 11);
  pair.both([](auto& c) {
    c.open(0, 0);
    c.open(1, 1);
    c.open(2, extent.capacity);
  });
  for (std::uint32_t slot : {1u, 2u}) pair.observe(slot, 1);
  pair.check_attention(0);
  pair.poison(kvmeld::make_track(extent, 1, 2, 1), 60);
  pair.both([](auto& c) {
    c.compress({1, 0, 2}, kvmeld::budget::entries(90), kvmeld::shortfall::evict_lowest);
    c.append({0, 1, 2}, {1, 0, 3});
    c.commit({0, 1, 2}, {0, 0, 3});
    c.plan({0, 1}, kvmeld::budget::entries(1));
    c.apply();
    c.compress({2}, kvmeld::budget::entries(8));
  });
  pair.device().request_lengths();
  pair.settle();
  pair.device().poll_lengths();
  for (std::uint32_t slot : {0u, 1u, 2u}) {
    CHECK(pair.device().length_bound(slot) == pair.host().longest(slot));
    pair.check(slot);
  }
  CHECK(pair.host().warnings(2) != kvmeld::warning::none);
  pair.check_attention(1);
}

/// A device that holds more than the host believes: what does not fit is left out and told.
template <class Device> void overfull_tracks(Device const& device) {
  made_for const now(two_layers);
  composed_twins<Device> pair(device, composed_h2o(), 13);
  auto& cache = pair.device();
  cache.open(0, 100);
  std::vector<std::uint32_t> longer(extent.tracks(), 110);
  cache.executor().upload(cache.ledger().length, longer.data(), longer.size() * sizeof(std::uint32_t));
  cache.append({0}, {5});
  cache.sync_lengths(0);
  CHECK(cache.warnings(0) == kvmeld::warning::overfull);
  CHECK(cache.longest(0) == extent.capacity);
}

}  // namespace device_test
