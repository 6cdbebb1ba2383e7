// Every public call of a cache, made once for each of its allocations with that allocation failing.
#pragma once

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "faults/failing_new.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace faults {

inline constexpr kvmeld::shape extent{2, 3, 2, 2, 16, 8, 80};
inline constexpr std::uint32_t members = 70;
using kvmeld::budget;

// An engine's tensors and a cache over them. Copies are deep, and the copy's executor has no scratch yet.
template <class Executor, class Policy> struct subject {
  using memory_type = support::engine_memory<float>;
  using tensors_type = decltype(std::declval<memory_type&>().tensors());
  using cache_type =
      kvmeld::merged_cache<Executor, Policy, decltype(tensors_type::keys), decltype(tensors_type::values)>;

  subject(Executor const& executor, Policy const& policy, kvmeld::cache_options const& options)
      : memory(extent), cache(executor, policy, memory.tensors(), options) {}
  subject(subject const& other) : memory(other.memory), cache(other.cache.clone(memory.tensors())) {}
  subject& operator=(subject const&) = delete;

  memory_type memory;
  cache_type cache;
};

// All that a caller can see of a cache, and all that it would save.
struct state {
  support::byte_list keys, values;
  std::vector<std::vector<std::byte>> saved;
  std::vector<std::uint32_t> told;

  template <class Subject> explicit state(Subject const& s) {
    keys = support::bytes_of(s.memory.keys);
    values = support::bytes_of(s.memory.values);
    auto const& c = s.cache;
    for (std::uint32_t slot = 0; slot < extent.sequences; ++slot) {
      try {
        saved.push_back(c.save(slot));
      } catch (kvmeld::invalid_argument const&) {
        saved.emplace_back();  // not open
      }
      told.insert(told.end(),
                  {c.length_bound(slot), c.longest(slot), c.tokens(slot), c.warnings(slot), c.rounds(slot),
                   c.compressed_at(slot), static_cast<std::uint32_t>(c.entries(slot))});
    }
    told.push_back(c.planned_work().sequence_count);
  }
  bool operator==(state const& other) const {
    return keys == other.keys && values == other.values && saved == other.saved && told == other.told;
  }
};

struct outcome {
  std::size_t calls = 0, failures = 0;
};

// Makes call(subject) on copies of `before` until no allocation fails. A call that fails leaves everything as
// it was, and does what it does when it is made again.
template <class Subject, class Call>
void every_allocation(outcome& sum, char const* name, Subject const& before, Call call) {
  CAPTURE(std::string(name));
  state const was(before);
  Subject smooth(before);
  call(smooth);
  state const expected(smooth);
  ++sum.calls;
  for (std::int64_t n = 1;; ++n) {
    CAPTURE(n);
    REQUIRE(n < 500);
    Subject one(before);
    bool failed = false, over = false;
    {
      failing_allocation const fault(n);
      try {
        call(one);
      } catch (std::bad_alloc const&) {
        failed = true;
      } catch (kvmeld::invalid_argument const& refusal) {
        failed = true;
        CHECK(std::string(refusal.what()).find("no more than the executor can allocate") !=
              std::string::npos);
      }
      over = fault.waits();
    }
    if (failed) {
      ++sum.failures;
      CHECK(state(one) == was);
      call(one);
    }
    CHECK(state(one) == expected);
    if (over) break;
  }
}

// Rows of attention, queries and their log-sum-exps for one layer; outside of what fails.
struct attention_given {
  attention_given() {
    support::dice d(8);
    for (float& x : p) x = static_cast<float>(d.uniform()) * 0.1f;
    for (float& x : q) x = static_cast<float>(d.normal());
    for (float& x : lse) x = static_cast<float>(4 + d.uniform());
  }
  static constexpr std::uint32_t rows = 3, tokens = extent.capacity + members;
  std::vector<float> p = std::vector<float>(2 * extent.query_heads() * rows * tokens);
  std::vector<float> q = std::vector<float>(2 * rows * extent.query_heads() * extent.key_dim);
  std::vector<float> lse = std::vector<float>(2 * rows * extent.query_heads());
  std::vector<float> out = std::vector<float>(2 * rows * extent.query_heads() * extent.value_dim);
  auto probabilities() const {
    return kvmeld::rows_by_head<float const>(p.data(), rows, extent.query_heads(), tokens);
  }
  auto queries() const {
    return kvmeld::rows_by_token<float const>(q.data(), rows, extent.query_heads(), extent.key_dim);
  }
  auto sums() const { return kvmeld::rows_by_head<float const>(lse.data(), rows, extent.query_heads(), 1); }
  auto outputs() { return kvmeld::rows_by_token(out.data(), rows, extent.query_heads(), extent.value_dim); }
};

