// A small cache that lives through random calls beside a naive model of its ledger.
#pragma once

#include <kvmeld/testing.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reference/ledger_model.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace support {

/// How much the model knows of what a policy does.
enum class shadow {
  streaming,  ///< StreamingLLM: which entries stay
  h2o,        ///< H2O's halves: which entries stay, and every score
  chelsea,    ///< the plan tells which entries merge; values are means of tokens
  any         ///< no more than the promises that hold of every policy
};

/// Sinks of the policies that the model of `streaming` and `chelsea` knows.
inline constexpr std::uint32_t shadowed_sinks = 2;

/// What is random, from a seed (dice) or from a fuzzer's bytes. Throws std::runtime_error where cache and
/// model differ.
template <class Memory, class Policy, class Choices> class shadowed_life {
public:
  shadowed_life(Memory rows_in, Policy const& policy, shadow known, Choices choices,
                std::uint64_t seed_of_rows)
      : extent(rows_in.extent),
        kind(known),
        memory(std::move(rows_in)),
        cache(kvmeld::host_executor(1), policy, memory.tensors(), options(extent)),
        d(choices),
        noise(seed_of_rows),
        model(extent.sequences) {}

  /// One call, with arguments that are right or wrong.
  void step(std::size_t number) {
    at = number;
    std::uint32_t const q = d.below(extent.sequences);
    auto& m = model[q];
    if (!m.open) {
      std::uint32_t const what = d.below(100);
      what < 40 ? open(q) : what < 82 ? fork(q) : refuse(q);
    } else {
      std::uint32_t const what = d.below(100);
      if (what < 37) {
        append(q);
      } else if (what < 56) {
        commit(q, d.below(m.pending + 1));
      } else if (what < 73) {
        compress(q);
      } else if (what < 79) {
        truncate(q);
      } else if (what < 82) {
        save_and_resume(q);
      } else if (what < 85) {
        freeze(q);
      } else if (what < 89) {
        observe(q);
      } else if (what < 91) {
        shift(q);
      } else if (what < 93) {
        renumber(q);
      } else if (what < 95) {
        drop_positions(q);
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
  bool more() const { return !d.empty(); }
  std::size_t refusals = 0, compressions = 0;

private:
  using slots = std::vector<std::uint32_t>;
  using budget = kvmeld::budget;

  static kvmeld::cache_options options(kvmeld::shape const& s) {
    kvmeld::cache_options out =
        with_plan(kvmeld::shares_entries<typename Policy::merge_type>::value ? 3 * s.capacity : 0);
    out.extent = s;
    return out;
  }

  [[noreturn]] void wrong(std::string const& what) const {
    throw std::runtime_error("call " + std::to_string(at) + ": " + what);
  }
  byte_list everything() const {
    byte_list out = ledger_bytes(cache), tensors = memory.bytes();
    out.insert(out.end(), tensors.begin(), tensors.end());
    return out;
  }
  // False if the call was refused, which may change nothing.
  template <class F> bool accepted(char const* what, F call) {
    byte_list const before = everything();
    try {
      call();
      return true;
    } catch (kvmeld::invalid_argument const&) {
      ++refusals;
    }
    if (everything() != before) wrong(std::string("refused, but something changed: ") + what);
    return false;
  }
  template <class F> void must_refuse(char const* what, F call) {
    if (accepted(what, call)) wrong(std::string("not refused: ") + what);
  }

  std::uint32_t tracks() const { return extent.layers * extent.kv_heads; }
  // The i-th track of a sequence.
  kvmeld::track where(std::uint32_t q, std::size_t i) const {
    auto const n = static_cast<std::uint32_t>(i);
    return kvmeld::make_track(extent, n / extent.kv_heads, q, n % extent.kv_heads);
  }
  static float name_as_value(int token) { return static_cast<float>(token % 512); }
  static float& element(kvmeld::segment<float> const& row, std::uint32_t c) {
    return row.base[std::int64_t{c} * row.channel_stride];
  }

  // Rows of new tokens at slot `first[track]` on: random keys, values that tell the token.
  void write(std::uint32_t q, std::vector<int> const& names) {
    auto const x = cache.ref();
    for (std::size_t i = 0; i < tracks(); ++i) {
      auto slot = static_cast<std::uint32_t>(model[q].tracks[i].size());
      for (int name : names) {
        std::uint64_t bits = noise.next();
        for (std::uint32_t c = 0; c < extent.key_dim; ++c, bits >>= 8)
          element(x.keys.locate(where(q, i), slot), c) = static_cast<float>(bits & 255) - 127.0f;
        element(x.values.locate(where(q, i), slot), 0) = name_as_value(name);
        element(x.values.locate(where(q, i), slot), 1) = 1.0f;
        ++slot;
      }
    }
  }
  // What an engine does to rows [0, n) of another sequence.
  void copy_rows(std::uint32_t from, std::uint32_t to, std::size_t n) {
    auto const x = cache.ref();
    for (std::size_t i = 0; i < tracks(); ++i) {
      for (std::uint32_t s = 0; s < kvmeld::min_of(n, model[from].tracks[i].size()); ++s) {
        for (std::uint32_t c = 0; c < extent.key_dim; ++c)
          element(x.keys.locate(where(to, i), s), c) = element(x.keys.locate(where(from, i), s), c);
        for (std::uint32_t c = 0; c < extent.value_dim; ++c)
          element(x.values.locate(where(to, i), s), c) = element(x.values.locate(where(from, i), s), c);
      }
    }
  }
  // Scores of the last `n` committed entries, few enough that ties are common.
  void score(std::uint32_t q, std::uint32_t n) {
    if (kind != shadow::h2o && kind != shadow::any) return;
    kvmeld::ledger_ref const& l = cache.ledger();
    for (std::size_t i = 0; i < tracks(); ++i) {
      auto& t = model[q].tracks[i];
      for (std::size_t s = t.size() - n; s < t.size(); ++s) {
        t[s].score = noise.below(6);
        for (std::uint32_t c = 0; c < l.channels.count; ++c)
          l.channel_data[c][l.at(where(q, i), static_cast<std::uint32_t>(s))] =
              static_cast<float>(t[s].score);
      }
      l.word(where(q, i), kvmeld::track_word::observed_rows) = 1;
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
    m.tracks.resize(tracks());
    std::uint32_t const n = d.below(extent.capacity + 1);
    auto const names = new_names(n);
    write(q, names);
    m.append(names);
    m.commit(n);
    m.frozen = d.chance(0.3) ? d.below(n + 1) : 0;
    cache.open(q, n, m.frozen, kvmeld::sequence_id{q});
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
  void commit(std::uint32_t q, std::uint32_t count) {
    cache.commit({q}, {count});
    model[q].commit(count);
    score(q, count);
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
      cache.fork(from, into, frozen, kvmeld::sequence_id{into},
                 copies ? kvmeld::fork_rows::copy : kvmeld::fork_rows::shared);
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
  // Attention of the last tokens, in eighths, so that sums are exact.
  void observe(std::uint32_t q) {
    auto& m = model[q];
    std::uint32_t const n = kvmeld::min_of(1 + d.below(3), m.shortest());
    std::uint32_t const heads = extent.query_heads(), width = 4 * extent.capacity;  // members too
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      std::vector<float> p(std::size_t{n} * heads * width);
      for (float& x : p) x = static_cast<float>(noise.below(9)) / 8;
      bool const taken = accepted("observe_rows", [&] {
        cache.observe_rows({layer, q, n}, kvmeld::rows_by_head<float const>(p.data(), n, heads, width));
      });
      if (taken != (m.pending == 0)) wrong("observe_rows");
      if (!taken || kind != shadow::h2o) continue;
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        auto& t = m.tracks[std::size_t{layer} * extent.kv_heads + head];
        for (std::size_t s = 0; s < t.size(); ++s) {
          for (std::uint32_t i = 0; i < n; ++i) {
            bool const visible = s + n <= t.size() + i;  // the queries are those of the last tokens
            if (visible) t[s].score += static_cast<double>(p[(std::size_t{head} * n + i) * width + s]);
          }
        }
      }
    }
  }
  void shift(std::uint32_t q) {
    auto& m = model[q];
    if (m.pending != 0) {
      must_refuse("shift with pending entries", [&] { cache.shift(q, 1); });
      return;
    }
    int const seen = static_cast<int>(m.seen),
              first = d.chance(0.5) ? 0 : static_cast<int>(d.below(m.seen + 1));
    int least = -seen;  // of the offsets that keep positions in order
    int behind = 0;     // the highest position that stays
    for (auto const& t : m.tracks) {
      int staying = -1, lowest = seen;
      for (auto const& e : t) {
        if (e.position < first) staying = e.position;
        if (e.position >= first && lowest == seen) lowest = e.position;
      }
      least = kvmeld::max_of(least, staying + 1 - lowest);
      behind = kvmeld::max_of(behind, staying + 1);
    }
    for (std::size_t i = 0; cache.ledger().members.capacity != 0 && i < tracks(); ++i) {
      auto const& members = cache.ledger().members;
      for (std::uint32_t n = 0; n < members.count[where(q, i).index]; ++n) {
        int const position = members.position[cache.ledger().members.at(where(q, i), n)];
        if (position < first) behind = kvmeld::max_of(behind, position + 1);
      }
    }
    if (kind != shadow::any) must_refuse("shift too far", [&] { cache.shift(q, least - 1, {}, first); });
    int const offset = least + static_cast<int>(d.below(12));
    if (!accepted("shift", [&] { cache.shift(q, offset, {}, first); })) {
      if (kind != shadow::any) wrong("a shift is refused");  // members may lie lower
      return;
    }
    for (auto& t : m.tracks) {
      for (auto& e : t) e.position += e.position >= first ? offset : 0;
    }
    m.seen = static_cast<unsigned>(seen + offset);
    int const merged = static_cast<int>(m.compressed_at);
    if (offset != 0)
      m.compressed_at = static_cast<unsigned>(
          merged < first ? kvmeld::min_of(merged, kvmeld::max_of(first + offset, behind))
                         : kvmeld::max_of(merged + offset, behind));
  }
  void renumber(std::uint32_t q) {
    auto& m = model[q];
    if (m.pending != 0 || kvmeld::shares_entries<typename Policy::merge_type>::value) {
      must_refuse("renumber", [&] { cache.renumber(q); });
      return;
    }
    if (!accepted("renumber", [&] { cache.renumber(q); })) wrong("a renumber is refused");
    unsigned const longest = m.longest(), unmerged = m.unmerged();
    for (auto& t : m.tracks) {
      for (std::size_t s = 0; s < t.size(); ++s) t[s].position = static_cast<int>(longest - t.size() + s);
    }
    m.compressed_at = longest - unmerged;
    m.seen = longest;
  }
  // Any range: it may hold merged entries, all of them, none, or frozen ones, which are refused.
  void drop_positions(std::uint32_t q) {
    auto& m = model[q];
    int const seen = static_cast<int>(m.seen);
    int first = static_cast<int>(d.below(m.seen + 1)), last = static_cast<int>(d.below(m.seen + 1));
    if (first > last) std::swap(first, last);
    if (d.chance(0.7)) last = kvmeld::min_of(last, first + 6);
    bool frozen = false;
    for (auto const& t : m.tracks) {
      for (std::size_t s = 0; s < m.frozen; ++s)
        frozen = frozen || (t[s].position >= first && t[s].position < last);
    }
    auto const call = [&] { cache.drop_positions(q, first, last); };
    if (m.pending != 0 || frozen) return must_refuse("drop_positions", call);
    must_refuse("drop_positions beyond the tokens", [&] { cache.drop_positions(q, first, seen + 1); });
    must_refuse("drop_positions backwards", [&] { cache.drop_positions(q, last + 1, last); });
    std::uint32_t const rounds = cache.rounds(q), warnings = cache.warnings(q);
    if (!accepted("drop_positions", call)) wrong("a drop_positions is refused");
    if (cache.rounds(q) != rounds || cache.warnings(q) != warnings)
      wrong("drop_positions: rounds or warnings");
    m.drop(first, last);
  }
  void refuse(std::uint32_t q) {
    auto const& m = model[q];
    std::uint32_t const none = extent.sequences + d.below(3);
    must_refuse("no such slot: append", [&] { cache.append({none}, {1}); });
    must_refuse("no such slot: compress", [&] { cache.compress({none}, budget::entries(9)); });
    must_refuse("no such slot: open", [&] { cache.open(none); });
    if (!m.open) {
      must_refuse("close", [&] { cache.close(q); });
      must_refuse("append", [&] { cache.append({q}, {1}); });
      must_refuse("commit", [&] { cache.commit({q}, {0}); });
      must_refuse("compress", [&] { cache.compress({q}, budget::entries(9)); });
      must_refuse("open beyond capacity", [&] { cache.open(q, extent.capacity + 1); });
      must_refuse("frozen beyond the tokens", [&] { cache.open(q, 2, 3); });
      return;
    }
    must_refuse("open", [&] { cache.open(q); });
    must_refuse("commit", [&] { cache.commit({q}, {m.pending + 1}); });
    must_refuse("append", [&] { cache.append({q}, {extent.capacity - m.longest() + 1}); });
    must_refuse("append the most", [&] { cache.append({q}, {0xffffffffu}); });
    must_refuse("append twice", [&] { cache.append({q, q}, {0, 0}); });
    must_refuse("counts of another number", [&] { cache.append({q}, {0, 0}); });
    must_refuse("fork into itself", [&] { cache.fork(q, q); });
    must_refuse("freeze", [&] { cache.freeze(q, m.shortest() + 1); });
    must_refuse("truncate up", [&] { cache.truncate(q, m.seen + 1); });
    must_refuse("first beyond the tokens", [&] { cache.shift(q, 0, {}, static_cast<int>(m.seen) + 1); });
    must_refuse("apply without a plan", [&] { cache.apply(); });
    must_refuse("compress twice", [&] { cache.compress({q, q}, budget::entries(9)); });
    if (m.lowest() > 0) must_refuse("truncate down", [&] { cache.truncate(q, m.lowest() - 1); });
    if (m.pending != 0) must_refuse("compress", [&] { cache.compress({q}, budget::entries(9)); });
  }

  // Least budget that is not refused for a track above it.
  std::uint32_t least(std::uint32_t q) const {
    std::uint32_t const frozen = model[q].frozen;
    if (kind == shadow::any) return 0;  // some are refused
    if (kind == shadow::streaming) return kvmeld::max_of(frozen, shadowed_sinks);
    if (kind == shadow::h2o) return kvmeld::max_of(1u, frozen);
    return kvmeld::max_of(frozen, shadowed_sinks) + 2 + 1;
  }
  void compress(std::uint32_t q) {
    slots list;
    std::vector<std::uint32_t> table(extent.tracks(), extent.capacity);
    for (std::uint32_t other = 0; other < extent.sequences; ++other) {
      auto const& m = model[other];
      if (!m.open || m.pending != 0 || (other != q && d.chance(0.7))) continue;
      list.push_back(other);
      for (std::size_t i = 0; i < tracks(); ++i)
        table[where(other, i).index] = least(other) + d.below(extent.capacity - 4);
    }
    if (list.empty()) return;
    ++compressions;
    auto const allowed = budget::per_track(table.data());
    if (kind == shadow::chelsea) {
      merge(list, allowed);
      return;
    }
    bool const planned = d.chance(0.2);
    auto const act = [&](kvmeld::shortfall fallback) {
      if (planned) {
        cache.plan(list, allowed, fallback);
        cache.apply();
      } else {
        cache.compress(list, allowed, fallback);
      }
    };
    if (kind == shadow::any) {
      auto const fallback = d.chance(0.5) ? kvmeld::shortfall::evict_lowest : kvmeld::shortfall::keep;
      kvmeld::testing::watch const before(cache);
      if (!accepted("compress", [&] { act(fallback); })) return;
      std::string const broken = before.after_compress(cache, list);
      if (!broken.empty()) wrong(broken);
      for (std::uint32_t other : list) follow(other);
      return;
    }
    act(kvmeld::shortfall::keep);
    for (std::uint32_t other : list) {
      auto& m = model[other];
      bool changed = false;
      for (std::size_t i = 0; i < tracks(); ++i) {
        std::uint32_t const limit = table[where(other, i).index];
        changed = m.evict(i, kind == shadow::streaming
                                 ? reference::streaming_keeps(m.tracks[i], m.frozen, shadowed_sinks, limit)
                                 : reference::h2o_keeps(m.tracks[i], m.frozen, limit)) ||
                  changed;
      }
      if (changed) m.compressed_at = m.seen;
      check(other);
    }
  }
  // The model takes over what a compression left, which has kept its promises.
  void follow(std::uint32_t q) {
    auto& m = model[q];
    kvmeld::ledger_ref const& l = cache.ledger();
    bool shorter = false;
    for (std::size_t i = 0; i < tracks(); ++i) {
      kvmeld::track const t = where(q, i);
      shorter = shorter || l.length[t.index] < m.tracks[i].size();
      m.tracks[i].resize(l.length[t.index]);
      for (std::uint32_t s = 0; s < l.length[t.index]; ++s) m.tracks[i][s].position = l.position[l.at(t, s)];
    }
    if (shorter) m.compressed_at = m.seen;
    check(q);
  }
  // Round by round, so that the plan tells what became of every entry; now and then a copy of the sequence
  // all at once.
  void merge(slots const& list, budget allowed) {
    std::uint32_t copy = extent.sequences;
    for (std::uint32_t other = 0; other < extent.sequences; ++other) {
      if (!model[other].open && d.chance(0.3)) copy = other;
    }
    if (copy < extent.sequences) cache.fork(list[0], copy);
    if (copy < extent.sequences) cache.freeze(copy, model[list[0]].frozen);
    for (bool again = true; again;) {
      again = false;
      cache.plan(list, allowed);
      auto const& plan = cache.current_plan();
      for (std::uint32_t item = 0; item < cache.planned_work().tracks(extent); ++item) {
        kvmeld::track const t = cache.planned_work().at(extent, item);
        auto& m = model[t.sequence];
        std::size_t const i = std::size_t{t.layer} * extent.kv_heads + t.kv_head;
        std::vector<int> target;
        for (std::uint32_t s = 0; s < m.tracks[i].size(); ++s) {
          auto const what = plan.fates[plan.at(item, s)];
          if (s < m.frozen && what != kvmeld::fate::keep) wrong("a frozen entry goes");
          target.push_back(what == kvmeld::fate::drop ? -1 : static_cast<int>(plan.target[plan.at(item, s)]));
        }
        if (m.merge(i, target)) {
          m.compressed_at = m.seen;
          again = true;
        }
      }
      cache.apply();
    }
    for (std::uint32_t other : list) check(other);
    if (copy == extent.sequences) return;
    std::vector<std::uint32_t> table(extent.tracks());
    for (std::size_t i = 0; i < tracks(); ++i)
      table[where(copy, i).index] = allowed.resolve(where(list[0], i), 0);
    cache.compress({copy}, budget::per_track(table.data()));
    for (std::size_t i = 0; i < tracks(); ++i) {
      auto const a = where(list[0], i), b = where(copy, i);
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
    for (std::size_t i = 0; i < tracks(); ++i) {
      kvmeld::track const t = where(q, i);
      auto const& track = m.tracks[i];
      if (l.length[t.index] != track.size()) wrong("length");
      for (std::uint32_t s = 0; s < track.size(); ++s) {
        std::size_t const e = l.at(t, s);
        if (l.position[e] != track[s].position) wrong("position");
        if (kind != shadow::any) check_entry(track[s], l.degree[e], x.values.locate(t, s));
        if (kind == shadow::h2o && static_cast<double>(l.channel_data[0][e]) != track[s].score)
          wrong("score");
      }
    }
    if (kind != shadow::any) return;
    std::string const broken = kvmeld::testing::invariant_problem(cache);
    if (!broken.empty()) wrong(broken);
  }
  void check_entry(reference::model_entry const& e, float degree, kvmeld::segment<float> const& value) const {
    if (degree != static_cast<float>(e.tokens.size())) wrong("degree");
    double sum = 0;
    for (int name : e.tokens) sum += static_cast<double>(name_as_value(name));
    double const mean = sum / static_cast<double>(e.tokens.size());
    if (std::fabs(static_cast<double>(element(value, 0)) - mean) > 1e-2) wrong("value");
    if (std::fabs(element(value, 1) - 1.0f) > 1e-4f) wrong("weights");
  }

  using rows_type = decltype(std::declval<Memory&>().tensors().keys);
  kvmeld::shape extent;
  shadow kind;
  Memory memory;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, rows_type, rows_type> cache;
  Choices d;
  dice noise;  // what no decision hangs on: rows and scores
  std::vector<reference::model_sequence> model;
  std::size_t at = 0;
  int next_name = 0;
};

}  // namespace support
