// A million random calls on small caches against a naive model of the ledger.
#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "reference/ledger_model.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"

namespace random_lifecycle_cases {

namespace {

using kvmeld::budget;
using slots = std::vector<std::uint32_t>;

constexpr kvmeld::shape extent{1, 4, 2, 1, 4, 2, 20};

enum class kind { streaming, h2o, chelsea };
constexpr std::uint32_t sinks = 2;

template <kind Kind, class Policy> class life {
public:
  life(Policy const& policy, std::uint64_t seed)
      : cache(support::make_cache(memory, policy, support::with_plan())), d(seed), model(extent.sequences) {}

  void step(std::size_t number) {
    at = number;
    std::uint32_t const q = d.below(extent.sequences);
    auto& m = model[q];
    if (!m.open) {
      d.chance(0.4) ? open(q) : d.chance(0.7) ? fork(q) : refuse(q);
    } else {
      std::uint32_t const what = d.below(100);
      if (what < 40) {
        append(q);
      } else if (what < 62) {
        commit(q, d.below(m.pending + 1));
      } else if (what < 78) {
        compress(q);
      } else if (what < 84) {
        truncate(q);
      } else if (what < 88) {
        save_and_resume(q);
      } else if (what < 92) {
        freeze(q);
      } else if (what < 98) {
        refuse(q);
      } else {
        close(q);
      }
    }
    if (number % 64 == 0) {
      for (std::uint32_t other = 0; other < extent.sequences; ++other) check(other);
    } else {
      check(q);
    }
  }
  std::size_t refusals = 0, compressions = 0;

private:
  [[noreturn]] void wrong(std::string const& what) const {
    throw std::runtime_error("call " + std::to_string(at) + ": " + what);
  }
  template <class F> void must_refuse(char const* what, F call) {
    try {
      call();
    } catch (kvmeld::invalid_argument const&) {
      ++refusals;
      return;
    }
    wrong(std::string("not refused: ") + what);
  }
  static kvmeld::track where(std::uint32_t q, std::size_t head) {
    return kvmeld::make_track(extent, 0, q, static_cast<std::uint32_t>(head));
  }
  static float name_as_value(int token) { return static_cast<float>(token % 512); }

  // Rows of new tokens at slot `first[head]` on: random keys, values that tell the token.
  void write(std::uint32_t q, std::vector<int> const& names) {
    auto const x = cache.ref();
    for (std::size_t head = 0; head < extent.kv_heads; ++head) {
      auto slot = static_cast<std::uint32_t>(model[q].tracks[head].size());
      for (int name : names) {
        std::uint64_t bits = d.next();
        for (std::uint32_t c = 0; c < extent.key_dim; ++c, bits >>= 8)
          x.keys.locate(where(q, head), slot).base[c] = static_cast<float>(bits & 255) - 127.0f;
        x.values.locate(where(q, head), slot).base[0] = name_as_value(name);
        x.values.locate(where(q, head), slot).base[1] = 1.0f;
        ++slot;
      }
    }
  }
  // What an engine does to rows [0, n) of another sequence.
  void copy_rows(std::uint32_t from, std::uint32_t to, std::size_t n) {
    auto const x = cache.ref();
    for (std::size_t head = 0; head < extent.kv_heads; ++head) {
      for (std::uint32_t s = 0; s < kvmeld::min_of(n, model[from].tracks[head].size()); ++s) {
        for (std::uint32_t c = 0; c < extent.key_dim; ++c)
          x.keys.locate(where(to, head), s).base[c] = x.keys.locate(where(from, head), s).base[c];
        for (std::uint32_t c = 0; c < extent.value_dim; ++c)
          x.values.locate(where(to, head), s).base[c] = x.values.locate(where(from, head), s).base[c];
      }
    }
  }
  // Scores of the last `n` committed entries, few enough that ties are common.
  void score(std::uint32_t q, std::uint32_t n) {
    if (Kind != kind::h2o) return;
    kvmeld::ledger_ref const& l = cache.ledger();
    for (std::size_t head = 0; head < extent.kv_heads; ++head) {
      auto& t = model[q].tracks[head];
      for (std::size_t s = t.size() - n; s < t.size(); ++s) {
        t[s].score = d.below(6);
        l.channel_data[0][l.at(where(q, head), static_cast<std::uint32_t>(s))] =
            static_cast<float>(t[s].score);
      }
      l.word(where(q, head), kvmeld::track_word::observed_rows) = 1;
    }
  }
  std::vector<int> new_names(std::uint32_t n) {
    std::vector<int> out;
    for (std::uint32_t i = 0; i < n; ++i) out.push_back(next_name++);
    return out;
  }

  void open(std::uint32_t q) {
    auto& m = model[q];
    m = {};
    m.open = true;
    m.tracks.resize(extent.kv_heads);
    std::uint32_t const n = d.below(extent.capacity + 1);
    auto const names = new_names(n);
    write(q, names);
    m.append(names);
    m.commit(n);
    m.frozen = d.chance(0.3) ? d.below(n + 1) : 0;
    cache.open(q, n, m.frozen, q);
    score(q, n);
  }
  void close(std::uint32_t q) {
    cache.close(q);
    model[q] = {};
  }
  void append(std::uint32_t q) {
    std::uint32_t const room = extent.capacity - model[q].longest();
    std::uint32_t const n = d.below(kvmeld::min_of(room, 4u) + 1);
    auto const names = new_names(n);
    bool const late = d.chance(0.5);
    if (late) cache.append({q}, {n});
    write(q, names);
    if (!late) cache.append({q}, {n});
    model[q].append(names);
  }
  void commit(std::uint32_t q, std::uint32_t accepted) {
    cache.commit({q}, {accepted});
    model[q].commit(accepted);
    score(q, accepted);
  }
  void truncate(std::uint32_t q) {
    auto& m = model[q];
    if (m.pending != 0) commit(q, d.below(m.pending + 1));
    std::uint32_t const tokens = m.lowest() + d.below(m.seen - m.lowest() + 1);
    cache.truncate(q, tokens);
    m.truncate(tokens);
  }
  void freeze(std::uint32_t q) {
    model[q].frozen = d.below(model[q].shortest() + 1) / 2;
    cache.freeze(q, model[q].frozen);
  }
  void fork(std::uint32_t into) {
    for (std::uint32_t from = 0; from < extent.sequences; ++from) {
      if (!model[from].open) continue;
      if (model[from].pending != 0) {
        must_refuse("fork of pending entries", [&] { cache.fork(from, into); });
        continue;
      }
      auto const frozen = d.chance(0.4) ? d.below(model[from].shortest() + 1) / 2 : 0;
      bool const copies = d.chance(0.6);
      cache.fork(from, into, into, frozen, copies ? kvmeld::fork_rows::copy : kvmeld::fork_rows::shared);
      copy_rows(from, into, copies ? frozen : extent.capacity);
      model[from].frozen = kvmeld::max_of(model[from].frozen, unsigned{frozen});
      model[into] = model[from];
      model[into].frozen = frozen;
      check(from);
      return;
    }
  }
  void save_and_resume(std::uint32_t q) {
    auto const bytes = cache.save(q);
    std::uint32_t to = d.below(extent.sequences);
    if (to != q && model[to].open) to = q;
    must_refuse("resume into an open slot", [&] { cache.resume(q, bytes); });
    auto broken = bytes;
    broken[d.below(static_cast<std::uint32_t>(broken.size()))] ^= std::byte{4};
    cache.close(q);
    must_refuse("changed bytes", [&] { cache.resume(to, broken); });
    if (to != q) copy_rows(q, to, extent.capacity);
    cache.resume(to, bytes);
    if (to != q) {
      model[to] = model[q];
      model[q] = {};
      check(to);
    }
  }
  void refuse(std::uint32_t q) {
    auto const& m = model[q];
    if (!m.open) {
      must_refuse("close", [&] { cache.close(q); });
      must_refuse("append", [&] { cache.append({q}, {1}); });
      must_refuse("open beyond capacity", [&] { cache.open(q, extent.capacity + 1); });
      return;
    }
    must_refuse("open", [&] { cache.open(q); });
    must_refuse("commit", [&] { cache.commit({q}, {m.pending + 1}); });
    must_refuse("append", [&] { cache.append({q}, {extent.capacity - m.longest() + 1}); });
    must_refuse("fork into itself", [&] { cache.fork(q, q); });
    must_refuse("freeze", [&] { cache.freeze(q, m.shortest() + 1); });
    must_refuse("truncate up", [&] { cache.truncate(q, m.seen + 1); });
    if (m.lowest() > 0) must_refuse("truncate down", [&] { cache.truncate(q, m.lowest() - 1); });
    if (m.pending != 0) must_refuse("compress", [&] { cache.compress({q}, budget::entries(9)); });
  }

  // Least budget that is not refused for a track above it.
  std::uint32_t least(std::uint32_t q) const {
    std::uint32_t const frozen = model[q].frozen;
    if (Kind == kind::streaming) return kvmeld::max_of(frozen, sinks);
    if (Kind == kind::h2o) return kvmeld::max_of(1u, 2 * frozen);  // half of it is recent
    return kvmeld::max_of(frozen, sinks) + 2 + 1;
  }
  void compress(std::uint32_t q) {
    slots list;
    std::vector<std::uint32_t> table(extent.tracks(), extent.capacity);
    for (std::uint32_t other = 0; other < extent.sequences; ++other) {
      auto const& m = model[other];
      if (!m.open || m.pending != 0 || (other != q && d.chance(0.7))) continue;
      list.push_back(other);
      for (std::size_t head = 0; head < extent.kv_heads; ++head)
        table[where(other, head).index] = least(other) + d.below(extent.capacity - 4);
    }
    if (list.empty()) return;
    ++compressions;
    auto const allowed = budget::per_track(table.data());
    if (Kind == kind::chelsea) {
      merge(list, allowed);
      return;
    }
    if (d.chance(0.2)) {
      cache.plan(list, allowed);
      cache.apply();
    } else {
      cache.compress(list, allowed);
    }
    for (std::uint32_t other : list) {
      auto& m = model[other];
      bool changed = false;
      for (std::size_t head = 0; head < extent.kv_heads; ++head) {
        std::uint32_t const limit = table[where(other, head).index];
        changed = m.evict(head, Kind == kind::streaming
                                    ? reference::streaming_keeps(m.tracks[head], m.frozen, sinks, limit)
                                    : reference::h2o_keeps(m.tracks[head], m.frozen, limit)) ||
                  changed;
      }
      if (changed) m.compressed_at = m.seen;
      check(other);
    }
  }
  // Round by round, so that the plan tells what became of every entry; now and then a copy of the sequence all at once.
  void merge(slots const& list, budget allowed) {
    std::uint32_t copy = extent.sequences;
    for (std::uint32_t other = 0; other < extent.sequences; ++other) {
      if (!model[other].open && d.chance(0.3)) copy = other;
    }
    if (copy < extent.sequences) cache.fork(list[0], copy, 0, 0);
    if (copy < extent.sequences) cache.freeze(copy, model[list[0]].frozen);
    for (bool more = true; more;) {
      more = false;
      cache.plan(list, allowed);
      auto const& plan = cache.current_plan();
      for (std::uint32_t item = 0; item < cache.planned_work().tracks(extent); ++item) {
        kvmeld::track const t = cache.planned_work().at(extent, item);
        auto& m = model[t.sequence];
        std::vector<int> target;
        for (std::uint32_t s = 0; s < m.tracks[t.kv_head].size(); ++s) {
          auto const what = plan.what[plan.at(item, s)];
          if (s < m.frozen && what != kvmeld::fate::keep) wrong("a frozen entry goes");
          target.push_back(what == kvmeld::fate::drop ? -1 : static_cast<int>(plan.target[plan.at(item, s)]));
        }
        if (m.merge(t.kv_head, target)) {
          m.compressed_at = m.seen;
          more = true;
        }
      }
      cache.apply();
    }
    for (std::uint32_t other : list) check(other);
    if (copy == extent.sequences) return;
    std::vector<std::uint32_t> table(extent.tracks());
    for (std::size_t head = 0; head < extent.kv_heads; ++head)
      table[where(copy, head).index] = allowed.resolve(where(list[0], head), 0);
    cache.compress({copy}, budget::per_track(table.data()));
    for (std::size_t head = 0; head < extent.kv_heads; ++head) {
      auto const a = where(list[0], head), b = where(copy, head);
      auto const& l = cache.ledger();
      if (l.length[a.index] != l.length[b.index]) wrong("rounds and compress leave other lengths");
      for (std::uint32_t s = 0; s < l.length[a.index]; ++s) {
        if (l.degree[l.at(a, s)] != l.degree[l.at(b, s)] || l.position[l.at(a, s)] != l.position[l.at(b, s)])
          wrong("rounds and compress leave other entries");
      }
    }
    cache.close(copy);
  }

  void check(std::uint32_t q) const {
    auto const& m = model[q];
    kvmeld::ledger_ref const& l = cache.ledger();
    if ((l.is_open[q] != 0) != m.open) wrong("open");
    if (!m.open) return;
    if (l.seen[q] != m.seen || l.pending[q] != m.pending) wrong("tokens");
    if (l.frozen[q] != m.frozen) wrong("frozen");
    if (cache.compressed_at(q) != m.compressed_at) wrong("compressed_at");
    if (cache.longest(q) != m.longest() || cache.length_bound(q) != m.longest()) wrong("longest");
    auto const x = cache.ref();
    for (std::size_t head = 0; head < extent.kv_heads; ++head) {
      kvmeld::track const t = where(q, head);
      auto const& track = m.tracks[head];
      if (l.length[t.index] != track.size()) wrong("length");
      for (std::uint32_t s = 0; s < extent.capacity; ++s) {
        std::size_t const i = l.at(t, s);
        if (s >= track.size()) {
          if (l.degree[i] != 0.0f) wrong("an empty slot has a degree");
          continue;
        }
        auto const& e = track[s];
        if (l.position[i] != e.position) wrong("position");
        if (l.degree[i] != static_cast<float>(e.tokens.size())) wrong("degree");
        if (Kind == kind::h2o && static_cast<double>(l.channel_data[0][i]) != e.score) wrong("score");
        double sum = 0;
        for (int name : e.tokens) sum += static_cast<double>(name_as_value(name));
        float const* const v = x.values.locate(t, s).base;
        if (std::fabs(static_cast<double>(v[0]) - sum / static_cast<double>(e.tokens.size())) > 1e-2)
          wrong("value");
        if (std::fabs(v[1] - 1.0f) > 1e-4f) wrong("weights");
      }
    }
  }

  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, std::declval<Policy>())) cache;
  support::dice d;
  std::vector<reference::model_sequence> model;
  std::size_t at = 0;
  int next_name = 0;
};

template <kind Kind, class Policy> void lives(Policy const& policy, std::uint32_t calls) {
  calls = support::long_life(calls);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    life<Kind, Policy> one(policy, seed);
    std::string failure;
    try {
      for (std::size_t i = 0; i < calls / 4; ++i) one.step(i);
    } catch (std::exception const& e) {
      failure = e.what();
    }
    CHECK(failure == "");
    CHECK(one.refusals > calls / 200);
    CHECK(one.compressions > calls / 200);
  }
}

}  // namespace

TEST_CASE("random lives: StreamingLLM") {
  lives<kind::streaming>(kvmeld::preset::streaming_llm::with_sinks(sinks), 400000);
}

TEST_CASE("random lives: H2O") { lives<kind::h2o>(kvmeld::preset::h2o::halves(), 400000); }

TEST_CASE("random lives: Chelsea") {
  auto policy = kvmeld::preset::chelsea::with_schedule({0.4, 0.0, 0, 0.05}, kvmeld::quantity::entries(sinks),
                                                       kvmeld::quantity::entries(2));
  policy.identify.chunk = 6;
  lives<kind::chelsea>(policy, 200000);
}

}  // namespace random_lifecycle_cases