inline kvmeld::cache_options usual_limits(bool shares) {
  kvmeld::cache_options options{extent};
  options.whole_plan = true;
  options.members = shares ? members : 0;
  return options;
}

// Two sequences that have seen attention; the second has entries pending.
template <class Executor, class Policy>
subject<Executor, Policy> lived(Executor const& executor, Policy const& policy,
                                kvmeld::cache_options const& options) {
  subject<Executor, Policy> s(executor, policy, options);
  support::dice d(3);
  for (std::uint32_t q : {0u, 1u}) s.memory.fill_sequence(d, q, 0, 70, support::texture::walk);
  attention_given given;
  s.cache.open(0, 60, 2, kvmeld::sequence_id{5});
  s.cache.open(1, 50);
  std::uint32_t const slots[] = {0, 1}, rows[] = {3, 3};
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
    s.cache.observe_rows({layer, {slots, 2}, {rows, 2}}, given.probabilities());
  s.cache.append({1}, {4});
  return s;
}

template <class Executor, class Policy>
void every_call(outcome& sum, Executor const& executor, Policy const& policy,
                kvmeld::cache_options const& options) {
  using kvmeld::shortfall;
  using subject_type = subject<Executor, Policy>;
  constexpr bool shares = subject_type::cache_type::shares;
  subject_type const start = lived(executor, policy, options);
  attention_given given;
  std::uint32_t const slots[] = {0, 1}, rows[] = {3, 2};
  kvmeld::query_batch const batch{1, {slots, 2}, {rows, 2}}, first{0, {slots, 1}, {rows, 1}};
  auto const each = [&](char const* name, subject_type const& from, auto call) {
    every_allocation(sum, name, from, [&](subject_type& s) { call(s.cache); });
  };

  each("compress, evicting nothing", start,
       [](auto& c) { c.compress({0}, budget::entries(25), shortfall::keep); });
  each("compress", start, [](auto& c) { c.compress({0}, budget::ratio(0.4)); });
  each("append to a full sequence", start,
       [](auto& c) { c.append({0}, {30}, kvmeld::when_full{budget::entries(25)}); });
  if (!options.padded) {
    each("plan", start, [](auto& c) { c.plan({0}, budget::entries(30)); });
    subject_type planned(start);
    planned.cache.plan({0}, budget::entries(30));
    each("apply", planned, [](auto& c) { c.apply(); });
    each("plan anew", planned, [](auto& c) { c.plan({0}, budget::entries(28)); });
    each("compress with a plan made", planned, [](auto& c) { c.compress({0}, budget::entries(25)); });
  }
  if (options.budgets_over != kvmeld::budget_scope::head) {
    each("compress, budgets shared", start,
         [&](auto& c) { c.compress({0}, budget::entries(25).over(options.budgets_over, 0.3)); });
  }

  each("open", start, [](auto& c) { c.open(2, 20, 3, kvmeld::sequence_id{1}); });
  each("append", start, [](auto& c) { c.append({0, 1}, {2, 3}); });
  each("commit", start, [](auto& c) { c.commit({1}, {2}); });
  each("fork", start, [](auto& c) { c.fork(0, 2, 3, kvmeld::sequence_id{4}); });
  each("truncate", start, [](auto& c) { c.truncate(0, 40); });
  each("drop_positions", start, [](auto& c) { c.drop_positions(0, 20, 40); });
  subject_type gapped(start);
  gapped.cache.drop_positions(0, 20, 40);
  each("truncate to before a gap", gapped, [](auto& c) { c.truncate(0, 30); });
  each("freeze", start, [](auto& c) { c.freeze(0, 1); });
  std::vector<float> exchanged(extent.layers * extent.kv_heads * start.cache.ledger().channels.count *
                               extent.capacity);
  each("read_scores", start, [&](auto& c) { c.read_scores({0}, exchanged.data(), extent.capacity); });
  each("write_scores", start, [&](auto& c) { c.write_scores({0}, exchanged.data(), extent.capacity); });
  if (options.ledger_pages.count != 0) each("copy_page", start, [](auto& c) { c.copy_page(0, 15); });
  each("close", start, [](auto& c) { c.close(0); });
  each("set_rounds", start, [](auto& c) { c.set_rounds(0, 2); });
  each("sync_lengths", start, [](auto& c) { c.sync_lengths(0); });
  each("reports", start, [](auto& c) {
    c.request_lengths();
    while (!c.poll_lengths()) {}
  });
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  each("shift", start, [&](auto& c) { c.shift(0, 100, rope, 2); });
  if constexpr (!shares) {
    subject_type gaps(start);
    gaps.cache.compress({0}, budget::entries(25));
    gaps.cache.freeze(0, 0);
    each("renumber", gaps, [&](auto& c) { c.renumber(0, rope); });
  }
  std::vector<std::byte> const bytes = start.cache.save(0);
  each("save", start, [](auto& c) { c.save(0); });
  each("resume", start, [&](auto& c) { c.resume(2, {bytes.data(), bytes.size()}); });
  if (options.stats) {
    each("figures", start, [](auto& c) {
      c.request_stats({0, 1});
      while (!c.stats_ready()) {}
    });
  }
  each("rebind", start, [&](auto& c) {
    auto const tensors = kvmeld::kv{c.ref().keys, c.ref().values};
    c.rebind(tensors);
  });
  each("a copy", start, [](auto& c) {
    auto copy = support::twin_of(c);
    c = std::move(copy);
  });

  each("observe_rows", start, [&](auto& c) { c.observe_rows(first, given.probabilities()); });
  each("observe", start, [&](auto& c) { c.observe(first, given.queries(), given.sums()); });
  each("extend", start, [&](auto& c) {
    kvmeld::attention::attend(c.executor(), batch, given.queries(), c.ref(), given.outputs());
  });
  if constexpr (!shares) {
    std::vector<float> const degrees(20, 2.0f);
    std::vector<kvmeld::position_t> positions;
    for (kvmeld::position_t i = 0; i < 20; ++i) positions.push_back(3 * i);
    each("adopt", start, [&](auto& c) {
      c.adopt(2, 20, 60, kvmeld::entry_metadata{degrees.data(), positions.data(), {}});
    });
    std::vector<std::int32_t> pages;  // [sequences][pages of 16 tokens], each its own
    for (std::int32_t page = 0; page < 5 * std::int32_t{extent.sequences}; ++page) pages.push_back(page);
    kvmeld::page_table<std::int32_t> const table{pages.data(), 5};
    std::size_t const noted = pages.size() * 16 * extent.layers * extent.kv_heads;
    std::vector<float> degree_notes(noted);
    std::vector<kvmeld::position_t> position_notes(noted);
    each("export_page_metadata", start, [&](auto& c) {
      c.export_page_metadata({0}, kvmeld::page_metadata<>{kvmeld::dense_places(table, 16, extent),
                                                          degree_notes.data(), position_notes.data()});
    });
    auto const split_memory =
        std::make_shared<std::vector<float>>(kvmeld::attention::split_floats(extent, 2, 2, 3));
    each("extend, keys split", start, [&](auto& c) {
      kvmeld::attention::attend(c.executor(), batch, given.queries(), c.ref(), given.outputs(), {}, {},
                                {2, {split_memory->data(), split_memory->size()}});
    });
    std::vector<float> kept(kvmeld::attention::observed_floats(extent, 2, 3));
    each("attend_and_observe", start, [&](auto& c) {
      kvmeld::attention::attend_and_observe(c, first, given.queries(), given.outputs(),
                                            {kept.data(), kept.size()});
    });
    std::vector<float> bias(2 * extent.kv_heads * extent.capacity);
    each("write_log_degree", start, [&](auto& c) {
      kvmeld::attention::write_log_degree(
          c.executor(), c.ref(), 1, {slots, 2},
          kvmeld::rows_by_head(bias.data(), 1, extent.kv_heads, extent.capacity));
    });
  }
}

}  // namespace faults
